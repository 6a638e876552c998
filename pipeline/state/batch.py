"""A batch of the job, reduced: what it changes in a table, and its rejected records."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.entities import COLUMNS, WIDE, Floors, floors_of, is_before, latest
from millpond.pipeline.state.reduce import REJECTS, RESETS


@dataclass(frozen=True)
class Batch:
    """A batch of a query, whose number counts from 0.

    `changes`: the last row of each entity in the order of offsets, with its bucket, and without a
    value where the entity is deleted. `resets`, `rejects`: rows of the reduction.
    """

    query: str
    number: int
    changes: pa.Table
    resets: pa.Table
    rejects: pa.Table

    @property
    def floors(self) -> Floors:
        """Offsets of the last resets by partition."""
        return floors_of(self.resets)


def batch_of(query: str, number: int, rows: pa.Table) -> Batch:
    """The batch with these reduced rows, which come in any order."""
    rows = rows.cast(WIDE).sort_by("offset")
    bucket = rows.column("bucket")
    resets = rows.filter(pc.equal(bucket, RESETS))
    changes = latest(rows.filter(pc.greater_equal(bucket, 0)).select(("bucket", *COLUMNS)))
    changes = changes.filter(pc.invert(is_before(changes, floors_of(resets))))
    return Batch(query, number, changes, resets, rows.filter(pc.equal(bucket, REJECTS)))

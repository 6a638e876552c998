"""A batch of the job, reduced: what it changes in a table, and its rejected records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from millpond.pipeline.state.entities import (
    COLUMNS,
    WIDE,
    Floors,
    floors_of,
    is_before,
    last_of_each,
)
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
    """The batch with these reduced rows, which come in any order. Values are copied once."""
    rows = rows.cast(WIDE)
    bucket = rows.column("bucket")
    resets = rows.filter(pc.equal(bucket, RESETS)).sort_by("offset")
    rejects = rows.filter(pc.equal(bucket, REJECTS)).sort_by("offset")
    order = _by_offset(rows, pc.greater_equal(bucket, 0))
    changes = rows.select(("bucket", *COLUMNS)).take(order.take(last_of_each(rows, order)))
    if resets.num_rows:
        changes = changes.filter(pc.invert(is_before(changes, floors_of(resets))))
    return Batch(query, number, changes, resets, rejects=rejects)


def _by_offset(rows: pa.Table, kept: Any) -> pa.Array:
    """The numbers of the kept rows in the order of their offsets."""
    numbers = pc.indices_nonzero(kept)
    offsets = rows.column("offset").take(numbers)
    return numbers.take(pc.sort_indices(offsets))

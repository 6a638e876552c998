"""Consecutive records as arrays, and S2's own batches decoded into them.

A node sends blocks of columns (`column_blocks`); this module reads single records, and sessions of
servers that send none.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from millpond.pipeline.client.s2_codec import Headers, decode_records
from millpond.pipeline.errors import PipelineError

Numbers: TypeAlias = Any
"""An array of u64; numpy is an extra, which a type checker may not see."""


class Columns(NamedTuple):
    """Consecutive records. `bodies` is an Arrow array; `headers` None: no record has any."""

    sequences: Numbers
    timestamps: Numbers
    bodies: Any
    headers: list[Headers] | None = None

    def part(self, kept: slice) -> Columns:
        """A slice of the records."""
        headers = None if self.headers is None else self.headers[kept]
        return Columns(self.sequences[kept], self.timestamps[kept], self.bodies[kept], headers)

    def chosen(self, kept: list[int]) -> Columns:
        """The records at these indices."""
        headers = None if self.headers is None else [self.headers[i] for i in kept]
        places = np.array(kept, np.int64)
        bodies = self.bodies.take(pa.array(places))
        return Columns(self.sequences[places], self.timestamps[places], bodies, headers)


def decode_batch(data: bytes) -> Columns:
    """The records of a batch. Raises PipelineError."""
    try:
        sequences, timestamps, bodies, headers = decode_records(data)
    except ValueError as error:
        raise PipelineError("bad_answer", f"a batch that cannot be read: {error}") from None
    return Columns(
        np.array(sequences, np.uint64),
        np.array(timestamps, np.uint64),
        pa.array(bodies, pa.binary()),
        headers,
    )

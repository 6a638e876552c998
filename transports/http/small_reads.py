"""Small reads: those answered without a task, because their answer is written in one piece.

A large answer is made only where the node has memory for it, and where its client takes it, which
may have to be waited for.
"""

from __future__ import annotations

from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams.messages import Records, StreamInfo

READ_BYTES = 2**15
"""The bytes of records that a small read asks for."""
ANSWER_BYTES = 2**16
"""The largest body of its answer: the server writes as much in one piece."""


def may_be_small(info: StreamInfo, start: Seek, count: int) -> bool:
    """True if so many records from `start` on have up to READ_BYTES, if all are of equal size."""
    first = start.sequence if start.by is SeekBy.SEQUENCE else info.trim_point
    kept = info.tail - info.trim_point
    return min(info.tail - first, count) * info.bytes_kept <= READ_BYTES * kept


def shows_all(records: Records, count: int, bytes_max: int) -> bool:
    """True if a small read found all that a read of `count` records and `bytes_max` would find."""
    if records.next >= records.tail or bytes_max <= READ_BYTES:
        return True
    return sum([len(span.bodies) for span in records.spans]) >= count

"""Offsets of Durable Streams: a sequence in 16 digits, and 16 zeros, so that they sort as bytes
(docs/reference/durable-streams.md).

The record with sequence `s` ends at `offset_of(s + 1)`. Clients compute offsets of their own, with
a second half above zero, that lie inside of a record; a read begins at the first record that ends
above the given offset.
"""

from __future__ import annotations

import re

_OFFSET = re.compile(r"([0-9]{16})_([0-9]{16})", re.ASCII)


def offset_of(sequence: int) -> bytes:
    """The offset before the record with this sequence."""
    return b"%016d_%016d" % (sequence, 0)


def sequence_of(offset: str) -> int | None:
    """The sequence of the first record that ends above an offset; None: it is no offset.

    The second half does not count: no record ends between `offset_of(s)` and `offset_of(s + 1)`.
    """
    found = _OFFSET.fullmatch(offset)
    return None if found is None else int(found[1])


def minted_sequence_of(offset: str) -> int | None:
    """The sequence of an offset that a node has given out; None: it is none."""
    sequence = sequence_of(offset)
    return sequence if sequence is not None and offset == offset_of(sequence).decode() else None

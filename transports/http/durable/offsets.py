"""Offsets: a sequence in 16 digits, and 16 zeros, so that they sort as bytes
(docs/reference/durable-streams.md)."""

from __future__ import annotations

import re

SEQUENCE_MAX = 10**16 - 1

_OFFSET = re.compile(r"([0-9]{16})_([0-9]{16})", re.ASCII)


def offset_of(sequence: int) -> bytes:
    """The offset before the record with this sequence."""
    return b"%016d_%016d" % (sequence, 0)


def sequence_of(offset: str) -> int | None:
    """The sequence of an offset; None: it is none. What is between two records is beyond all."""
    found = _OFFSET.fullmatch(offset)
    if found is None:
        return None
    return int(found[1]) if int(found[2]) == 0 else SEQUENCE_MAX

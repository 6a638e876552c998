"""Damage of files on a simulated disk: bytes that are not what was written, without an error.

The kinds are those of real drives and file systems: writes that were acknowledged and are not
there, writes that went elsewhere, files that are gone or old, changed bits, ends cut off or zeroed.
"""

from __future__ import annotations

from enum import Enum
from random import Random
from typing import assert_never

from millpond.node.testing.disk.file_bytes import SECTOR_BYTES

PAGE_BYTES = 4096
"""The unit of SQLite's writes. Journals are written in sectors."""


class DamageKind(Enum):
    """A kind of damage; tests use the values as names."""

    LOST_WRITE = "lost write"
    MISDIRECTED_WRITE = "misdirected write"
    MISSING = "missing"
    STALE = "stale"
    STALE_PAGE = "stale page"
    BIT_FLIP = "bit flip"
    TRUNCATED = "truncated"
    ZEROED = "zeroed"


DIVERTED = (DamageKind.LOST_WRITE, DamageKind.MISDIRECTED_WRITE)
"""The kinds that happen to a write of a node that runs."""


def damaged(
    kind: DamageKind, data: bytes, older: bytes | None, source: bytes, rng: Random, unit: int
) -> bytes | None:
    """The bytes of a file after damage; None: the file is missing.

    `older` is an earlier copy of the file, None if there is none: then nothing of it comes back.
    `source` is the file whose write went into this one. `unit` is the size of a write in bytes.
    """
    match kind:
        case DamageKind.MISSING:
            return None
        case DamageKind.STALE:
            return data if older is None else older
        case DamageKind.STALE_PAGE:
            return data if older is None else _with_older_page(data, older, rng, unit)
        case DamageKind.LOST_WRITE:
            at, end = _range(data, rng, unit)
            before = bytes(len(data)) if older is None else older.ljust(len(data), b"\0")
            return _replaced(data, at, before[at:end])
        case DamageKind.MISDIRECTED_WRITE:
            start, end = _range(source, rng, unit)
            at, _ = _range(data, rng, unit)
            return _replaced(data, at, source[start:end])[: len(data)]
        case DamageKind.BIT_FLIP:
            return _flipped(data, rng)
        case DamageKind.TRUNCATED:
            return data[: rng.randint(0, len(data))]
        case DamageKind.ZEROED:
            at, end = _range(data, rng, unit)
            end = rng.choice((end, len(data)))
            at = rng.choice((0, at, at))
            return _replaced(data, at, bytes(end - at))
        case _:
            assert_never(kind)


def _with_older_page(data: bytes, older: bytes, rng: Random, unit: int) -> bytes:
    """One page that was written since, as it was before."""
    both = range(0, min(len(data), len(older)), unit)
    changed = [at for at in both if data[at : at + unit] != older[at : at + unit]]
    at = rng.choice(changed or [0])
    return _replaced(data, at, older[at : at + unit][: len(data) - at])


def _range(data: bytes, rng: Random, unit: int) -> tuple[int, int]:
    """Start and end of a write: a few units where something is written."""
    used = len(data.rstrip(b"\0"))
    at = rng.randrange(max(1, -(-used // unit))) * unit
    return at, min(len(data), at + unit * rng.choice((1, 1, 2, 8)))


def _flipped(data: bytes, rng: Random) -> bytes:
    """One bit changed, mostly where something is written."""
    if not data:
        return data
    used = len(data.rstrip(b"\0")) or len(data)
    at = rng.randrange(used if rng.random() < 0.9 else len(data))
    return _replaced(data, at, bytes([data[at] ^ 1 << rng.randrange(8)]))


def _replaced(data: bytes, at: int, piece: bytes) -> bytes:
    return data[:at] + piece + data[at + len(piece) :]


def unit_of(name: str) -> int:
    """The size in bytes of the writes that a file gets."""
    return SECTOR_BYTES if name.endswith(".journal") else PAGE_BYTES

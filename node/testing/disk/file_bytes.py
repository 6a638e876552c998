"""The bytes of one simulated file: what the system shows of them, and what is on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

SECTOR_BYTES = 512


class FileBytes:
    """`cache` is what every reader sees; `disk` is what a power failure leaves.

    What was written since the last sync is pending: (offset, data) in order. Data of no length
    makes the file as long as its offset. A sector is written as a whole or not at all, and one that
    is not leaves its neighbours alone.
    """

    __slots__ = ("cache", "disk", "pending")

    def __init__(self) -> None:
        self.cache = bytearray()
        self.disk = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def write(self, data: bytes, offset: int) -> None:
        """Into the system's memory."""
        _put(self.cache, data, offset)
        self.pending.append((offset, bytes(data)))

    def sync(self) -> None:
        """All of it to the disk."""
        for offset, data in self.pending:
            _put(self.disk, data, offset)
        self.pending.clear()

    def settle(self, rng: Random, garbage: float = 0.0) -> None:
        """Let chance say what of the pending writes reached the disk; none is pending any more.

        `garbage` is how likely bytes that did not arrive are something else than before.
        """
        pieces = [piece for write in self.pending for piece in _sectors(*write)]
        self.pending.clear()
        for (offset, data), is_kept in zip(pieces, _kept(len(pieces), rng), strict=True):
            if is_kept:
                _put(self.disk, data, offset)
            elif data and rng.random() < garbage:
                _put(self.disk, rng.randbytes(len(data)), offset)

    def power_off(self, rng: Random, garbage: float = 0.0) -> None:
        """Only the disk remains."""
        self.settle(rng, garbage)
        self.cache = bytearray(self.disk)


def _put(image: bytearray, data: bytes, offset: int) -> None:
    """Write into an image, which grows with zeros as needed."""
    end = offset + len(data)
    if end > len(image):
        image.extend(bytes(end - len(image)))
    image[offset:end] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """A write in pieces that lie in one sector each."""
    if not data:
        yield offset, data
    at = 0
    while at < len(data):
        size = SECTOR_BYTES - (offset + at) % SECTOR_BYTES
        yield offset + at, data[at : at + size]
        at += size


def _kept(count: int, rng: Random) -> list[bool]:
    """Which of so many sectors arrived: none, all, the first ones, or any."""
    match rng.randrange(6):
        case 0:
            return [False] * count
        case 1:
            return [True] * count
        case 2 | 3:
            first = rng.randint(0, count)
            return [at < first for at in range(count)]
        case _:
            likely = rng.random()
            return [rng.random() < likely for _ in range(count)]

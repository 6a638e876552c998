"""The bytes of one simulated file, as the system shows them and as they are on the disk."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

SECTOR_BYTES = 512


class FileBytes:
    """A file's bytes: `cache` is what readers see, `disk` what a power failure leaves.

    Writes since the last sync are `pending`: (offset, data) in order. Empty data extends the file
    to its offset. A sector is written completely or not at all. `is_diverted`: a write of this file
    was lost or went elsewhere, or one of another file came here. `places` are the offsets and sizes
    of the writes that went where they should.
    """

    __slots__ = ("cache", "disk", "is_diverted", "pending", "places")

    def __init__(self, data: bytes = b"") -> None:
        self.cache = bytearray(data)
        self.disk = bytearray(data)
        self.pending: list[tuple[int, bytes]] = []
        self.is_diverted = False
        self.places: list[tuple[int, int]] = []

    def write(self, data: bytes, offset: int) -> None:
        """Write into the system's memory."""
        _put(self.cache, data, offset)
        self.pending.append((offset, bytes(data)))

    def lose(self, data: bytes, offset: int) -> None:
        """Write into the system's memory what never reaches the disk."""
        _put(self.cache, data, offset)
        self.is_diverted = True

    def receive(self, data: bytes, offset: int) -> None:
        """Take a write that was meant for another place: the system's memory does not show it. The
        file does not grow."""
        self.pending.append((offset, bytes(data[: max(0, len(self.cache) - offset)])))
        self.is_diverted = True

    def evict(self) -> None:
        """Read again from the disk what the system's memory had, but for what is pending."""
        self.cache = bytearray(self.disk)
        for offset, data in self.pending:
            _put(self.cache, data, offset)

    def sync(self) -> None:
        """Write all pending data to the disk."""
        for offset, data in self.pending:
            _put(self.disk, data, offset)
        self.pending.clear()

    def settle(self, rng: Random, garbage: float = 0.0) -> None:
        """Let chance decide which pending sectors reach the disk; then none is pending.

        `garbage` is the probability that a sector that did not arrive has random bytes.
        """
        pieces = [piece for write in self.pending for piece in _sectors(*write)]
        self.pending.clear()
        for (offset, data), is_kept in zip(pieces, _kept(len(pieces), rng), strict=True):
            if is_kept:
                _put(self.disk, data, offset)
            elif data and rng.random() < garbage:
                _put(self.disk, rng.randbytes(len(data)), offset)

    def power_off(self, rng: Random, garbage: float = 0.0) -> None:
        """Lose the system's memory."""
        self.settle(rng, garbage)
        self.cache = bytearray(self.disk)


def _put(image: bytearray, data: bytes, offset: int) -> None:
    """Write into an image, which grows with zeros."""
    end = offset + len(data)
    if end > len(image):
        image.extend(bytes(end - len(image)))
    image[offset:end] = data


def _sectors(offset: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    """A write in pieces of at most one sector each."""
    if not data:
        yield offset, data
    at = 0
    while at < len(data):
        size = SECTOR_BYTES - (offset + at) % SECTOR_BYTES
        yield offset + at, data[at : at + size]
        at += size


def _kept(count: int, rng: Random) -> list[bool]:
    """The sectors that arrived: none, all, the first ones, or any."""
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

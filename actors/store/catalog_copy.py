"""The copy of the catalog, which a clean stop leaves and the next start removes.

While it is there, no store was open since it was made. So it replaces a catalog that is lost after
a clean stop, or is older than it. Segments that it does not list show that it is an old one itself.
"""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import msgspec

from millpond.actors.store.checksum import crc32
from millpond.actors.store.filesystem import Disk

COPY = "catalogue.copy"
"""Its name in the data folder."""
BYTES_MAX = 64 * 2**20
"""A larger catalog is not copied: a stop would take seconds."""
MAGIC = b"MILLPOND CATALOG"
_HEADER = Struct("<16sQI")  # magic, generation, CRC of the generation and what follows
_GENERATION = Struct("<Q")


class CatalogCopy(msgspec.Struct, frozen=True):
    """The bytes of a catalog's SQLite file, and the generation it had."""

    generation: int
    data: bytes


def encode_copy(copy: CatalogCopy) -> bytes:
    """The content of the file."""
    crc = crc32(copy.data, crc32(_GENERATION.pack(copy.generation)))
    return _HEADER.pack(MAGIC, copy.generation, crc) + copy.data


def decode_copy(data: bytes) -> CatalogCopy | None:
    """None: these are not the bytes that were written."""
    if len(data) < _HEADER.size:
        return None
    magic, generation, crc = _HEADER.unpack_from(data)
    content = data[_HEADER.size :]
    if magic != MAGIC or crc != crc32(content, crc32(_GENERATION.pack(generation))):
        return None
    return CatalogCopy(generation, content)


def read_copy(folder: Path, disk: Disk) -> CatalogCopy | None:
    """The copy in a data folder; None: there is none that can be used. Raises OSError."""
    path = folder / COPY
    return decode_copy(disk.read(path)) if disk.has(path) else None


def write_copy(folder: Path, disk: Disk, copy: CatalogCopy) -> None:
    """Leave a copy, durably. Raises OSError."""
    disk.install(folder / COPY, encode_copy(copy))


def remove_copy(folder: Path, disk: Disk) -> None:
    """Remove the copy, durably. Raises OSError."""
    if disk.has(folder / COPY):
        disk.unlink(folder / COPY)
        disk.sync_folder(folder)

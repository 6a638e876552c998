"""Notes on what was found damaged: a partition with a note is not served until it is repaired.

A note is a file of its own, because what it tells of may be reclaimed with the journal.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path

import msgspec

from millpond.actors.store.filesystem import Disk

SUFFIX = ".json"


class Damage(msgspec.Struct, frozen=True):
    """A damage and its place. `name` is the partition's, None if that cannot be told."""

    where: str
    text: str
    name: bytes | None = None


def report_path(folder: Path, damage: Damage) -> Path:
    """One note for each partition; the first counts."""
    key = damage.where.encode() if damage.name is None else damage.name
    return folder / (blake2b(key, digest_size=20).hexdigest() + SUFFIX)


def write_report(folder: Path, disk: Disk, damage: Damage) -> None:
    """Keep a note, durably. Raises OSError."""
    path = report_path(folder, damage)
    if not disk.has(path):
        disk.install(path, msgspec.json.encode(damage))


def read_reports(folder: Path, disk: Disk) -> list[Damage]:
    """The notes in a folder; one that cannot be read is a damage without a name."""
    notes = []
    for name in disk.names(folder):
        if not name.endswith(SUFFIX):
            continue
        try:
            notes.append(msgspec.json.decode(disk.read(folder / name), type=Damage))
        except msgspec.DecodeError as exc:
            notes.append(Damage(name, f"the note itself is damaged: {exc}"))
    return notes

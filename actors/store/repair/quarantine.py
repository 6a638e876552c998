"""Reports of damaged partitions: a partition with a report is not served until it is repaired.

A report is a file of its own, because the journal that it tells of may be reclaimed.
"""

from __future__ import annotations

import logging
from hashlib import blake2b
from pathlib import Path

import msgspec

from millpond.actors.store.filesystem import Disk

log = logging.getLogger(__name__)

SUFFIX = ".json"


class Damage(msgspec.Struct, frozen=True):
    """A damage and its place. `name` is the partition's, None if that cannot be told."""

    where: str
    text: str
    name: bytes | None = None


def log_damage(damage: Damage) -> None:
    """Write a damage to the log, as all of them are."""
    log.error("damaged: name=%r where=%s: %s", damage.name, damage.where, damage.text)


def report_path(folder: Path, damage: Damage) -> Path:
    """The path of a partition's report; the first one counts."""
    key = damage.where.encode() if damage.name is None else damage.name
    return folder / (blake2b(key, digest_size=20).hexdigest() + SUFFIX)


def write_report(folder: Path, disk: Disk, damage: Damage) -> None:
    """Write a report, durably. Raises OSError."""
    path = report_path(folder, damage)
    if not disk.has(path):
        disk.install(path, msgspec.json.encode(damage))


def read_reports(folder: Path, disk: Disk) -> list[Damage]:
    """The reports in a folder; one that cannot be read is a damage without a name."""
    notes = []
    for name in disk.names(folder):
        if not name.endswith(SUFFIX):
            continue
        try:
            notes.append(msgspec.json.decode(disk.read(folder / name), type=Damage))
        except msgspec.DecodeError as exc:
            notes.append(Damage(name, f"the note itself is damaged: {exc}"))
    return notes

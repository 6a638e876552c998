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
WHERE_MAX = 1000
"""The places that one report names, in characters."""
RECORDS_UNKNOWN = 2**40
"""The `records_max` of a damage where nothing tells how many records were lost."""


class Damage(msgspec.Struct, frozen=True):
    """A damage and its place. `name` is the partition's, None if that cannot be told.

    `is_all`: every partition may have lost something, also those that nothing is known of. No log
    lost more than `records_max` records behind what is known of it: a record takes a byte of the
    journal at least.
    """

    where: str
    text: str
    name: bytes | None = None
    is_all: bool = False
    records_max: int = 0


def log_damage(damage: Damage) -> None:
    """Write a damage to the log, as all of them are."""
    log.error("damaged: name=%r where=%s: %s", damage.name, damage.where, damage.text)


def report_path(folder: Path, damage: Damage) -> Path:
    """The path of a partition's report; the first one counts."""
    key = damage.where.encode() if damage.name is None else damage.name
    return folder / (blake2b(key, digest_size=20).hexdigest() + SUFFIX)


def write_report(folder: Path, disk: Disk, damage: Damage) -> None:
    """Write a report, durably, or add to the one that there is. Raises OSError."""
    path = report_path(folder, damage)
    if disk.has(path):
        try:
            known = msgspec.json.decode(disk.read(path), type=Damage)
        except msgspec.DecodeError:
            return
        damage = _joined(known, damage)
        if damage == known:
            return
    disk.install(path, msgspec.json.encode(damage))


def _joined(known: Damage, damage: Damage) -> Damage:
    """A report with another damage. One in the same place may turn out to be larger."""
    if not damage.is_all and not damage.records_max:
        return known
    is_same = damage.where in known.where
    sizes = known.records_max, damage.records_max
    return msgspec.structs.replace(
        known,
        where=known.where if is_same else f"{known.where}; {damage.where}"[:WHERE_MAX],
        text=damage.text if damage.is_all and not known.is_all else known.text,
        is_all=known.is_all or damage.is_all,
        records_max=max(sizes) if is_same else sum(sizes),
    )


def read_reports(folder: Path, disk: Disk) -> list[Damage]:
    """The reports in a folder; one that cannot be read is a damage without a name."""
    reports = []
    for name in disk.names(folder):
        if not name.endswith(SUFFIX):
            continue
        try:
            reports.append(msgspec.json.decode(disk.read(folder / name), type=Damage))
        except msgspec.DecodeError as exc:
            reports.append(Damage(name, f"the report itself is damaged: {exc}"))
    return reports

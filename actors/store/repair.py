"""Makes a damaged channel usable again: a new file of all that is still good, the old one kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from actors.messages import Durability
from actors.store.changes import KeyLeft, KeyRow, Kind, ModeSet, QueueChange, Snapshot, Tried
from actors.store.damage import Damage, note_path
from actors.store.disk import Disk
from actors.store.entry import Entry
from actors.store.partitions.catalogue import Catalogue
from actors.store.partitions.shelf import Shelf, file_name
from actors.store.queue_layer import QueueLayer
from actors.store.recovery import CATALOGUE, recover
from actors.store.salvage import Salvaged, salvage
from actors.store.settings import StoreSettings

WAL = "-wal"
"""What SQLite committed last, and has not yet put into the file."""


class NotRepairable(Exception):
    """Nothing can be done here; the text says why."""


class Repaired(msgspec.Struct, frozen=True):
    """A channel has `messages` now, `in_file` of them from its old file, which is in `aside`.

    `lost` are ids that were in the old file and could not be read; there may have been more.
    """

    messages: int
    in_file: int
    lost: list[int]
    aside: Path | None


def repair(folder: Path, disk: Disk, name: bytes) -> Repaired:
    """Repair the channel `name` in the folder of a stopped node. Its note of damage goes last, so
    a repair that does not come to its end is begun anew.

    Raises NotRepairable, and what recovery raises.
    """
    found = recover(folder, disk, lambda name: Durability.DISK, StoreSettings())
    found.library.close()
    entry = found.entries.get(name)
    shelf = Shelf(folder / "partitions", disk)
    if entry is None and not shelf.has(name):
        raise NotRepairable("the node keeps nothing of this name")
    if entry is not None and entry.kind is Kind.LOG:
        raise NotRepairable("this is a log, and only channels can be repaired")
    aside = _set_aside(folder / "damaged", shelf.path(name), disk)
    old = Salvaged(Snapshot(), []) if aside is None else salvage(shelf.path(name), disk)
    in_file = len(old.snapshot.rows)
    snapshot = _with_journal(old.snapshot, entry)
    _replace(folder, disk, shelf, name, snapshot, found.tail.lsn)
    for note in _notes(folder / "damaged", name):
        disk.unlink(note)
    disk.sync_folder(folder / "damaged")
    return Repaired(len(snapshot.rows), in_file, old.lost, aside)


def _with_journal(below: Snapshot, entry: Entry | None) -> Snapshot:
    layer = entry.layer if entry is not None else None
    return layer.apply_to(below) if isinstance(layer, QueueLayer) else below


def _set_aside(folder: Path, path: Path, disk: Disk) -> Path | None:
    """A copy, with what lies beside the file, under a name that is not taken."""
    if not disk.has(path):
        return None
    taken, number = set(disk.names(folder)), 1
    while f"{path.name}.{number}" in taken:
        number += 1
    aside = folder / f"{path.name}.{number}"
    for end in ("", WAL):
        source = path.with_name(path.name + end)
        if disk.has(source):
            disk.install(aside.with_name(aside.name + end), disk.read(source))
    return aside


def _replace(
    folder: Path, disk: Disk, shelf: Shelf, name: bytes, snapshot: Snapshot, lsn: int
) -> None:
    """A file that has everything up to `lsn`, so that the journal's records count no more."""
    layer = QueueLayer(is_base=True)
    layer.fold(_changes(snapshot))
    with closing(Catalogue(folder / CATALOGUE, disk)) as catalogue:
        catalogue.mark([(name, Kind.QUEUE)])
        outline = shelf.make(name, Kind.QUEUE, layer, lsn, lsn + 1)
        catalogue.record([outline], [], {})


def _changes(snapshot: Snapshot) -> Iterator[QueueChange]:
    if snapshot.mode is not None:
        yield ModeSet(snapshot.mode)
    yield from snapshot.rows
    for key, left in snapshot.keys.items():
        if isinstance(left, KeyRow):
            yield KeyLeft(key, left)
    for message_id, attempts in snapshot.attempts.items():
        yield Tried(message_id, attempts)


def _notes(folder: Path, name: bytes) -> Iterator[Path]:
    """The channel's own note, and one of its file from when nobody knew whose that was."""
    path = file_name(name)
    yield note_path(folder, Damage("", "", name))
    yield note_path(folder, Damage(path.rpartition("/")[2], ""))

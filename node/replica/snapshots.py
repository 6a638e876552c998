"""Snapshots of a running store, uploaded as blobs and a manifest, and the removal of old ones.

A file is copied into a scratch folder, uploaded if no kept manifest names its content, and removed
there, one after the other. The manifest is last: without it, what was uploaded counts for nothing
and is removed later. Removal goes the other way: manifests, then journal objects that no kept
snapshot needs, then blobs and cold objects that no kept manifest names. Only the owner removes, and
never while it uploads a snapshot.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from millpond.actors.store.catalog_recovery import DAMAGED
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.partitions.file_pool import BESIDE, is_file_name
from millpond.actors.store.partitions.partition import Partition
from millpond.actors.store.partitions.sqlite import COLD_FORMAT, Damaged, is_sqlite, version_of
from millpond.actors.store.snapshot import SnapshotLost, StoreSnapshot
from millpond.actors.store.snapshot_copy import SnapshotCopy
from millpond.node.backup.manifest import digest_of
from millpond.node.clock_file import READING
from millpond.node.replica.errors import NoObject, ObjectExists
from millpond.node.replica.object_store import Listed, ObjectStore
from millpond.node.replica.objects import (
    BEAT,
    BLOB,
    COLD,
    FORMAT_VERSION,
    JOURNAL,
    MANIFEST_VERSIONS,
    OWNER,
    SNAPSHOT,
    TAKEOVER,
    ColdUse,
    Manifest,
    SnapshotFile,
    blob_name,
    cold_key,
    decode_manifest,
    decode_owner,
    encode_manifest,
    journal_name,
    number_of,
    snapshot_name,
)

SCRATCH = "replica.tmp"
BLOB_GRACE_S = 3600.0
"""Blobs that no manifest names are removed after so long: an upload may be under way."""
OWNERS_KEPT, BEATS_KEPT = 1000, 4


class SnapshotPlace(msgspec.Struct, frozen=True):
    """Where a snapshot stands in its replica: journal objects from `number` on have all that it has
    not. From `cold_next` on there may be cold objects that only later snapshots need."""

    node: bytes
    epoch: int
    history: int
    number: int
    cold_next: tuple[int, int] = (0, 0)


class SnapshotFacts(msgspec.Struct, frozen=True):
    """The node as a manifest names it, at the moment of the snapshot."""

    made_at: float
    program: str
    messages: int
    streams: int


class SnapshotUpload:
    """One snapshot of `store` on its way to `objects`. Methods run in worker threads, one after the
    other. They raise SnapshotLost, OSError, sqlite3.Error, and the errors of the object store."""

    def __init__(self, store: DurableStore, objects: ObjectStore) -> None:
        self._store = store
        self._objects = objects
        self._scratch = store.folder / SCRATCH
        self._files: list[SnapshotFile] = []
        self._known: set[str] = set()
        self._before: Manifest | None = None
        self._cold: dict[tuple[int, int], int] = {}
        """The cold objects that the files need, with the bytes that they need of each."""
        self._cold_next_max: tuple[int, int] | None = None
        """Set by a file that cannot be read: it may need any object from there on."""
        self.bytes_uploaded = 0
        self.is_new = True
        """False: the one before is of the same moment of the journal."""
        self.steps = self.step_bytes = 0
        """Its progress so far, and the size of the file that is being uploaded."""
        self.is_given_up = False
        """Set from outside: its thread ends as soon as it can."""
        self.manifest: Manifest | None = None
        """Set once it is complete."""
        self._copy = SnapshotCopy(
            store.folder, store.disk, self._scratch, self._wrote, self._finished
        )

    def prepare(self) -> None:
        """Make the scratch folder, and find out what is uploaded already."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._scratch.mkdir(mode=0o700)
        for manifest in manifests(self._objects)[-1:]:
            self._known.update(each.sha256 for each in manifest.files)
            self._before = manifest

    def copy_segments(self, snapshot: StoreSnapshot) -> None:
        """Upload the journal."""
        self._copy.copy_segments(snapshot)

    def copy_files(self, snapshot: StoreSnapshot) -> None:
        """Upload partition files, reports of damage, the clock and the catalog."""
        self._copy.copy_files(snapshot)
        for path in (self._store.folder / READING, *self._reports()):
            self._copy_plain(path)
        self._copy.write_catalog(snapshot)

    def finish(self, place: SnapshotPlace, facts: SnapshotFacts, snapshot: StoreSnapshot) -> str:
        """Make the manifest; gives its name. The snapshot counts from now on."""
        lsn, cold_next = snapshot.lsn, place.cold_next
        if self._cold_next_max is not None:
            cold_next = min(cold_next, self._cold_next_max)
        manifest = Manifest(
            version=MANIFEST_VERSIONS[-1] if self._cold else FORMAT_VERSION,
            node=place.node,
            epoch=place.epoch,
            history=place.history,
            lsn=lsn,
            number=place.number,
            made_at=facts.made_at,
            program=facts.program,
            messages=facts.messages,
            streams=facts.streams,
            files=tuple(sorted(self._files, key=lambda each: each.path)),
            cold=tuple(ColdUse(*key, size) for key, size in sorted(self._cold.items())),
            cold_next=cold_next,
        )
        self.manifest = manifest
        name = snapshot_name(place.epoch, lsn)
        try:
            self._objects.create(name, encode_manifest(manifest))
        except ObjectExists:  # nothing was written since the one before
            self.is_new = False
        return name

    def discard(self) -> None:
        """Remove the scratch folder; nothing is raised."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _reports(self) -> list[Path]:
        folder = self._store.folder / DAMAGED
        return sorted(folder.glob("*.json")) if folder.is_dir() else []

    def _copy_plain(self, path: Path) -> None:
        target = self._scratch / path.relative_to(self._store.folder)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with suppress(FileNotFoundError):
            target.write_bytes(path.read_bytes())
            self._finished(target)

    def _wrote(self, size: int) -> None:
        self.steps += 1
        if self.is_given_up:  # the scratch folder may be that of the next upload already
            raise SnapshotLost("the upload was given up")

    def _finished(self, path: Path) -> None:
        """Upload a file of the scratch folder, and remove it there."""
        self._find_cold(path)
        size, digest = digest_of(path)
        if digest not in self._known:
            self.steps, self.step_bytes = self.steps + 1, size
            self._objects.put_file(blob_name(digest), path)
            self._known.add(digest)
            self.bytes_uploaded += size
        self.step_bytes = 0
        self._wrote(size)
        relative = path.relative_to(self._scratch).as_posix()
        self._files.append(SnapshotFile(relative, size, digest))
        path.unlink()

    def _find_cold(self, path: Path) -> None:
        """Find the cold objects that a partition's file needs. One that cannot be read may need all
        that the snapshot before needs, and all that came since."""
        if not is_file_name(path.name) or not path.stat().st_size:
            return
        with path.open("rb") as file:
            head = file.read(100)
        used: dict[tuple[int, int], int] = {}
        try:
            if not is_sqlite(head) or path.with_name(path.name + BESIDE[0]).exists():
                raise Damaged("SQLite could not copy it")
            if version_of(head) < COLD_FORMAT:
                return
            url = f"file:{quote(str(path))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(url, uri=True, isolation_level=None)) as connection:
                used = Partition(connection, None, None).cold_objects()
        except (Damaged, sqlite3.Error):
            self._cold_next_max = 0, 0
            if self._before is not None:
                self._cold_next_max = self._before.cold_next
                used = {(each.epoch, each.number): each.bytes for each in self._before.cold}
        for key, size in used.items():
            self._cold[key] = self._cold.get(key, 0) + size


class Pruned(msgspec.Struct, frozen=True):
    """The objects that were removed."""

    snapshots: int = 0
    journal: int = 0
    blobs: int = 0
    cold: int = 0


def manifests(objects: ObjectStore) -> list[Manifest]:
    """All snapshots, the oldest first. Raises BadReplica."""
    found = []
    for each in objects.list(SNAPSHOT):
        with suppress(NoObject):  # removed meanwhile
            found.append(decode_manifest(objects.get(each.name), each.name))
    return sorted(found, key=lambda each: (each.epoch, each.lsn))


def prune(
    objects: ObjectStore, keep_s: float, wall: float, *, blob_grace_s: float = BLOB_GRACE_S
) -> Pruned:
    """Remove what no restoration to a moment of the last `keep_s` seconds needs; the newest
    snapshot stays. By the owner alone, which uploads nothing meanwhile."""
    found = manifests(objects)
    starts = [each for each in found if each.made_at <= wall - keep_s]
    first = found.index(starts[-1]) if starts else 0
    gone, kept = found[:first], found[first:]
    if not kept:
        return Pruned()
    objects.remove([snapshot_name(each.epoch, each.lsn) for each in gone])
    # The one before stays: the next owner finds its number by the last object.
    end = journal_name(max(0, min(each.number for each in kept) - 1))
    owners = objects.list(OWNER)
    claims = _claims(objects, owners[-OWNERS_KEPT:])
    journal = [
        each.name for each in objects.list(JOURNAL) if each.name < end and each.name not in claims
    ]
    objects.remove(journal)
    named = {blob_name(each.sha256) for manifest in kept for each in manifest.files}
    blobs = [
        each.name
        for each in objects.list(BLOB)
        if each.name not in named and each.made_at <= wall - blob_grace_s
    ]
    objects.remove(blobs)
    cold = _needless_cold(objects, kept)
    objects.remove(cold)
    objects.remove([each.name for each in owners[:-OWNERS_KEPT]])
    objects.remove([each.name for each in objects.list(BEAT)[:-BEATS_KEPT]])  # of earlier owners
    leaves = [each.name for each in objects.list(TAKEOVER)]
    objects.remove([each for each in leaves if number_of(each) < number_of(end)])
    objects.remove_drafts(wall - blob_grace_s)
    return Pruned(len(gone), len(journal), len(blobs), len(cold))


def _needless_cold(objects: ObjectStore, kept: Sequence[Manifest]) -> list[str]:
    """The cold objects that no kept snapshot needs, and that are older than the newest one: the
    node may need later ones."""
    needed = {(each.epoch, each.number) for manifest in kept for each in manifest.cold}
    end = kept[-1].cold_next
    names = (each.name for each in objects.list(COLD))
    return [name for name in names if (key := cold_key(name)) < end and key not in needed]


def _claims(objects: ObjectStore, owners: Sequence[Listed]) -> set[str]:
    """The first journal objects of owners, which stay: the number that an earlier owner makes next
    is one of them, also if that was paused for longer than anything else is kept."""
    found = set()
    for each in owners:
        with suppress(NoObject):  # removed meanwhile
            found.add(journal_name(decode_owner(objects.get(each.name), each.name).number))
    return found

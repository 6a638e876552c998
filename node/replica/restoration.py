"""A replica read back: its content, its verification, and a data folder made of it.

The folder begins as the newest snapshot before the wanted moment. Then the changes of later journal
objects are written to that store, as a node would have: so the folder has a journal and files of
its own, and no trace of how far the original had compacted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec

from millpond.actors.store.changes import Change
from millpond.actors.store.journal.change_codec import BadChange, decode
from millpond.node.atomic_files import replace
from millpond.node.backup.manifest import is_inside
from millpond.node.backup.restore import restored_folder
from millpond.node.data_folder import OfflineStore
from millpond.node.replica.cold_objects import decode_cold_object
from millpond.node.replica.errors import BadReplica, NoObject
from millpond.node.replica.keys import (
    KeysCipher,
    NodeKeys,
    check_keys,
    keys_in,
    read_keys,
    write_files,
)
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import (
    BEAT,
    COLD,
    FORMAT,
    JOURNAL,
    KEYS,
    OWNER,
    Beat,
    FormatObject,
    JournalHeader,
    Manifest,
    Owner,
    SnapshotFile,
    blob_name,
    cold_name,
    decode_beat,
    decode_format,
    decode_journal_object,
    decode_owner,
    journal_name,
    number_of,
    records_of,
)
from millpond.node.replica.shipping import POSITION_FILE, ShippingPosition
from millpond.node.replica.snapshots import manifests

BATCH_BYTES, BATCH_OBJECTS = 2**22, 256
"""Journal objects are written together, up to about so much: each write waits for the disk."""
Progress = Callable[[int], None]
"""Called with the bytes that were read since."""


class Restored(msgspec.Struct, frozen=True):
    """The sources of a restored data folder: the snapshot, and the journal up to the moment
    `made_at` (seconds since 1970) and `lsn`, `records` records in `objects` objects.

    `is_cut`: later objects are there, but belong to a history whose first snapshot was not
    finished. `damage` names the journal object at which the restoration stopped, if it was to do
    so. `keys` are those of the node; None: the folder has none. `has_keys`: the replica has them.
    """

    manifest: Manifest
    lsn: int
    made_at: float
    objects: int
    records: int
    is_cut: bool
    damage: str = ""
    keys: NodeKeys | None = None
    has_keys: bool = False


class ReplicaStatus(msgspec.Struct, frozen=True):
    """A replica as its objects tell: `owner` and `beat` are the last ones (None: none); sizes in
    bytes. `keys_at` is the moment of the keys of the node; None: they are not in it. All cold
    objects count that are there."""

    format: FormatObject
    owner: Owner | None
    beat: Beat | None
    last: JournalHeader | None
    journal_objects: int
    journal_bytes: int
    snapshots: tuple[Manifest, ...]
    keys_at: float | None = None
    cold_objects: int = 0
    cold_bytes: int = 0


class Verified(msgspec.Struct, frozen=True):
    """The objects that a verification has read."""

    snapshots: int
    blobs: int
    journal_objects: int
    records: int
    bytes: int
    cold_objects: int


def read_status(objects: ObjectStore) -> ReplicaStatus:
    """The state of a replica, without reading its content. Raises BadReplica."""
    owners, beats, journal = objects.list(OWNER), objects.list(BEAT), objects.list(JOURNAL)
    last = owner = beat = None
    if journal:
        last, _ = _journal_object(objects, number_of(journal[-1].name))
    if owners:
        owner = decode_owner(objects.get(owners[-1].name), owners[-1].name)
    with suppress(NoObject):  # removed meanwhile
        if beats:
            beat = decode_beat(objects.get(beats[-1].name), beats[-1].name)
    keys = keys_in(objects)
    cold = objects.list(COLD)
    return ReplicaStatus(
        read_format(objects),
        owner,
        beat,
        last,
        len(journal),
        sum(each.size for each in journal),
        tuple(manifests(objects)),
        None if keys is None else check_keys(*keys),
        len(cold),
        sum(each.size for each in cold),
    )


def verify(objects: ObjectStore, progress: Progress) -> Verified:
    """Read every object that a restoration may need, and compare all hashes. Raises BadReplica,
    which names the first object that is missing or not what was written."""
    read_format(objects)
    snapshots = manifests(objects)
    blobs: dict[str, SnapshotFile] = {}
    for manifest in snapshots:
        blobs.update((each.sha256, each) for each in manifest.files)
    for each in blobs.values():
        _check_blob(objects, each, progress)
    cold = {(use.epoch, use.number) for manifest in snapshots for use in manifest.cold}
    cold_size = sum(_check_cold(objects, cold_name(*key), progress) for key in sorted(cold))
    names = [each.name for each in objects.list(JOURNAL)]
    start = journal_name(max(0, min((each.number for each in snapshots), default=0) - 1))
    claims = [each for each in names if each < start and snapshots]
    for name in claims:  # which keep earlier owners out, and follow nothing that is there
        _journal_object(objects, number_of(name))
    del names[: len(claims)]
    size = records = 0
    before: JournalHeader | None = None
    for number, name in enumerate(names, number_of(names[0]) if names else 0):
        if journal_name(number) != name:
            raise BadReplica(f"{journal_name(number)} is missing")
        header, body = _journal_object(objects, number)
        if before is not None and header.previous != before.digest:
            raise BadReplica(f"{name} does not follow {journal_name(before.number)}")
        records += sum(1 for _ in records_of(header, body))
        size += len(body)
        progress(len(body))
        before = header
    _check_reach(snapshots, before, names)
    keys = keys_in(objects)
    if keys is not None:
        check_keys(*keys)
    size += cold_size + sum(each.size for each in blobs.values())
    return Verified(len(snapshots), len(blobs), len(names), records, size, len(cold))


def _check_reach(
    snapshots: Sequence[Manifest], last: JournalHeader | None, names: list[str]
) -> None:
    """Each snapshot needs the journal from its number on."""
    for manifest in snapshots:
        first = journal_name(manifest.number)
        is_behind = last is not None and manifest.number > last.number + 1
        if is_behind or (names and first < names[0]):
            raise BadReplica(f"{first} is missing, which a snapshot of {manifest.lsn} needs")


def _check_blob(objects: ObjectStore, file: SnapshotFile, progress: Progress) -> None:
    name = blob_name(file.sha256)
    try:
        data = objects.get(name)
    except NoObject:
        raise BadReplica(f"{name} is missing, which has {file.path}") from None
    if len(data) != file.size or sha256(data).hexdigest() != file.sha256:
        raise BadReplica(f"{name} is damaged: it is not what was written")
    progress(len(data))


def _check_cold(objects: ObjectStore, name: str, progress: Progress) -> int:
    """The length of a cold object that is what was written."""
    try:
        data = objects.get(name)
    except NoObject:
        raise BadReplica(f"{name} is missing, which a snapshot needs") from None
    decode_cold_object(data, name)
    progress(len(data))
    return len(data)


def read_format(objects: ObjectStore) -> FormatObject:
    """The object `format` of a replica. Raises BadReplica."""
    try:
        return decode_format(objects.get(FORMAT))
    except NoObject:
        raise BadReplica("there is no replica at this address") from None


def _journal_object(objects: ObjectStore, number: int) -> tuple[JournalHeader, bytes]:
    name = journal_name(number)
    return decode_journal_object(objects.get(name), name)


class ReplicaRestoration:
    """A replica on its way into the data folder `target`, which is locked meanwhile. `at` is the
    wanted moment in seconds since 1970 (None: the last one); with `until_damage` a journal object
    that is missing or damaged is the end. With `keys` the folder gets the keys of the node, which
    are the last ones at any moment.

    Raises BadReplica, WrongKeysPassphrase, BadBackup for a folder that is in use otherwise,
    FolderInUse, OSError, and the errors of the object store; then what was written is removed.
    """

    def __init__(
        self,
        objects: ObjectStore,
        target: Path,
        at: float | None = None,
        *,
        until_damage: bool = False,
        keys: KeysCipher | None = None,
    ) -> None:
        self._cipher = keys
        self._until_damage = until_damage
        self._objects = objects
        self._target = target
        self._at = at
        self._damage = ""
        read_format(objects)
        self.manifest = self._choose(manifests(objects))

    def _choose(self, found: Sequence[Manifest]) -> Manifest:
        if not found:
            raise BadReplica("the replica has no snapshot yet: its node makes one at its start")
        at = self._at
        usable = [each for each in found if at is None or each.made_at <= at]
        if not usable:
            first = datetime.fromtimestamp(found[0].made_at, UTC)
            raise BadReplica(f"the first moment that can be restored is {first:%Y-%m-%dT%H:%M:%SZ}")
        return usable[-1]

    def run(self, progress: Progress, check: Callable[[], None]) -> Restored:
        """Restore; `check` looks at the whole folder before it counts."""
        manifest = self.manifest
        keys = None
        if self._cipher is not None:  # a wrong passphrase is told before anything is copied
            keys = read_keys(self._objects, self._cipher)
            if keys is None:
                raise BadReplica("its node shipped no keys: it ran without --replica-keys")
        with restored_folder(self._target):
            for file in manifest.files:
                self._fetch(file, progress)
            restored = self._replay(progress)
            position = ShippingPosition(manifest.node, history=manifest.history)
            replace(self._target / POSITION_FILE, msgspec.json.encode(position))
            if keys is not None:
                write_files(self._target, keys.files)
            check()
        has_keys = bool(self._objects.list(KEYS))
        return msgspec.structs.replace(restored, keys=keys, has_keys=has_keys)

    def restore_snapshot(self) -> None:
        """Make the folder of the snapshot alone; the caller goes on from there."""
        with restored_folder(self._target):
            for file in self.manifest.files:
                self._fetch(file, lambda size: None)

    def _fetch(self, file: SnapshotFile, progress: Progress) -> None:
        if not is_inside(file.path):
            raise BadReplica(f"{file.path!r} is no path within a data folder")
        target, name = self._target / file.path, blob_name(file.sha256)
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        digest = sha256()

        def wrote(data: bytes) -> None:
            digest.update(data)
            progress(len(data))

        try:
            self._objects.get_file(name, target, wrote)
        except NoObject:
            raise BadReplica(f"{name} is missing, which has {file.path}") from None
        if digest.hexdigest() != file.sha256:
            raise BadReplica(f"{name} is damaged: it is not what was written")
        target.chmod(0o600)

    def _replay(self, progress: Progress) -> Restored:
        """Write the changes of the journal behind the snapshot to the store in the folder."""
        manifest = self.manifest
        lsn, made_at, count, records = manifest.lsn, manifest.made_at, 0, 0
        store = OfflineStore(self._target)
        store.open()
        try:
            rest = JournalCursor(self._objects, manifest, self._at)
            writes: list[tuple[bytes, Sequence[Change]]] = []
            size = 0
            for header, body in self._until_end(rest):
                found = [*writes_of(header, body, rest.behind)]
                writes += found
                lsn, made_at = header.last_lsn, header.made_at
                count, records, size = count + 1, records + len(found), size + len(body)
                if size >= BATCH_BYTES or count % BATCH_OBJECTS == 0:
                    _store_all(store, writes)
                    writes, size = [], 0
                progress(len(body))
            _store_all(store, writes)
        finally:
            store.close()
        is_cut, damage = rest.is_cut, self._damage
        return Restored(manifest, lsn, made_at, count, records, is_cut, damage)

    def _until_end(self, rest: JournalCursor) -> Iterator[tuple[JournalHeader, bytes]]:
        try:
            for header, body in rest.objects():
                for _ in records_of(header, body):  # damage shows before anything is written
                    pass
                yield header, body
        except BadReplica as exc:
            if not self._until_damage:
                raise
            self._damage = str(exc)


class JournalCursor:
    """A place in the journal of a replica: behind a snapshot, and on from there in its history and
    in those that continue it, up to a moment. With `is_live` the end is not looked behind, since
    the owner goes on."""

    def __init__(
        self,
        objects: ObjectStore,
        manifest: Manifest,
        at: float | None = None,
        *,
        is_live: bool = False,
    ) -> None:
        self._objects = objects
        self._at = at
        self._is_live = is_live
        self.history, self.epoch = manifest.history, manifest.epoch
        self.number = manifest.number
        self.reached = self.behind = manifest.lsn
        """The lsn up to which everything was given, and that before the last object."""
        self.last: JournalHeader | None = None
        self.is_cut = False

    def objects(self) -> Iterator[tuple[JournalHeader, bytes]]:
        """The objects from here to the end that have records. Raises BadReplica for one that is
        missing or damaged in the middle."""
        while True:
            try:
                header, body = _journal_object(self._objects, self.number)
            except NoObject:
                if not self._is_live:
                    self._check_end(self.number)
                return
            if self._at is not None and header.made_at > self._at:
                return
            if self.last is not None and header.previous != self.last.digest:
                raise BadReplica(f"{journal_name(self.number)} does not follow the one before")
            if header.history != self.history and not header.continues:
                self.is_cut = header.history > self.history
                return
            if header.history != self.history:
                self.history, self.reached = header.history, header.after_lsn
            if header.after_lsn > self.reached:
                raise BadReplica(f"{journal_name(self.number)} begins behind {self.reached}")
            self.last, self.number, self.epoch = header, self.number + 1, header.epoch
            if header.last_lsn > self.reached:
                self.behind, self.reached = self.reached, header.last_lsn
                yield header, body

    def _check_end(self, number: int) -> None:
        """An object that is missing is the end, unless there are later ones."""
        later = self._objects.list(JOURNAL, journal_name(number))
        if later:
            raise BadReplica(f"{journal_name(number)} is missing, and {later[0].name} is there")


def writes_of(
    header: JournalHeader, body: bytes, after_lsn: int
) -> Iterator[tuple[bytes, Sequence[Change]]]:
    """The changes of a journal object behind an lsn, by name. Raises BadReplica."""
    for record in records_of(header, body):
        if record.lsn > after_lsn:
            try:
                yield record.name, [*decode(record.body)]
            except BadChange as exc:
                raise BadReplica(f"{journal_name(header.number)}: {exc}") from exc


def _store_all(store: OfflineStore, writes: Sequence[tuple[bytes, Sequence[Change]]]) -> None:
    """Write with one sync. Raises OSError."""
    fault = store.write_all(writes) if writes else None
    if fault is not None:
        reason = store.reason or fault.name
        raise OSError(f"the new data folder cannot be written: {reason}")

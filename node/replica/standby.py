"""A standby: a copy of a replica in a data folder, which follows the owner and takes its place.

The copy is in the folder `standby` of the data folder, so that nothing of the node's own is touched
until it takes over. It is made of a snapshot, and follows the journal. When the owner gives no sign
of life for so long, the standby reads to the end of the journal and makes the next object: from
then on the owner is out, and whatever it had acknowledged as replicated is in the copy. Then the
copy takes the place of the node's store, which stays in the folder `replaced`.
"""

from __future__ import annotations

import logging
import shutil
import socket
import sqlite3
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec

from millpond.actors.state.checkpoint_store import FOLDER as STATES
from millpond.actors.store.catalog_recovery import DAMAGED, JOURNAL, PARTITIONS
from millpond.actors.store.changes import Change
from millpond.actors.store.partitions.sqlite import Damaged
from millpond.node.atomic_files import replace, sync_folder
from millpond.node.clock_file import READING
from millpond.node.data_folder import RESTORING, FolderLock, OfflineStore
from millpond.node.replica.errors import (
    BadReplica,
    NoObject,
    ObjectExists,
    ObjectStoreAway,
    ObjectStoreRefuses,
    ReplicaError,
    WrongKeysPassphrase,
)
from millpond.node.replica.keys import REPLACED_FILES, KeysCipher, NodeKeys, read_keys, write_files
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import (
    BEAT,
    BEAT_S,
    FORMAT,
    FORMAT_VERSION,
    ID_BYTES,
    KEYS,
    SNAPSHOT,
    TAKEOVER,
    FormatObject,
    JournalHeader,
    Manifest,
    decode_beat,
    decode_format,
    decode_journal_object,
    decode_owner,
    encode_journal_object,
    encode_json,
    journal_name,
    owner_name,
    records_of,
    snapshot_name,
    standby_name,
    takeover_name,
)
from millpond.node.replica.ownership import Claimant, claim, last_header
from millpond.node.replica.restoration import (
    BATCH_BYTES,
    BATCH_OBJECTS,
    JournalCursor,
    ReplicaRestoration,
    writes_of,
)
from millpond.node.replica.shipping import ANSWER_S, POSITION_FILE, ShippingPosition
from millpond.node.replica.snapshots import manifests

log = logging.getLogger(__name__)

T = TypeVar("T")

CATALOGS = "catalogue."
COPY, REPLACED = "standby", "replaced"
STORE_NAMES = (JOURNAL, PARTITIONS, DAMAGED, STATES, READING, POSITION_FILE)
"""The files and folders of a store, besides those of the catalog. Everything else stays: its
access rules and what people keep there and, where the replica has no keys, the identity."""
INSTALLING = b"the earlier store is in its place\n"
"""The content of the file `RESTORING` once the copy is moved."""
LOOK_S, LOOK_S_MIN = 0.5, 0.1
TELL_S = 20.0
BASE_S = 60.0
"""A copy that needs cold objects is compared with the snapshots that there are so often."""
"""A standby tells of itself so often, as the owner removes what it has read."""
RETRY_S = 1.0
BEATS_MISSED = 3
"""The owner is dead when it missed so many beats, where that is longer than the takeover time."""
COPY_S_MAX = 86_400.0
"""A copy that takes longer is begun anew."""


class CopyFailed(ReplicaError):
    """The copy cannot be written: the disk of the standby is full, or fails."""


WAITS = (
    *(ObjectStoreAway, ObjectStoreRefuses, NoObject, BadReplica, CopyFailed),
    WrongKeysPassphrase,
)
"""A standby that has one of these errors goes on when it is over."""


class Standby:
    """Follows the replica in `objects`, for the data folder `folder`. `now` is a clock for spans,
    `wall` one for moments, in seconds. `keys` opens those of the node, which the folder gets with
    the store; None: the folder keeps its own."""

    def __init__(
        self,
        objects: ObjectStore,
        folder: Path,
        takeover_s: float,
        *,
        now: Callable[[], float],
        wall: Callable[[], float],
        entropy: Callable[[int], bytes],
        ready: Callable[[], None] = lambda: None,
        keys: KeysCipher | None = None,
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._copy = folder / COPY
        self._takeover_s = takeover_s
        self._now = now
        self._wall = wall
        self._entropy = entropy
        self._run = entropy(ID_BYTES)
        self._ready = ready
        self._keys = keys
        self._keys_epoch = ""
        """The epoch of the keys that were opened last."""
        self._has_looked = self._has_told_keys = False
        self._store: OfflineStore | None = None
        self._cursor: JournalCursor | None = None
        self._base: Manifest | None = None
        """The snapshot of the copy, if that needs cold objects."""
        self._based_at = 0.0
        self._history_min = 0
        """A copy is made of a snapshot of this history or a later one."""
        self._is_forced = False
        """The copy ends before a history without a snapshot, and an operator allows that."""
        self._threads = anyio.CapacityLimiter(4)
        self._sign: object = None
        self._owner_epoch, self._owner_url = 0, ""
        self._seen_at = self._looked_at = now()
        self._every_s = BEAT_S
        self._told_at = -TELL_S
        self._error = ""

    async def run(self) -> None:
        """Return when the node may start on the folder, as the owner. Raises OSError, FolderInUse,
        WrongKeysPassphrase at the begin."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = FolderLock(self._folder, is_restoring=True)
        try:
            await self._follow()
        finally:
            self._close()
            lock.release()

    async def _follow(self) -> None:
        is_copied = False
        while True:
            began = self._now()
            try:
                if await self._in_thread(self._look):
                    is_copied = False
                self._has_looked = True
                self._know()
                if self._is_silent and await self._in_thread(self._take_over):
                    return
                if not is_copied and self._store is not None:
                    is_copied = True
                    log.info("standby follows: number=%d", self._number)
                    self._ready()
            except WAITS as exc:
                if isinstance(exc, WrongKeysPassphrase) and not self._has_looked:
                    raise
                log.warning("standby cannot follow: error=%s", exc)
                self._error = str(exc)
                await anyio.sleep(RETRY_S)
            pause_s = max(LOOK_S_MIN, min(LOOK_S, self._takeover_s / 8))
            await anyio.sleep(pause_s)
            if self._now() - began > max(self._takeover_s / 2, 2 * ANSWER_S):
                self._heard()  # this process was paused, and the owner perhaps not

    @property
    def state(self) -> str:
        """Its state, in words."""
        if self._error:
            return f"cannot follow: {self._error}"
        if self._store is None and self._history_min:
            return (
                "waits for a snapshot of the owner, which began a new history: `millpond replica "
                "takeover` lets it go on without that"
            )
        if self._store is None:
            return "has no copy of a snapshot yet"
        silent_s = self._now() - self._seen_at
        return f"follows up to object {self._number}; a sign of the owner {silent_s:.1f} s ago"

    @property
    def owner_url(self) -> str:
        """The public address of the owner's HTTP listener; empty: it has none, or gives no sign of
        life."""
        return "" if self._error or self._is_silent else self._owner_url

    @property
    def _number(self) -> int:
        return 0 if self._cursor is None else self._cursor.number

    # The owner.

    def _heard(self) -> None:
        self._seen_at = self._now()

    def _know(self) -> None:
        """A look has succeeded. The time since the one before does not count if one failed between
        them: nothing is known of the owner where the object store does not answer."""
        now = self._now()
        if self._error:
            self._seen_at = min(now, self._seen_at + now - self._looked_at)
        self._looked_at, self._error = now, ""

    @property
    def _is_silent(self) -> bool:
        limit_s = max(self._takeover_s, BEATS_MISSED * self._every_s)
        return self._now() - self._seen_at >= limit_s

    def _look(self) -> bool:
        """Follow the journal, and look for signs of life. True: the copy was begun anew."""
        if self._now() - self._told_at >= TELL_S:
            self._told_at = self._now()
            try:
                self._objects.create(standby_name(self._run, self._takeover_s), b"")
            except ObjectExists:
                pass
            self._look_for_keys()
        if self._is_outlived():
            log.info("standby begins anew: the snapshot of its copy was removed")
            self._close()
        is_new = self._store is None and self._begin()
        if self._store is not None:
            self._apply()
        self._look_for_owner()
        beats = self._objects.list(BEAT)
        sign = (self._number, beats[-1].name if beats else "")
        if sign != self._sign:
            self._sign = sign
            self._heard()
            if beats:
                try:
                    self._every_s = decode_beat(
                        self._objects.get(beats[-1].name), beats[-1].name
                    ).every_s
                except NoObject:
                    pass  # removed meanwhile
        return is_new

    def _look_for_owner(self) -> None:
        epoch = 0 if self._cursor is None else self._cursor.epoch
        if epoch == self._owner_epoch:
            return
        url, name = "", owner_name(epoch)
        with suppress(NoObject):
            url = decode_owner(self._objects.get(name), name).url if epoch else ""
        self._owner_url, self._owner_epoch = url, epoch

    def _look_for_keys(self) -> None:
        """Raises WrongKeysPassphrase, before the keys are needed: each owner has another salt."""
        names = [each.name for each in self._objects.list(KEYS)]
        epoch = names[-1].partition("-")[0] if names else ""
        if epoch == self._keys_epoch and (names or self._has_told_keys):
            return
        if self._keys is None and names:
            log.warning(
                "the replica has the keys of its node: a takeover without --replica-keys is "
                "another peer"
            )
        elif self._keys is not None and not names:
            log.warning("the replica has no keys of its node: a takeover is another peer")
        elif self._keys is not None:
            read_keys(self._objects, self._keys)
        self._keys_epoch, self._has_told_keys = epoch, True

    # The copy.

    def _begin(self) -> bool:
        """Make a copy of the newest snapshot. False: there is none yet."""
        if not self._objects.list(SNAPSHOT):
            return False
        restoration = ReplicaRestoration(self._objects, self._copy)
        manifest = restoration.manifest
        is_needed = manifest.history < self._history_min
        if is_needed and not self._may_go_on_without(self._history_min - 1):
            return False  # the owner uploads the one that is needed
        self._close()
        shutil.rmtree(self._copy, ignore_errors=True)
        try:
            restoration.restore_snapshot()
            store = OfflineStore(self._copy)
            store.open()
        except (OSError, sqlite3.Error, Damaged) as exc:
            raise CopyFailed(f"the copy of a snapshot cannot be written: {exc}") from exc
        self._store = store
        self._cursor = JournalCursor(self._objects, manifest, is_live=True)
        self._base = manifest if manifest.cold else None
        self._based_at = self._now()
        return True

    def _is_outlived(self) -> bool:
        """True: the snapshot of the copy is gone, and cold objects that the copy needs may be gone
        with it."""
        base = self._base
        if self._store is None or base is None or self._now() - self._based_at < BASE_S:
            return False
        self._based_at = self._now()
        name = snapshot_name(base.epoch, base.lsn)
        return name not in {each.name for each in self._objects.list(SNAPSHOT)}

    def _apply(self) -> None:
        """Write the objects that are new to the copy, many at once: each write waits for the
        disk."""
        store, cursor = self._store, self._cursor
        assert cursor is not None
        writes: list[tuple[bytes, Sequence[Change]]] = []
        size = count = 0
        try:
            for header, body in cursor.objects():
                for _ in records_of(header, body):  # damage shows before anything is written
                    pass
                writes += writes_of(header, body, cursor.behind)
                size, count = size + len(body), count + 1
                if size >= BATCH_BYTES or count >= BATCH_OBJECTS:
                    self._write(writes)
                    writes, size, count = [], 0, 0
        finally:  # the cursor is behind these, also if it goes no further
            if self._store is store:
                self._write(writes)
        self._is_forced = cursor.is_cut and self._may_go_on_without(cursor.history)
        if cursor.is_cut and not self._is_forced:
            log.warning("standby begins anew: the journal of the owner has a gap")
            self._history_min = cursor.history + 1
            self._close()

    def _may_go_on_without(self, history: int) -> bool:
        """True: an operator allows a takeover at the end of this history, without the later one
        that has no snapshot."""
        leaves = {each.name for each in self._objects.list(TAKEOVER)}
        last = last_header(self._objects, self._number) if leaves else None
        # The last one may be of this process, which was told nothing of it.
        is_allowed = last is not None and (
            takeover_name(last.number) in leaves or last.run == self._run
        )
        return is_allowed and not self._has_snapshot_behind(history)

    def _has_snapshot_behind(self, history: int) -> bool:
        found = manifests(self._objects)
        return bool(found) and found[-1].history > history

    def _write(self, writes: Sequence[tuple[bytes, Sequence[Change]]]) -> None:
        store = self._store
        assert store is not None
        fault = store.write_all(writes) if writes else None
        if fault is not None:
            reason = store.reason or fault.name
            self._close()
            raise CopyFailed(f"the copy cannot be written: {reason}")

    def _close(self) -> None:
        store, self._store, self._cursor = self._store, None, None
        if store is not None:
            store.close()

    # Taking over.

    def _take_over(self) -> bool:
        """Keep the owner out, and put the copy in the place of the store. False: the owner lives,
        or another standby was faster."""
        if self._is_own():
            log.warning("standby starts: nobody has shipped since this folder did")
            return True
        try:
            node = decode_format(self._objects.get(FORMAT)).node
        except NoObject:
            if self._store is not None:  # perhaps a folder of another machine that is not mounted
                raise ObjectStoreAway("the replica that was followed is not there") from None
            return self._found()
        if self._store is None or self._cursor is None:
            return False  # without a snapshot there is nothing to go on from
        store, cursor = self._store, self._cursor
        claimant = Claimant(node, self._run, socket.gethostname())
        found = claim(self._objects, claimant, cursor.number, self._wall())
        self._apply()
        is_at_end = self._is_forced or cursor.number == found.number
        if self._cursor is None or not is_at_end:
            if self._cursor is not None and cursor.number < found.number:
                log.warning("standby begins anew: %s is gone", journal_name(cursor.number))
                self._close()
            self._heard()
            return False
        lsn, is_forced = store.stored_lsn, self._is_forced
        history = cursor.history if found.last is None else found.last.history
        header = JournalHeader(
            version=FORMAT_VERSION,
            number=found.number,
            epoch=found.epoch,
            history=history + 1,
            node=node,
            run=self._run,
            made_at=self._wall(),
            after_lsn=lsn,
            last_lsn=lsn,
            salt=0,
            previous=b"" if found.last is None else found.last.digest,
            size=0,
            sha256=sha256().digest(),
            continues=not is_forced,
        )
        if not self._made(header):
            self._heard()
            return False
        if is_forced and self._has_snapshot_behind(cursor.history):
            # The owner came back, and may have acknowledged what that has. Nothing is in the object
            # that was just made, so the next takeover goes on without it.
            self._allow_takeover(header.number)
            self._heard()
            return False
        keys = None if self._keys is None else read_keys(self._objects, self._keys)
        log.warning("standby takes over: epoch=%d number=%d", found.epoch, found.number)
        self._close()
        position = ShippingPosition(node, header.number + 1, header.history, lsn)
        if is_forced:  # its history begins with a snapshot
            position = msgspec.structs.replace(position, runs=(self._run,))
        else:
            position = msgspec.structs.replace(position, mark=header.digest)
        replace(self._copy / POSITION_FILE, msgspec.json.encode(position))
        if keys is not None:
            write_files(self._copy, keys.files)
        self._install(_names_of(keys))
        return True

    def _allow_takeover(self, number: int) -> None:
        with suppress(ObjectExists):
            self._objects.create(takeover_name(number), b"")
        self._close()

    def _made(self, header: JournalHeader) -> bool:
        name = journal_name(header.number)
        try:
            self._objects.create(name, encode_journal_object(header, b""))
        except ObjectExists:
            there, _ = decode_journal_object(self._objects.get(name), name)
            return there == header  # of an attempt whose answer was lost
        return True

    def _is_own(self) -> bool:
        """True: the node's own store is what was shipped last, and has all of it; or the replica is
        the node's, and nobody has shipped to it."""
        position = self._own_position()
        if position is None or (self._folder / RESTORING).exists():
            return False
        last = last_header(self._objects, position.number)
        if last is None:
            return self._has_founded(position)
        return last.digest == position.mark or last.run in (position.run, *position.runs)

    def _own_position(self) -> ShippingPosition | None:
        try:
            data = (self._folder / POSITION_FILE).read_bytes()
        except FileNotFoundError:
            return None
        try:
            return msgspec.json.decode(data, type=ShippingPosition)
        except msgspec.MsgspecError:
            return None

    def _has_founded(self, position: ShippingPosition) -> bool:
        try:
            return decode_format(self._objects.get(FORMAT)).node == position.node
        except NoObject:
            return False

    def _found(self) -> bool:
        """Begin a replica where there is none. False: another standby did."""
        position = self._own_position() or ShippingPosition(self._entropy(ID_BYTES))
        # Before the replica has the id: nobody else could go on with that.
        replace(self._folder / POSITION_FILE, msgspec.json.encode(position))
        try:
            format_ = FormatObject(FORMAT_VERSION, position.node, self._wall())
            self._objects.create(FORMAT, encode_json(format_))
        except ObjectExists:
            return self._has_founded(position)
        return True

    def _install(self, keys: Collection[str]) -> None:
        """Put the copy in the place of the store, and of files of these names. A node does not
        start on the folder before that is done; a standby that was killed here begins anew, and the
        earlier store stays."""
        folder, replaced, mark = self._folder, self._folder / REPLACED, self._folder / RESTORING
        begun = mark.read_bytes() if mark.exists() else None

        def is_moved(path: Path) -> bool:
            return _is_of_store(path.name) or path.name in keys

        theirs = [each for each in folder.iterdir() if is_moved(each)]
        if begun is None and theirs:
            shutil.rmtree(replaced, ignore_errors=True)
        replace(mark, begun or b"")
        for each in theirs:
            if begun == INSTALLING:
                _remove(each)  # of a copy that was not moved to the end
                continue
            replaced.mkdir(mode=0o700, exist_ok=True)
            _remove(replaced / each.name)
            each.rename(replaced / each.name)
        sync_folder(folder)
        replace(mark, INSTALLING)
        for each in self._copy.iterdir():
            if is_moved(each):
                each.rename(folder / each.name)
        sync_folder(folder)
        mark.unlink()
        sync_folder(folder)
        shutil.rmtree(self._copy, ignore_errors=True)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            with anyio.fail_after(COPY_S_MAX):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=self._threads
                )
        except TimeoutError as exc:
            raise ObjectStoreAway(f"no answer within {COPY_S_MAX:.0f} s") from exc


def _is_of_store(name: str) -> bool:
    return name in STORE_NAMES or name.startswith(CATALOGS)


def _names_of(keys: NodeKeys | None) -> frozenset[str]:
    """The names in the data folder that keys take the place of."""
    if keys is None:
        return frozenset()
    return frozenset((*REPLACED_FILES, *(each.partition("/")[0] for each in keys.files)))


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

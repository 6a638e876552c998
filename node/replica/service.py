"""The replica of a running node: shipping, beats, snapshots and the removal of old objects, from
the moment that the store is open until the node stops."""

from __future__ import annotations

import logging
import socket
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.store.catalog_recovery import PARTITIONS
from millpond.actors.store.changes import ColdChunk
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.partitions.cold_logs import cold_logs, cold_text
from millpond.actors.store.recovery import Recovered
from millpond.actors.store.snapshot import SnapshotLost
from millpond.node.atomic_files import replace
from millpond.node.backup.snapshots import take_snapshot
from millpond.node.peers.data_key import read_passphrase
from millpond.node.replica.cold import ColdStreams
from millpond.node.replica.cold_objects import ColdChunks
from millpond.node.replica.errors import (
    BadReplica,
    ObjectStoreAway,
    OtherReplica,
    ReplicaError,
    Superseded,
)
from millpond.node.replica.interface import (
    ReplicaInfo,
    ReplicaReply,
    ReplicaSettings,
    SnapshotReply,
    SnapshotRequest,
    SnapshotRow,
    SnapshotState,
)
from millpond.node.replica.keys import KeysCipher
from millpond.node.replica.keys_shipping import KeysShipper
from millpond.node.replica.object_store import open_object_store
from millpond.node.replica.objects import ID_BYTES, Manifest, snapshot_name
from millpond.node.replica.ownership import Claimant
from millpond.node.replica.shipping import (
    ANSWER_S,
    POSITION_FILE,
    RETRIES_COUNTED,
    Opened,
    Shipper,
    ShippingPosition,
    ShippingState,
)
from millpond.node.replica.snapshots import (
    SnapshotFacts,
    SnapshotPlace,
    SnapshotUpload,
    manifests,
    prune,
)
from millpond.transports.http.tails.interface import ReplicaSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

POSITION_S = 5.0
"""The position is stored so often. Everything after it is found again by the last object."""
CLAIM_LOOK_S = 0.02
SNAPSHOT_LOOK_S = 1.0
SNAPSHOT_RETRY_S, SNAPSHOT_RETRY_S_MAX = 1.0, 30.0
"""A snapshot that failed is tried again after so long, and then after twice as long each time."""
UPLOAD_BYTES_S_MIN = 2**18
UPLOAD_LOOK_S = 1.0
"""A file that is slower than that, after `ANSWER_S`, is given up. It is looked at so often."""
PRUNE_S = 3600.0
THREADS_MAX = 4
SNAPSHOTS_SHOWN = 50
FAILURES = (SnapshotLost, OSError, sqlite3.Error, ReplicaError)
"""Those of a snapshot. A damaged manifest among them: the node serves, and ships its journal."""


class ReplicaService:
    """The replica of a node with this store. `facts` gives its facts for a manifest; `snapshots` is
    held by whoever makes a snapshot of the store; `local_bytes_max` tells how many bytes of a log
    stay in its file (0: all). Raises BadAddress, DataKeyError."""

    def __init__(
        self,
        store: DurableStore,
        settings: ReplicaSettings,
        *,
        facts: Callable[[], SnapshotFacts],
        now: Callable[[], float],
        wall: Callable[[], float],
        rng: Random,
        entropy: Callable[[int], bytes],
        snapshots: anyio.Lock,
        local_bytes_max: Callable[[bytes], int] = lambda name: 0,
    ) -> None:
        self._store = store
        self._settings = settings
        self._facts = facts
        self._now = now
        self._wall = wall
        self._entropy = entropy
        self._snapshots = snapshots
        self._path = Path(store.folder) / POSITION_FILE
        self._objects = open_object_store(settings.url)
        self._stored: ShippingPosition | None = None
        self._threads = anyio.CapacityLimiter(THREADS_MAX)
        """Its own: requests that hang take no thread from the rest of the node."""
        self._snapshot_at = 0.0
        self._snapshot_bytes = self._snapshot_count = 0
        self._snapshot_history = -1
        self._snapshot_name = ""
        self._snapshot_rows: list[SnapshotRow] = []
        """The newest snapshots, the oldest first."""
        self._begun = self._wanted = 0
        """The number of the attempt that began last, and of the one that was asked for."""
        self._asked = anyio.Event()
        self._made = self._failed = SnapshotReply(SnapshotState.WAITING)
        """The attempts that were made and that failed last."""
        position = self._read_position()
        run, host = entropy(ID_BYTES), socket.gethostname()
        claimant = Claimant(position.node, run, host, settings.public_url)
        self.shipper = Shipper(
            self._objects,
            claimant,
            position,
            lag_bytes_max=settings.lag_bytes_max,
            now=now,
            wall=wall,
            rng=rng,
            release=store.release_commits,
            refuse=store.refuse_unreplicated,
            ack_s=settings.ack_s,
            check_new=self._check_new,
        )
        self.cold = ColdStreams(
            store,
            self._objects,
            self.shipper,
            limit=local_bytes_max,
            cache_bytes_max=settings.cold_cache_bytes_max,
            now=now,
            wall=wall,
        )
        self._keys: KeysShipper | None = None
        if settings.keys:
            cipher = KeysCipher(read_passphrase(settings.keys), entropy)
            folder = Path(store.folder)
            self._keys = KeysShipper(self._objects, folder, cipher, self.shipper, wall)

    def _check_new(self) -> None:
        """A new replica has no cold objects. Raises OtherReplica for a folder that needs some."""
        if text := cold_text(cold_logs(Path(self._store.folder) / PARTITIONS)):
            raise OtherReplica(
                f"there is no replica at this address, and {text} are in the one of this data "
                "folder alone: serve it with that address, or copy that replica here"
            )

    def _read_position(self) -> ShippingPosition:
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=ShippingPosition)
        except FileNotFoundError:
            return ShippingPosition(self._entropy(ID_BYTES))
        except msgspec.MsgspecError as exc:
            raise BadReplica(f"{self._path} is damaged: {exc}; remove it to begin anew") from exc

    @property
    def suffix_after(self) -> int | None:
        """The lsn behind which the store returns its journal when it is opened; None: no position
        is stored."""
        return self.shipper.position.lsn if self._path.exists() else None

    def open(self, found: Recovered) -> None:
        """The store is open."""
        self._store.follower = self.shipper
        self._store.read_cold_with(self.cold)
        self.shipper.open(Opened(self._store.stored_lsn, self._store.salt, found.suffix))

    def start(self, tasks: TaskGroup) -> None:
        """Ship from now on."""
        tasks.start_soon(self._run)

    async def _run(self) -> None:
        """Raises Superseded, OtherReplica: the node ends."""
        await self._keep_ids()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.shipper.run)
            tasks.start_soon(self.shipper.beat)
            tasks.start_soon(self.shipper.watch)
            tasks.start_soon(self._keep_position)
            tasks.start_soon(self._make_snapshots)
            tasks.start_soon(self.cold.run)
            if self._keys is not None:
                tasks.start_soon(self._keys.run)

    async def settled(self) -> None:
        """Wait until what is stored can be replicated, or for as long as an acknowledgement may
        take."""
        with anyio.move_on_after(self._settings.ack_s):
            await self.shipper.is_settled.wait()

    async def finish(self) -> None:
        """Ship what was stored so far, if that takes no longer than a few seconds."""
        await self.shipper.finish()
        if self._keys is not None:
            await self._keys.finish()

    def close(self) -> None:
        """Store the position; in any thread."""
        try:
            self._store_position()
        except OSError as exc:
            log.warning("position of the replica not stored: error=%s", exc)

    def cold_reader(self) -> Callable[[bytes, ColdChunk], bytes]:
        """Reads the data of cold chunks in their order, in any thread."""
        return ColdChunks(self._objects).data

    @property
    def info(self) -> ReplicaInfo:
        """The replica now."""
        shipper, claim = self.shipper, self.shipper.claim
        return ReplicaInfo(
            url=self._settings.url,
            state=shipper.state,
            error=shipper.error,
            epoch=0 if claim is None else claim.epoch,
            number=shipper.position.number,
            lsn=shipper.position.lsn,
            lag_bytes=shipper.lag_bytes,
            lag_s=shipper.lag_s,
            objects=shipper.objects_made,
            bytes=shipper.bytes_made,
            breaks=shipper.breaks,
            snapshots=self._snapshot_count,
            snapshot_at=self._snapshot_at,
            is_refusing=shipper.is_refusing,
            keys_at=0.0 if self._keys is None else self._keys.made_at,
            cold=self.cold.info,
        )

    @property
    def page(self) -> ReplicaReply:
        """The replica with its owner, snapshots and standbys, as far as this node knows them."""
        settings, shipper = self._settings, self.shipper
        return ReplicaReply(
            info=self.info,
            host=socket.gethostname(),
            public_url=settings.public_url,
            owner_since=shipper.owner_since,
            has_keys=self._keys is not None,
            keep_s=settings.keep_s,
            snapshot_count=self._snapshot_count,
            snapshots=tuple(reversed(self._snapshot_rows)),
            standbys=tuple(shipper.standbys),
        )

    def snapshot(self) -> ReplicaSnapshot:
        """The newest snapshot of the present history: one of another may have other records under
        the same sequences."""
        is_present = self._snapshot_history == self.shipper.position.history
        is_owner = self.shipper.claim is not None
        name = self._snapshot_name if is_owner and is_present else ""
        return ReplicaSnapshot(self._settings.url, name)

    # The position.

    async def _keep_ids(self) -> None:
        """Store the ids of the node and of this run before the replica has them: another node would
        be refused, and by its run a claim is known again."""
        first = msgspec.json.encode(self.shipper.position)
        while True:
            try:
                await _in_thread(partial(replace, self._path, first))
                return
            except OSError as exc:
                log.warning("position of the replica not stored: error=%s", exc)
                await anyio.sleep(POSITION_S)

    async def _keep_position(self) -> None:
        """Store the position now and then, and at once after the first object of a claim."""
        claimed = None
        while True:
            await anyio.sleep(SNAPSHOT_LOOK_S if claimed is None else POSITION_S)
            claim = self.shipper.claim
            if claim is not None and self.shipper.state is ShippingState.SHIPPING:
                claimed = claim
                try:
                    await anyio.to_thread.run_sync(self._store_position, abandon_on_cancel=True)
                except OSError as exc:
                    log.warning("position of the replica not stored: error=%s", exc)

    def _store_position(self) -> None:
        position = self.shipper.position
        if self.shipper.claim is not None and position != self._stored:
            replace(self._path, msgspec.json.encode(position))
            self._stored = position

    # Snapshots.

    def answer(self, request: SnapshotRequest) -> SnapshotReply:
        """A snapshot at the request of a command. Requests that come before one begins share it."""
        url, number = self._settings.url, request.number
        if number < 1:
            if error := self.shipper.error:
                return SnapshotReply(SnapshotState.FAILED, error=error, url=url)
            number = self._wanted = self._begun + 1
            self._asked.set()
        if self._made.number >= number:
            return self._made
        if self._failed.number >= number:
            return self._failed
        state = SnapshotState.COPYING if self._begun >= number else SnapshotState.WAITING
        return SnapshotReply(state, number, self.shipper.error, url)

    async def _make_snapshots(self) -> None:
        """Make a snapshot of each history at its begin, and when the journal behind the last one
        has become long or old."""
        failures = 0
        while True:
            await self._pause(CLAIM_LOOK_S if self._snapshot_history < 0 else SNAPSHOT_LOOK_S)
            if self.shipper.state is not ShippingState.SHIPPING:
                continue
            begun = self._begun
            try:
                if self._snapshot_history < 0:
                    await self._look_for_snapshots()
                if self._is_snapshot_due():
                    await self._make_snapshot()
                    failures = 0
            except Superseded:
                raise
            except FAILURES as exc:
                log.warning("no snapshot for the replica: error=%s", exc)
                if self._begun == begun:
                    self._begun = max(begun, self._wanted)
                url = self._settings.url
                self._failed = SnapshotReply(SnapshotState.FAILED, self._begun, str(exc), url)
                await self._pause(min(SNAPSHOT_RETRY_S * 2**failures, SNAPSHOT_RETRY_S_MAX))
                failures = min(failures + 1, RETRIES_COUNTED)

    async def _pause(self, seconds: float) -> None:
        """Until then, or until somebody asks for a snapshot."""
        with anyio.move_on_after(seconds):
            await self._asked.wait()
            self._asked = anyio.Event()

    async def _look_for_snapshots(self) -> None:
        found = await self._answered(partial(manifests, self._objects), ANSWER_S)
        self._snapshot_history = 0
        if found:
            self._snapshot_history = found[-1].history
            self._snapshot_at = found[-1].made_at
            self._snapshot_name = snapshot_name(found[-1].epoch, found[-1].lsn)
            self.shipper.has_snapshot(found[-1].history)
        self._snapshot_count = len(found)
        self._snapshot_rows = [_row(each) for each in found[-SNAPSHOTS_SHOWN:]]

    def _is_snapshot_due(self) -> bool:
        settings, shipper = self._settings, self.shipper
        return (
            self._wanted > self._begun
            or self._snapshot_history != shipper.position.history
            or shipper.bytes_made - self._snapshot_bytes >= settings.snapshot_bytes
            or not 0 <= self._wall() - self._snapshot_at < settings.snapshot_every_s
        )

    async def _make_snapshot(self) -> None:
        async with self._snapshots:
            await self._upload_snapshot()
        keep = partial(prune, self._objects, self._settings.keep_s, self._wall())
        pruned = await self._answered(keep, PRUNE_S)
        if pruned.snapshots or pruned.journal or pruned.cold:
            text = "replica pruned: snapshots=%d journal=%d blobs=%d cold=%d"
            log.info(text, pruned.snapshots, pruned.journal, pruned.blobs, pruned.cold)
        self._snapshot_count -= pruned.snapshots
        self._snapshot_rows = self._snapshot_rows[-self._snapshot_count :]

    async def _upload_snapshot(self) -> None:
        store, shipper = self._store, self.shipper
        claim, position = shipper.claim, shipper.position
        if claim is None:
            return
        place = SnapshotPlace(
            position.node,
            claim.epoch,
            position.history,
            position.number,
            self.cold.unsettled,
        )
        began_bytes = shipper.bytes_made
        self._begun += 1
        number = self._begun
        upload = SnapshotUpload(store, self._objects)
        try:
            await self._uploaded(upload, upload.prepare)
            try:
                snapshot = await take_snapshot(store)
                facts = self._facts()
                await self._uploaded(upload, partial(upload.copy_segments, snapshot))
                store.release_segments()
                await self._uploaded(upload, partial(upload.copy_files, snapshot))
            finally:
                store.end_snapshot()
            if shipper.claim is not claim:
                raise SnapshotLost("the replica was claimed anew meanwhile")
            name = await self._uploaded(upload, partial(upload.finish, place, facts, snapshot))
        finally:
            upload.is_given_up = True
            await anyio.to_thread.run_sync(upload.discard, abandon_on_cancel=True)
        if self._snapshot_history != place.history:
            # A takeover that was forced goes on without a history that has no snapshot. It looks
            # for one once more after its first object: one of the two sees the other.
            await shipper.check_owner()
        shipper.has_snapshot(place.history)
        self._snapshot_at, self._snapshot_name = facts.made_at, name
        self._snapshot_bytes, self._snapshot_history = began_bytes, place.history
        self._snapshot_count += upload.is_new
        if upload.is_new and upload.manifest is not None:
            rows = [*self._snapshot_rows, _row(upload.manifest)]
            self._snapshot_rows = rows[-SNAPSHOTS_SHOWN:]
        size, url = upload.bytes_uploaded, self._settings.url
        self._made = SnapshotReply(SnapshotState.MADE, number, "", url, name, facts.made_at, size)
        log.info("replica snapshot: name=%s bytes=%d", name, upload.bytes_uploaded)

    async def _uploaded(self, upload: SnapshotUpload, work: Callable[[], T]) -> T:
        """Do a part of the upload, unless no file of it gets anywhere for too long. The thread of
        one that was given up goes on until its request returns."""
        failure: Exception | None = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                seen, left_s = -1, 0.0
                while True:
                    if upload.steps != seen:
                        seen = upload.steps
                        left_s = ANSWER_S + upload.step_bytes / UPLOAD_BYTES_S_MIN
                    elif left_s <= 0:
                        upload.is_given_up = True
                        tasks.cancel_scope.cancel()
                        return
                    pause_s = min(UPLOAD_LOOK_S, ANSWER_S)
                    await anyio.sleep(pause_s)
                    left_s -= pause_s

            tasks.start_soon(watch)
            try:
                return await self._threaded(work)
            except FAILURES as exc:  # as it is, in no group
                failure = exc
            finally:
                tasks.cancel_scope.cancel()
        raise failure or ObjectStoreAway("the upload of a snapshot gets nowhere")

    async def _threaded(self, work: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads)

    async def _answered(self, work: Callable[[], T], limit_s: float) -> T:
        try:
            with anyio.fail_after(limit_s):
                return await self._threaded(work)
        except TimeoutError as exc:
            raise ObjectStoreAway(f"no answer within {limit_s:.0f} s") from exc


def _row(manifest: Manifest) -> SnapshotRow:
    return SnapshotRow(
        manifest.made_at, manifest.lsn, manifest.size, manifest.messages, manifest.streams
    )


_in_thread = partial(anyio.to_thread.run_sync, abandon_on_cancel=True)

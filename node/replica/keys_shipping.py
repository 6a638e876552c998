"""The shipping of a node's keys to its replica: as a whole, within about a second of a change.

Keys are shipped behind the journal that they belong to. A key that was destroyed because a message
is in its channel is not gone from the replica before the message is in its channel there.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec

from millpond.node.replica.errors import ObjectExists, ObjectStoreAway, ReplicaError
from millpond.node.replica.keys import KeysCipher, NodeKeys, read_files, signature
from millpond.node.replica.object_store import ObjectStore
from millpond.node.replica.objects import KEYS, keys_name
from millpond.node.replica.shipping import ANSWER_S, FINISH_S, Shipper, ShippingState

log = logging.getLogger(__name__)

T = TypeVar("T")

KEYS_S, FIRST_KEYS_S = 1.0, 0.05
"""Keys are looked at so often, and so often until the first ones of a claim are shipped."""
KEYS_RETRY_S = 5.0
KEYS_BYTES_S = 2**20
"""Large keys that change all the time are shipped no faster than this on average."""
BEHIND_S = 0.05


class KeysShipper:
    """Ships the keys in `folder` while `shipper` owns the replica."""

    def __init__(
        self,
        objects: ObjectStore,
        folder: Path,
        cipher: KeysCipher,
        shipper: Shipper,
        wall: Callable[[], float],
    ) -> None:
        self._objects = objects
        self._folder = folder
        self._cipher = cipher
        self._shipper = shipper
        self._wall = wall
        self._threads = anyio.CapacityLimiter(1)
        self._turn = anyio.Lock()
        self._signature: object = None
        self._is_settled = False
        """The files were read once more behind their last change."""
        self._digest = b""
        self._epoch = self._count = 0
        self._is_failing = False
        self.size = 0
        self.made_at = 0.0
        """The moment of the last keys that were shipped; 0: none were."""

    async def run(self) -> None:
        """Ship what has changed, and go on."""
        while True:
            if not await self._try_to_ship():
                await anyio.sleep(KEYS_RETRY_S)
            elif not self.made_at:
                await anyio.sleep(FIRST_KEYS_S)
            else:
                await anyio.sleep(max(KEYS_S, self.size / KEYS_BYTES_S))

    async def finish(self) -> None:
        """Ship the last changes, unless that takes longer than a few seconds."""
        with anyio.move_on_after(FINISH_S):
            await self._try_to_ship()

    async def _try_to_ship(self) -> bool:
        try:
            async with self._turn:
                await self._ship()
        except (OSError, sqlite3.Error, ReplicaError) as exc:
            if not self._is_failing:
                log.warning("keys not shipped: error=%s", exc)
            self._is_failing = True
            return False
        self._is_failing = False
        return True

    async def _ship(self) -> None:
        shipper = self._shipper
        claim = shipper.claim
        # Not before the first object of a claim is there, which keeps all others out.
        if claim is None or shipper.state is not ShippingState.SHIPPING:
            return
        found = await self._in_thread(partial(self._read, claim.epoch))
        if found is None:
            return
        lsn = shipper.taken_lsn
        while shipper.shipped_lsn < lsn:
            if shipper.claim is not claim:
                return
            await anyio.sleep(BEHIND_S)
        if shipper.claim is claim:
            await self._in_thread(partial(self._put, claim.epoch, *found))

    def _read(self, epoch: int) -> tuple[dict[str, bytes], bytes] | None:
        """The files with their digest; None: they are in the replica."""
        now = signature(self._folder)
        if now == self._signature and self._is_settled and epoch == self._epoch:
            return None
        # Times of files are not exact, so what was changed is read once more a moment later.
        self._is_settled, self._signature = now == self._signature, now
        files = read_files(self._folder)
        digest = sha256(msgspec.msgpack.encode(files)).digest()
        if not files or (digest == self._digest and epoch == self._epoch):
            return None
        self._is_settled = False
        return files, digest

    def _put(self, epoch: int, files: dict[str, bytes], digest: bytes) -> None:
        made_at = self._wall()
        while True:
            self._count += 1
            name = keys_name(epoch, self._count)
            data = self._cipher.seal(name, NodeKeys(made_at, files))
            try:
                self._objects.create(name, data)
                break
            except ObjectExists:
                pass  # of an attempt whose answer was lost
        self._digest, self._epoch = digest, epoch
        self.size, self.made_at = len(data), made_at
        # Destroyed keys go from the replica as well.
        self._objects.remove([each.name for each in self._objects.list(KEYS) if each.name < name])

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            with anyio.fail_after(ANSWER_S):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=self._threads
                )
        except TimeoutError as exc:
            raise ObjectStoreAway(f"no answer within {ANSWER_S:.0f} s") from exc

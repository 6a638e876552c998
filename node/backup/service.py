"""Backups at the request of a command: one at a time, ended when nobody asks for it any more."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Event

import anyio
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import Malformed
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.snapshot import SnapshotLost
from millpond.node.backup.backup import (
    Backup,
    BackupFailed,
    BackupProgress,
    NodeFacts,
    ReadCold,
)
from millpond.node.backup.snapshots import take_snapshot

log = logging.getLogger(__name__)

ASKED_S_MAX = 30.0
"""A backup is cancelled when its command has not asked for it for so long."""
WATCH_S = 1.0
CLOSE_S_MAX = 10.0
IN_MEMORY = "the store of the node is not its data folder: there is nothing to back up"
FAILURES = (BackupFailed, SnapshotLost, OSError, sqlite3.Error)


class BackupAction(StrEnum):
    """The actions of a request."""

    START = "start"
    STATUS = "status"
    CANCEL = "cancel"


class BackupState(StrEnum):
    """The states of a backup; NONE: none was begun since the start of the node."""

    NONE = "none"
    COPYING = "copying"
    WRITTEN = "written"
    FAILED = "failed"


class BackupRequest(msgspec.Struct):
    """`to`, an absolute path on the node's machine, and `nonce` are those of a start;
    `without_cold`: records that are in the replica alone are left out."""

    action: str = BackupAction.STATUS
    to: str = ""
    nonce: str = ""
    without_cold: bool = False


class BackupReply(msgspec.Struct):
    """The backup that was begun last, by its nonce. `error` tells why it failed."""

    state: str
    nonce: str
    error: str
    progress: BackupProgress


class BackupService:
    """The backups of a node with this store (None: it has none on disk). `facts` are those of the
    node now; `now` is in seconds, for spans of time. `cold_reader` makes what reads records that
    are in the replica alone; None: there is no replica."""

    def __init__(
        self,
        store: DurableStore | None,
        facts: Callable[[], NodeFacts],
        now: Callable[[], float],
        cold_reader: Callable[[], ReadCold | None] = lambda: None,
    ) -> None:
        self._store = store
        self._facts = facts
        self._now = now
        self._cold_reader = cold_reader
        self.snapshots = anyio.Lock()
        """Held while a snapshot of the store is copied: one at a time."""
        self._tasks: TaskGroup | None = None
        self._backup: Backup | None = None
        self._state = BackupState.NONE
        self._nonce = self._error = ""
        self._asked_at = 0.0
        self._ended = Event()
        self._ended.set()

    def open(self, tasks: TaskGroup) -> None:
        """Take requests from now on."""
        self._tasks = tasks

    def close(self) -> None:
        """End the backup in progress, and wait for its thread; not in the loop's thread."""
        if self._backup is not None:
            self._backup.cancel()
        self._ended.wait(CLOSE_S_MAX)

    def answer(self, request: BackupRequest) -> BackupReply:
        """Carry out a request. Raises Malformed."""
        match request.action:
            case BackupAction.START:
                self._start(Path(request.to), request.nonce, request.without_cold)
            case BackupAction.CANCEL if self._backup is not None:
                self._backup.cancel()
            case BackupAction.STATUS | BackupAction.CANCEL:
                pass
            case _:
                raise Malformed(f"unknown action {request.action!r}")
        if request.nonce == self._nonce:
            self._asked_at = self._now()
        progress = BackupProgress() if self._backup is None else self._backup.progress
        return BackupReply(self._state, self._nonce, self._error, progress)

    def _start(self, to: Path, nonce: str, without_cold: bool) -> None:
        if self._state is BackupState.COPYING:
            return  # the nonce tells that it is another one
        self._nonce, self._backup = nonce, None
        if self._store is None or self._tasks is None:
            self._fail(IN_MEMORY)
        elif not to.is_absolute():
            self._fail(f"{to} is no absolute path")
        else:
            self._state, self._error = BackupState.COPYING, ""
            self._backup = backup = Backup(
                self._store, to, nonce, self._cold_reader(), without_cold=without_cold
            )
            self._asked_at = self._now()
            self._ended.clear()
            log.info("backup begins: to=%s", to)
            self._tasks.start_soon(self._run, self._store, backup)

    def _fail(self, reason: str) -> None:
        self._state, self._error = BackupState.FAILED, reason

    async def _run(self, store: DurableStore, backup: Backup) -> None:
        """The whole backup. An error ends the backup, not the node."""
        async with anyio.create_task_group() as watch:
            watch.start_soon(self._watch, backup)
            try:
                await self._copy(store, backup)
            except FAILURES as exc:
                await anyio.to_thread.run_sync(backup.discard)
                self._fail(str(exc))
                log.warning("backup failed: to=%s error=%s", backup.to, exc)
            else:
                self._state = BackupState.WRITTEN
                log.info("backup written: to=%s bytes=%d", backup.to, backup.progress.bytes)
            watch.cancel_scope.cancel()

    async def _copy(self, store: DurableStore, backup: Backup) -> None:
        await self._in_thread(backup, backup.prepare)
        async with self.snapshots:
            try:
                snapshot = await take_snapshot(store)
                facts = self._facts()
                await self._in_thread(backup, partial(backup.copy_segments, snapshot))
                store.release_segments()
                await self._in_thread(backup, partial(backup.copy_files, snapshot))
            finally:
                store.end_snapshot()
            await self._in_thread(backup, backup.fetch_cold)
        await self._in_thread(backup, partial(backup.finish, facts))

    async def _in_thread(self, backup: Backup, work: Callable[[], None]) -> None:
        """Work off the loop. A failed part discards the backup in the same thread: a stop of the
        node does not wait for the loop."""

        def run() -> None:
            is_done = False
            try:
                work()
                is_done = True
            finally:
                if not is_done:
                    backup.discard()
                self._ended.set()

        self._ended.clear()
        await anyio.to_thread.run_sync(run, abandon_on_cancel=True)

    async def _watch(self, backup: Backup) -> None:
        while True:
            await anyio.sleep(WATCH_S)
            if self._now() > self._asked_at + ASKED_S_MAX:
                backup.cancel()

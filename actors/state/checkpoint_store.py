"""The checkpoints of a node: a file for each stream, bounded together.

They only save work: a file that is missing, damaged or of another stream counts as none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from hashlib import blake2b
from pathlib import Path
from typing import assert_never

import msgspec

from millpond.actors.state.checkpoint_format import (
    BadCheckpointFile,
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from millpond.actors.store.filesystem import Disk
from millpond.actors.store.interface import Deferred
from millpond.actors.store.settings import StoreEnvironment
from millpond.actors.store.workers import StoreWorker, WorkerTask

log = logging.getLogger(__name__)

FOLDER, ENDING = "states", ".state"


def state_file(data: Path, name: bytes) -> Path:
    """The file of a stream's checkpoint in a data folder."""
    return data / FOLDER / (blake2b(name, digest_size=20).hexdigest() + ENDING)


class _Load(msgspec.Struct, frozen=True):
    path: Path
    answer: Deferred[Checkpoint | None]


class _Save(msgspec.Struct, frozen=True):
    path: Path
    saved: Checkpoint


class _Forget(msgspec.Struct, frozen=True):
    path: Path


_Task = _Load | _Save | _Forget


class CheckpointStore:
    """Checkpoints of `bytes_max` bytes at most: those that were used longest ago are deleted. None
    is written of a stream that does not exist. All work is done in a thread of its own, which is
    started when it is needed."""

    def __init__(
        self,
        data: Path,
        disk: Disk,
        environment: StoreEnvironment,
        bytes_max: int,
        exists: Callable[[bytes], bool] = lambda name: True,
    ) -> None:
        self._exists = exists
        self._data = data
        self._folder = data / FOLDER
        self._disk = disk
        self._environment = environment
        self._bytes_max = bytes_max
        self._worker: StoreWorker[_Task] | None = None
        self._sizes: dict[Path, int] | None = None
        """The sizes of all files, the one that was used last at the end; None: not read yet."""
        self._saving: set[Path] = set()

    def load(self, name: bytes) -> Deferred[Checkpoint | None]:
        """The last checkpoint of a stream; None: there is none, or it is damaged."""
        answer: Deferred[Checkpoint | None] = Deferred()
        self._submit(_Load(self._path(name), answer))
        return answer

    def save(self, saved: Checkpoint) -> bool:
        """Write a checkpoint; False: the one before is not written yet, or the stream is
        deleted."""
        path = self._path(saved.name)
        if path in self._saving or not self._exists(saved.name):
            return False
        self._saving.add(path)
        self._submit(_Save(path, saved))
        return True

    def forget(self, name: bytes) -> None:
        """Delete the checkpoint of a stream that is gone."""
        if self._worker is not None or self._disk.has(self._path(name)):
            self._submit(_Forget(self._path(name)))

    def keep_only(self, names: Iterable[bytes]) -> None:
        """Delete the checkpoints of other streams; at the start, before anything else."""
        try:
            found = {self._folder / each for each in self._disk.names(self._folder)}
            for path in found - {self._path(name) for name in names} if found else ():
                self._disk.unlink(path)
        except OSError as exc:
            log.warning("old state checkpoints left: folder=%s error=%s", self._folder, exc)

    def close(self) -> None:
        """Wait until everything is written."""
        if self._worker is not None:
            self._worker.close()

    def _path(self, name: bytes) -> Path:
        return state_file(self._data, name)

    def _submit(self, task: _Task) -> None:
        if self._worker is None:
            work = WorkerTask(self._run, self._done, self._crashed, batch_max=1)
            self._worker = self._environment.worker("states", work)
        self._worker.submit(task)

    # In the worker thread.

    def _run(self, tasks: list[_Task]) -> Checkpoint | None:
        (task,) = tasks or (None,)
        try:
            match task:
                case _Load(path=path):
                    return self._read(path)
                case _Save(path=path, saved=saved):
                    self._write(path, encode_checkpoint(saved))
                case _Forget(path=path):
                    self._remove(path)
                case None:
                    pass
                case _:
                    assert_never(task)
        except OSError as exc:
            log.warning("state checkpoint failed: file=%s error=%s", task and task.path, exc)
        return None

    def _read(self, path: Path) -> Checkpoint | None:
        if not self._disk.has(path):
            return None
        try:
            saved = decode_checkpoint(self._disk.read(path))
        except BadCheckpointFile as exc:
            log.warning("state checkpoint damaged: file=%s error=%s", path, exc)
            self._remove(path)
            return None
        if path != self._path(saved.name):
            return None
        self._use(path, self._known_sizes().get(path, 0))
        return saved

    def _write(self, path: Path, data: bytes) -> None:
        sizes = self._known_sizes()
        if len(data) > self._bytes_max:
            self._remove(path)
            return
        left = self._bytes_max - len(data)
        before = sizes.pop(path, 0)
        while sum(sizes.values()) > left:
            self._remove(next(iter(sizes)))
        if before:
            self._use(path, before)
        try:
            self._disk.install(path, data)
        except OSError:
            self._disk.unlink(path.with_name(path.name + ".new"))
            raise
        self._use(path, len(data))

    def _known_sizes(self) -> dict[Path, int]:
        if self._sizes is None:
            self._disk.make_folder(self._folder)
            paths = [self._folder / each for each in self._disk.names(self._folder)]
            self._sizes = {path: self._disk.weight(path) for path in paths}
        return self._sizes

    def _use(self, path: Path, size: int) -> None:
        sizes = self._known_sizes()
        sizes.pop(path, None)
        sizes[path] = size

    def _remove(self, path: Path) -> None:
        self._known_sizes().pop(path, None)
        self._disk.unlink(path)

    # In the loop's thread.

    def _done(self, tasks: list[_Task], result: Checkpoint | None) -> None:
        for task in tasks:
            match task:
                case _Load(answer=answer):
                    answer.finish(result)
                case _Save(path=path):
                    self._saving.discard(path)
                case _Forget():
                    pass
                case _:
                    assert_never(task)

    def _crashed(self, tasks: list[_Task], failure: Exception) -> None:
        self._done(tasks, None)

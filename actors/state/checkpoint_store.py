"""Where a node writes its states down: a file for each stream, all of them together bounded.

They only spare work: a file that is missing, damaged or of another stream is as good as none.
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
    """Where in a data folder the state of a stream is written down."""
    return data / FOLDER / (blake2b(name, digest_size=20).hexdigest() + ENDING)


class _Load(msgspec.Struct, frozen=True):
    path: Path
    answer: Deferred[Checkpoint | None]


class _Save(msgspec.Struct, frozen=True):
    path: Path
    saved: Checkpoint


class _Forget(msgspec.Struct, frozen=True):
    path: Path


_Item = _Load | _Save | _Forget


class CheckpointStore:
    """The files, `bytes_max` of them at most: those that were used longest ago go; of streams that
    are not there none is written. Nothing is done in the loop's thread, and in none before somebody
    asks."""

    def __init__(
        self,
        data: Path,
        disk: Disk,
        around: StoreEnvironment,
        bytes_max: int,
        is_there: Callable[[bytes], bool] = lambda name: True,
    ) -> None:
        self._is_there = is_there
        self._data = data
        self._folder = data / FOLDER
        self._disk = disk
        self._around = around
        self._bytes_max = bytes_max
        self._lane: StoreWorker[_Item] | None = None
        self._sizes: dict[Path, int] | None = None
        """Of all files, the one that was used last at the end; None: not looked at yet."""
        self._saving: set[Path] = set()

    def load(self, name: bytes) -> Deferred[Checkpoint | None]:
        """What was written of a stream's state last, if that is there and whole."""
        answer: Deferred[Checkpoint | None] = Deferred()
        self._submit(_Load(self._path(name), answer))
        return answer

    def save(self, saved: Checkpoint) -> bool:
        """Write it; False: what was to be written of this stream before is not yet, or there is no
        such stream any more."""
        path = self._path(saved.name)
        if path in self._saving or not self._is_there(saved.name):
            return False
        self._saving.add(path)
        self._submit(_Save(path, saved))
        return True

    def forget(self, name: bytes) -> None:
        """The stream is gone."""
        if self._lane is not None or self._disk.has(self._path(name)):
            self._submit(_Forget(self._path(name)))

    def keep_only(self, names: Iterable[bytes]) -> None:
        """At the start, before anything else: these are the streams there are."""
        try:
            found = {self._folder / each for each in self._disk.names(self._folder)}
            for path in found - {self._path(name) for name in names} if found else ():
                self._disk.unlink(path)
        except OSError as exc:
            log.warning("old states left: folder=%s error=%s", self._folder, exc)

    def close(self) -> None:
        """Return when all is written."""
        if self._lane is not None:
            self._lane.close()

    def _path(self, name: bytes) -> Path:
        return state_file(self._data, name)

    def _submit(self, item: _Item) -> None:
        if self._lane is None:
            work = WorkerTask(self._run, self._done, self._crashed, batch_max=1)
            self._lane = self._around.worker("states", work)
        self._lane.submit(item)

    # In the lane's thread.

    def _run(self, items: list[_Item]) -> Checkpoint | None:
        (item,) = items or (None,)
        try:
            match item:
                case _Load(path=path):
                    return self._read(path)
                case _Save(path=path, saved=saved):
                    self._write(path, encode_checkpoint(saved))
                case _Forget(path=path):
                    self._remove(path)
                case None:
                    pass
                case _:
                    assert_never(item)
        except OSError as exc:
            log.warning("state not kept or found: file=%s error=%s", item and item.path, exc)
        return None

    def _read(self, path: Path) -> Checkpoint | None:
        if not self._disk.has(path):
            return None
        try:
            saved = decode_checkpoint(self._disk.read(path))
        except BadCheckpointFile as exc:
            log.warning("state on the disk is damaged: file=%s error=%s", path, exc)
            self._remove(path)
            return None
        if path != self._path(saved.name):
            return None
        self._note(path, self._known().get(path, 0))
        return saved

    def _write(self, path: Path, data: bytes) -> None:
        sizes = self._known()
        if len(data) > self._bytes_max:
            self._remove(path)
            return
        left = self._bytes_max - len(data)
        before = sizes.pop(path, 0)
        while sum(sizes.values()) > left:
            self._remove(next(iter(sizes)))
        if before:
            self._note(path, before)
        try:
            self._disk.install(path, data)
        except OSError:
            self._disk.unlink(path.with_name(path.name + ".new"))
            raise
        self._note(path, len(data))

    def _known(self) -> dict[Path, int]:
        if self._sizes is None:
            self._disk.make_folder(self._folder)
            paths = [self._folder / each for each in self._disk.names(self._folder)]
            self._sizes = {path: self._disk.weight(path) for path in paths}
        return self._sizes

    def _note(self, path: Path, size: int) -> None:
        sizes = self._known()
        sizes.pop(path, None)
        sizes[path] = size

    def _remove(self, path: Path) -> None:
        self._known().pop(path, None)
        self._disk.unlink(path)

    # In the loop's thread.

    def _done(self, items: list[_Item], result: Checkpoint | None) -> None:
        for item in items:
            match item:
                case _Load(answer=answer):
                    answer.finish(result)
                case _Save(path=path):
                    self._saving.discard(path)
                case _Forget():
                    pass
                case _:
                    assert_never(item)

    def _crashed(self, items: list[_Item], failure: Exception) -> None:
        self._done(items, None)

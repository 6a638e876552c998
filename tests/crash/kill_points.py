"""A disk that counts its calls, and kills its own process in the middle of one of them."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from millpond.actors.store.filesystem import Disk, File
from tests.crash.plan import Death, Phase

T = TypeVar("T")

DIED = "died in "
DURING_STEP_S = 0.00005
DURING_STEPS = 10


def _nothing() -> None:
    pass


class KillPoint:
    """The kill point: a count of calls, and the one to die in; without a death, none."""

    def __init__(self, folder: Path, death: Death | None) -> None:
        self._folder = folder
        self._death = death
        self._left = death.number if death else 0
        self._lock = threading.Lock()

    def at(self, kind: str, path: Path) -> Phase | None:
        """Count a call; the phase to die in, if it is the one."""
        death = self._death
        if death is None or kind != death.kind:
            return None
        if death.place not in ("any", self._place(path)):
            return None
        with self._lock:
            self._left -= 1
            return death.phase if self._left == 0 else None

    def call(self, kind: str, path: Path, whole: Callable[[], T], half: Callable[[], None]) -> T:
        """Do `whole`, unless this is the call to die in; `half` is how far it comes then."""
        phase = self.at(kind, path)
        match phase:
            case None:
                return whole()
            case Phase.DURING:
                threading.Thread(target=self._die_soon, args=(path,), daemon=True).start()
                result = whole()
                time.sleep(DURING_STEP_S * DURING_STEPS)
                self.die(path)
                return result
            case Phase.MIDDLE:
                half()
            case Phase.AFTER:
                whole()
            case Phase.BEFORE:
                pass
        self.die(path)
        raise AssertionError("dead")

    def die(self, path: Path) -> None:
        """Say where, and be gone: nothing is flushed, closed or unlocked but by the system."""
        thread = threading.current_thread().name
        os.write(2, f"\n{DIED}{self._death} {path.relative_to(self._folder)} {thread}\n".encode())
        os.kill(os.getpid(), signal.SIGKILL)

    def _die_soon(self, path: Path) -> None:
        assert self._death is not None
        time.sleep(DURING_STEP_S * (self._death.number % DURING_STEPS))
        self.die(path)

    def _place(self, path: Path) -> str:
        parts = path.relative_to(self._folder).parts
        return parts[0].partition(".")[0] if parts else "folder"


class CountedFile:
    """A file whose writes may come half way only."""

    def __init__(self, inner: File, path: Path, kill_point: KillPoint) -> None:
        self._inner = inner
        self._path = path
        self._kill_point = kill_point

    def write(self, data: bytes, offset: int) -> None:
        half = data[: len(data) // 2]
        self._kill_point.call(
            "write",
            self._path,
            lambda: self._inner.write(data, offset),
            lambda: self._inner.write(half, offset),
        )

    def sync(self) -> None:
        self._kill_point.call("sync", self._path, self._inner.sync, _nothing)

    def close(self) -> None:
        self._inner.close()


class CountedConnection:
    """An SQLite connection that may die in a COMMIT, or between two rows.

    It stands for the one that the inner disk made, whatever that was told.
    """

    _inner: sqlite3.Connection
    _path: Path
    _kill_point: KillPoint

    __slots__ = ("_inner", "_kill_point", "_path")

    def __init__(self, inner: sqlite3.Connection, path: Path, kill_point: KillPoint) -> None:
        object.__setattr__(self, "_inner", inner)
        object.__setattr__(self, "_path", path)
        object.__setattr__(self, "_kill_point", kill_point)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._inner, name, value)

    def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
        is_commit = sql.lstrip().upper().startswith(("COMMIT", "END"))
        kind = "commit" if is_commit else "statement"
        return self._kill_point.call(
            kind, self._path, lambda: self._inner.execute(sql, *args), _nothing
        )

    def executemany(self, sql: str, rows: Iterable[Any], /) -> sqlite3.Cursor:
        every = list(rows)
        half = every[: len(every) // 2]
        return self._kill_point.call(
            "executemany",
            self._path,
            lambda: self._inner.executemany(sql, every),
            lambda: void(self._inner.executemany(sql, half)),
        )


def void(_: object) -> None:
    """For a result that nobody wants."""


class CountedDisk:
    """A disk whose calls are counted by a kill point."""

    def __init__(self, inner: Disk, kill_point: KillPoint) -> None:
        self._inner = inner
        self._kill_point = kill_point

    def create(self, path: Path, size: int) -> CountedFile:
        file = self._kill_point.call(
            "create", path, lambda: self._inner.create(path, size), lambda: path.touch(0o600)
        )
        return CountedFile(file, path, self._kill_point)

    def open(self, path: Path) -> CountedFile:
        return CountedFile(self._inner.open(path), path, self._kill_point)

    def read(self, path: Path) -> bytes:
        return self._inner.read(path)

    def install(self, path: Path, data: bytes) -> None:
        beside = path.with_name(path.name + ".new")
        self._kill_point.call(
            "install",
            path,
            lambda: self._inner.install(path, data),
            lambda: void(beside.write_bytes(data[: len(data) // 2])),
        )

    def has(self, path: Path) -> bool:
        return self._inner.has(path)

    def names(self, folder: Path) -> list[str]:
        return self._inner.names(folder)

    def make_folder(self, path: Path) -> None:
        self._inner.make_folder(path)

    def unlink(self, path: Path) -> None:
        self._kill_point.call("unlink", path, lambda: self._inner.unlink(path), _nothing)

    def sync_folder(self, path: Path) -> None:
        self._kill_point.call("sync_folder", path, lambda: self._inner.sync_folder(path), _nothing)

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = CountedConnection(self._inner.connect(path), path, self._kill_point)
        return cast(sqlite3.Connection, connection)

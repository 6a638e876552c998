"""An object store in memory that fails as the real ones do: before it stored something, after it
did, for a while, or for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from random import Random

from millpond.node.replica.errors import (
    NoObject,
    ObjectExists,
    ObjectStoreAway,
    ObjectStoreRefuses,
)
from millpond.node.replica.object_store import Listed


class MemoryObjects:
    """`before` and `after` are the chances that a request fails without effect, or with it."""

    def __init__(self, rng: Random | None = None, before: float = 0.0, after: float = 0.0) -> None:
        self.kept: dict[str, bytes] = {}
        self._rng = rng or Random(0)
        self._before = before
        self._after = after
        self.is_away = False
        self.is_forbidden = False
        self.requests = 0

    def _begin(self) -> None:
        self.requests += 1
        if self.is_forbidden:
            raise ObjectStoreRefuses("the credentials are wrong")
        if self.is_away or self._rng.random() < self._before:
            raise ObjectStoreAway("no answer within 30 s")

    def _end(self) -> None:
        if self._rng.random() < self._after:
            raise ObjectStoreAway("500 after it was stored")

    def create(self, name: str, data: bytes) -> None:
        self._begin()
        if name in self.kept:
            raise ObjectExists(name)
        self.kept[name] = bytes(data)
        self._end()

    def put_file(self, name: str, path: Path) -> None:
        self._begin()
        self.kept[name] = path.read_bytes()
        self._end()

    def get(self, name: str) -> bytes:
        self._begin()
        if name not in self.kept:
            raise NoObject(name)
        return self.kept[name]

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        data = self.get(name)
        path.write_bytes(data)
        wrote(data)

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        self._begin()
        names = [each for each in self.kept if each.startswith(prefix) and each > after]
        return sorted(Listed(each, len(self.kept[each]), 0.0) for each in names)

    def remove(self, names: Iterable[str]) -> None:
        self._begin()
        for each in names:
            self.kept.pop(each, None)

    def remove_drafts(self, before: float) -> int:
        return 0

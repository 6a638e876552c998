"""A simulated object store: slow, refusing, full, throttled, parted from one node, and with answers
that are lost after it stored.

Blocking requests of a node run in a thread that waits whenever the loop runs, and the other way
round. So other nodes get between any two requests of a task, time passes in the world alone, and a
seed gives one result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from millpond.node.replica import service
from millpond.node.replica.errors import (
    NoObject,
    ObjectExists,
    ObjectStoreAway,
    ObjectStoreRefuses,
)
from millpond.node.replica.object_store import Listed

T = TypeVar("T")

REQUEST_S = 0.02
"""A request takes up to so long, half of it before something happens."""
LOST_CHANCE = 0.04
THROTTLED_CHANCE = 0.3

_running = threading.local()


class Abandoned(BaseException):
    """The process of a thread is gone."""


class _Steps:
    """A thread and the loop, of which one waits for the other."""

    def __init__(self) -> None:
        self.to_loop: SimpleQueue[tuple[str, Any]] = SimpleQueue()
        self.to_thread: SimpleQueue[bool] = SimpleQueue()

    def pause(self, seconds: float) -> None:
        """Let so much time of the world pass; in the thread. Raises Abandoned."""
        self.to_loop.put(("pause", seconds))
        if not self.to_thread.get():
            raise Abandoned

    def run(self, work: Callable[[], Any]) -> None:
        _running.steps = self
        try:
            self.to_loop.put(("done", work()))
        except BaseException as exc:
            self.to_loop.put(("failed", exc))


async def in_steps(work: Callable[[], T]) -> T:
    """Run blocking work; its requests take time of the world. A cancellation ends its thread
    between two steps, as the end of its process does."""
    await anyio.lowlevel.checkpoint()
    steps, context = _Steps(), copy_context()
    threading.Thread(target=partial(context.run, steps.run, work), daemon=True).start()
    while True:
        kind, value = steps.to_loop.get()
        if kind == "done":
            return value  # type: ignore[no-any-return]  # it is that of the work
        if kind == "failed":
            raise value
        try:
            await anyio.sleep(value)
        except BaseException:
            steps.to_thread.put(False)
            while steps.to_loop.get()[0] == "pause":  # of a handler of its own
                steps.to_thread.put(False)
            raise
        steps.to_thread.put(True)


class SimulatedStore:
    """The objects, and what is wrong with all requests."""

    def __init__(self, rng: Random, now: Callable[[], float]) -> None:
        self.kept: dict[str, bytes] = {}
        self.made_at: dict[str, float] = {}
        self.rng = rng
        self.now = now
        self.is_full = False
        self.is_throttled = False
        self.is_calm = False
        """Nothing is wrong any more."""

    def view(self) -> ObjectsView:
        """The object store as one machine sees it."""
        return ObjectsView(self)


class ObjectsView:
    """The object store of one machine. Implements `replica.object_store.ObjectStore`."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self.is_parted = False
        self.has_wrong_credentials = False
        self.request_s = REQUEST_S

    def heal(self) -> None:
        """Nothing is wrong with the requests of this machine."""
        self.is_parted = self.has_wrong_credentials = False
        self.request_s = REQUEST_S

    def _pause(self) -> None:
        steps: _Steps | None = getattr(_running, "steps", None)
        if steps is not None:
            steps.pause(self._store.rng.uniform(0.0, self.request_s / 2))

    def _request(self, work: Callable[[], T], *, is_new: bool = False) -> T:
        store = self._store
        self._pause()
        if self.is_parted:
            raise ObjectStoreAway("no answer within 30 s")
        if self.has_wrong_credentials:
            raise ObjectStoreRefuses("the credentials are wrong")
        if store.is_throttled and store.rng.random() < THROTTLED_CHANCE:
            raise ObjectStoreAway("503 SlowDown")
        if store.is_full and is_new:
            raise ObjectStoreAway("507 no space left")
        result = work()
        self._pause()
        if self.is_parted or (not store.is_calm and store.rng.random() < LOST_CHANCE):
            raise ObjectStoreAway("500 after it was done")
        return result

    def create(self, name: str, data: bytes) -> None:
        def made() -> None:
            if name in self._store.kept:
                raise ObjectExists(name)
            self._put(name, data)

        self._request(made, is_new=True)

    def put_file(self, name: str, path: Path) -> None:
        data = path.read_bytes()
        self._request(partial(self._put, name, data), is_new=True)

    def _put(self, name: str, data: bytes) -> None:
        self._store.kept[name] = bytes(data)
        self._store.made_at[name] = self._store.now()

    def get(self, name: str) -> bytes:
        found = self._request(partial(self._store.kept.get, name))
        if found is None:
            raise NoObject(f"{name} is not there")
        return found

    def get_file(self, name: str, path: Path, wrote: Callable[[bytes], None]) -> None:
        data = self.get(name)
        path.write_bytes(data)
        wrote(data)

    def list(self, prefix: str, after: str = "") -> list[Listed]:
        return self._request(partial(self._listed, prefix, after))

    def _listed(self, prefix: str, after: str) -> list[Listed]:
        kept, made_at = self._store.kept, self._store.made_at
        names = sorted(each for each in kept if each.startswith(prefix) and each > after)
        return [Listed(each, len(kept[each]), made_at[each]) for each in names]

    def remove(self, names: Iterable[str]) -> None:
        self._request(partial(self._removed, list(names)))

    def _removed(self, names: Iterable[str]) -> None:
        for each in names:
            self._store.kept.pop(each, None)

    def remove_drafts(self, before: float) -> int:
        return 0


@contextmanager
def simulated_requests(views: dict[str, ObjectsView]) -> Generator[None]:
    """Nodes open these views by the addresses of their replicas, and requests take time of the
    world; within a world."""
    at_once, opened, told = anyio.to_thread.run_sync, service.open_object_store, service._in_thread

    async def run_sync(func: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if options.get("limiter") is None:
            return await at_once(func, *args, **options)
        return await in_steps(partial(func, *args))

    vars(anyio.to_thread)["run_sync"] = run_sync
    vars(service).update(open_object_store=views.__getitem__, _in_thread=run_sync)
    try:
        yield
    finally:
        vars(anyio.to_thread)["run_sync"] = at_once
        vars(service).update(open_object_store=opened, _in_thread=told)

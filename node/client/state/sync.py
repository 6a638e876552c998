"""The writer and the follower of states for programs without an event loop.

The same surface as `node.client.state.writer` and `node.client.state.follower`, on streams of
`node.client.sync.channel`; each
call blocks until its result is there, and any thread may make it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.from_thread import BlockingPortal

from millpond.actors.state.events import Event
from millpond.actors.state.fold import Rejected
from millpond.actors.state.schema import StreamState
from millpond.actors.state.stats import EventStats
from millpond.node.client.state import changes, follower, remote, writer
from millpond.node.client.state.follower import FollowSettings
from millpond.node.client.streams.records import Appended
from millpond.node.client.sync.channel import Stream
from millpond.node.client.sync.portal import iterate


class NodeState:
    """See `millpond.node.client.state.remote.NodeState`."""

    def __init__(self, stream: Stream) -> None:
        self._state = stream.twin.state
        self._portal = stream.portal

    def get(self, kind: str, key: str) -> remote.Row | None:
        return self._portal.call(self._state.get, kind, key)

    def info(self) -> remote.StateInfo:
        return self._portal.call(self._state.info)

    def rows(self, kind: str | None = None) -> Iterator[remote.Row]:
        return iterate(self._state.rows(kind), self._portal)

    def pages(self, kind: str | None = None) -> Iterator[tuple[int, list[remote.Row]]]:
        return iterate(self._state.pages(kind), self._portal)


class StateWriter:
    """See `millpond.node.client.state.writer.StateWriter`."""

    def __init__(self, stream: Stream, definition: StreamState) -> None:
        self.stream = stream
        self.definition = definition
        self._writer = writer.StateWriter(stream.twin, definition)
        self._portal = stream.portal

    def insert(self, name: str, value: Any, key: str | None = None, **more: str) -> Appended:
        return self._portal.call(partial(self._writer.insert, name, value, key, **more))

    def update(self, name: str, value: Any, key: str | None = None, **more: str) -> Appended:
        return self._portal.call(partial(self._writer.update, name, value, key, **more))

    def upsert(self, name: str, value: Any, key: str | None = None, **more: str) -> Appended:
        return self._portal.call(partial(self._writer.upsert, name, value, key, **more))

    def delete(self, name: str, key: str, **more: str) -> Appended:
        return self._portal.call(partial(self._writer.delete, name, key, **more))

    def reset(self) -> Appended:
        return self._portal.call(self._writer.reset)

    def send(self, *events: Event[Any], match: int | None = None) -> Appended:
        return self._portal.call(partial(self._writer.send, *events, match=match))

    @contextmanager
    def snapshot(self) -> Generator[None]:
        with self._portal.wrap_async_context_manager(self._writer.snapshot()):
            yield


class Changes:
    """See `millpond.node.client.state.changes.Changes`: a context, and an iterator that waits."""

    def __init__(self, subscription: changes.Changes, portal: BlockingPortal) -> None:
        self._changes = subscription
        self._portal = portal

    def __enter__(self) -> Self:
        self._portal.call(self._changes.__enter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._changes.__exit__, kind, error, trace)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> changes.StateUpdate:
        return self.next()

    def next(self, timeout_s: float | None = None) -> changes.StateUpdate:
        """The next one. Raises TimeoutError, and StopIteration behind the last one."""
        try:
            return self._portal.call(self._next, timeout_s)
        except StopAsyncIteration:
            raise StopIteration from None

    async def _next(self, timeout_s: float | None) -> changes.StateUpdate:
        with anyio.fail_after(timeout_s):
            return await anext(self._changes)


class StateView:
    """See `node.client.state.follower.StateView`. The state changes in another thread, so all that
    is told
    of it is as it was at one moment."""

    def __init__(self, view: follower.StateView, portal: BlockingPortal) -> None:
        self._view = view
        self._portal = portal

    def get(self, kind: str, key: str, default: Any = None) -> Any:
        return self._portal.call(self._view.get, kind, key, default)

    def get_type(self, kind: str) -> Mapping[str, Any]:
        return self._portal.call(lambda: dict(self._view.get_type(kind)))

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        return self._portal.call(lambda: dict(self._view[name]))

    @property
    def types(self) -> list[str]:
        return self._portal.call(lambda: self._view.types)

    @property
    def position(self) -> int:
        return self._view.position

    @property
    def tally(self) -> EventStats:
        return self._portal.call(lambda: self._view.tally.copy())

    @property
    def failure(self) -> Exception | None:
        return self._view.failure

    @property
    def quarantined(self) -> list[Rejected]:
        return self._portal.call(lambda: list(self._view.quarantined))

    def changes(
        self, kind: str | None = None, key: str | None = None, size_max: int = changes.SIZE_MAX
    ) -> Changes:
        opened = self._portal.call(self._view.changes, kind, key, size_max)
        return Changes(opened, self._portal)

    def applied(self, sequence: int) -> None:
        self._portal.call(self._view.applied, sequence)

    def caught_up(self) -> None:
        self._portal.call(self._view.caught_up)

    def keep(self) -> None:
        self._portal.call(self._view.keep)


@contextmanager
def follow_state(
    stream: Stream,
    definition: StreamState | None = None,
    settings: FollowSettings | None = None,
) -> Generator[StateView]:
    """See `millpond.node.client.state.follower.follow_state`."""
    opening = follower.follow_state(stream.twin, definition, settings)
    with stream.portal.wrap_async_context_manager(opening) as view:
        yield StateView(view, stream.portal)

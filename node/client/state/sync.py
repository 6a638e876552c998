"""The blocking writer and follower of shared states.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from millpond.actors.state.events import Event
from millpond.actors.state.fold import Rejected
from millpond.actors.state.schema import Collection, StreamState
from millpond.actors.state.stats import EventStats
from millpond.node.client.state.changes import SIZE_MAX, StateUpdate
from millpond.node.client.state.changes import Changes as AsyncChanges
from millpond.node.client.state.follower import FollowSettings, T
from millpond.node.client.state.follower import StateView as AsyncStateView
from millpond.node.client.state.follower import follow_state as follow_state_async
from millpond.node.client.state.writer import StateWriter as AsyncStateWriter
from millpond.node.client.streams.records import Appended
from millpond.node.client.sync.portal import Blocking, async_of, portal_of
from millpond.node.client.sync.streams import Stream


class StateWriter(Blocking[AsyncStateWriter]):
    """A writer to one stream. Raises BadValue, and the errors of `Stream.append`."""

    @property
    def stream(self) -> Stream:
        return Stream(self._async.stream, self._portal)

    @property
    def definition(self) -> StreamState:
        return self._async.definition

    def __init__(self, stream: Stream, definition: StreamState) -> None:
        super().__init__(AsyncStateWriter(async_of(stream), definition), portal_of(stream))

    def insert(self, name: str, value: object, key: str | None = None, **more: str) -> Appended:
        """Set a value of the collection `name`; `more`: `txid`, `timestamp`."""
        return self._await(self._async.insert, name, value, key, **more)

    def update(self, name: str, value: object, key: str | None = None, **more: str) -> Appended:
        """Change a value that exists; otherwise as `insert`."""
        return self._await(self._async.update, name, value, key, **more)

    def upsert(self, name: str, value: object, key: str | None = None, **more: str) -> Appended:
        """Set a value, new or not; otherwise as `insert`."""
        return self._await(self._async.upsert, name, value, key, **more)

    def delete(self, name: str, key: str, **more: str) -> Appended:
        """Remove a value of the collection `name`."""
        return self._await(self._async.delete, name, key, **more)

    def reset(self) -> Appended:
        """Clear the state: a new epoch begins, perhaps with another schema."""
        return self._await(self._async.reset)

    def send(self, *events: Event[object], match: int | None = None) -> Appended:
        """Append several events, all or none. `match`: the tail that the stream has to have."""
        return self._await(self._async.send, *events, match=match)

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Mark the events of the block as a consistent snapshot. Raises SnapshotOpen.

        The end is always written: later events would seem to belong to the snapshot otherwise.
        """
        with self._enter(self._async.snapshot()):
            yield


class Changes(Blocking[AsyncChanges]):
    """Changes from now on, as a context, for `for`. At most `size_max` wait; the oldest go,
    and a `Missed` stands in their place. Resets and snapshots come as `ControlApplied`.
    """

    def __enter__(self) -> Self:
        self._call(self._async.__enter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._call(self._async.__exit__, kind, exc, trace)

    def __iter__(self) -> Self:
        return self

    def next(self, timeout_s: float | None = None) -> StateUpdate:
        """The next change. Raises TimeoutError, and StopAsyncIteration at the end."""
        return self._await(self._async.next, timeout_s)

    def __next__(self) -> StateUpdate:
        """The next change. Raises the error that ended the following, after all changes."""
        return self._next(self._async.__anext__)


class StateView(Blocking[AsyncStateView]):
    """A live state. It changes between two awaits, never within one pass of the loop.

    `failure` is why it follows no more. `quarantined` has the last records that changed nothing,
    with OnInvalid.QUARANTINE.
    """

    @property
    def stream(self) -> Stream:
        return Stream(self._async.stream, self._portal)

    @property
    def failure(self) -> Exception | None:
        return self._async.failure

    @property
    def quarantined(self) -> list[Rejected]:
        return self._call(lambda: list(self._async.quarantined))

    def get(self, kind: str, key: str, default: object = None) -> object:
        """The value at `(kind, key)`, as JSON has it."""
        return self._call(self._async.get, kind, key, default)

    def get_type(self, kind: str) -> dict[str, object]:
        """All values of a type."""
        return self._call(lambda: dict(self._async.get_type(kind)))

    def __getitem__(self, name: str) -> dict[str, object]:
        """All values of a collection of the definition."""
        return self._call(lambda: dict(self._async.__getitem__(name)))

    def table(self, collection: Collection[T]) -> dict[str, T]:
        """The same, by the collection instead of its name: a type checker knows what the values
        are. Raises KeyError for a collection that the definition does not have.
        """
        return self._call(lambda: dict(self._async.table(collection)))

    @property
    def types(self) -> list[str]:
        """The types that have a value."""
        return self._call(lambda: list(self._async.types))

    @property
    def position(self) -> int:
        """The sequence of the next record."""
        return self._async.position

    @property
    def stats(self) -> EventStats:
        """Counts of the events so far."""
        return self._call(lambda: self._async.stats.copy())

    def changes(
        self, kind: str | None = None, key: str | None = None, size_max: int = SIZE_MAX
    ) -> Changes:
        """Changes from now on, of a type or of one key; use it as a context."""
        return Changes(self._call(self._async.changes, kind, key, size_max), self._portal)

    def applied(self, sequence: int) -> None:
        """Wait until the record of that sequence is in the state."""
        self._await(self._async.applied, sequence)

    def caught_up(self) -> None:
        """Wait until the state has every record that the stream has now."""
        self._await(self._async.caught_up)

    def checkpoint(self) -> bytes:
        """The state and its position, for `Fold.restore`."""
        return self._call(self._async.checkpoint)

    def keep(self) -> None:
        """Write the checkpoint file now, if there is to be one."""
        self._await(self._async.keep)


@contextmanager
def follow_state(
    stream: Stream, definition: StreamState | None = None, settings: FollowSettings | None = None
) -> Generator[StateView]:
    """Follow a stream's state for the block. An error that ends the following is raised by the
    tasks that wait for the view, else at the end of the block.

    Raises InvalidEvent and StateReset, where the settings say so, Trimmed, and what
    `Stream.follow` raises.
    """
    opening = follow_state_async(async_of(stream), definition, settings)
    portal = portal_of(stream)
    with portal.enter(opening) as opened:
        yield StateView(opened, portal)

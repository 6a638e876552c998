"""A writer of events: nothing is appended that does not fit the definition."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millpond.actors.errors import MillpondError
from millpond.actors.state.errors import BadValue
from millpond.actors.state.events import ChangeEvent, Control, Event, control, encode
from millpond.actors.state.schema import StreamState
from millpond.node.client.streams.records import Appended
from millpond.node.client.streams.stream import Stream


class SnapshotOpen(MillpondError, ValueError):
    """A snapshot is open already."""


class StateWriter:
    """A writer to one stream. Raises BadValue, and the errors of `Stream.append`."""

    stream: Stream
    definition: StreamState

    def __init__(self, stream: Stream, definition: StreamState) -> None:
        self.stream = stream
        self.definition = definition
        self._in_snapshot = False

    async def insert(
        self, name: str, value: object, key: str | None = None, **more: str
    ) -> Appended:
        """Set a value of the collection `name`; `more`: `txid`, `timestamp`."""
        return await self.send(self.definition[name].insert(value, key, **more))

    async def update(
        self, name: str, value: object, key: str | None = None, **more: str
    ) -> Appended:
        """Change a value that exists; otherwise as `insert`."""
        return await self.send(self.definition[name].update(value, key, **more))

    async def upsert(
        self, name: str, value: object, key: str | None = None, **more: str
    ) -> Appended:
        """Set a value, new or not; otherwise as `insert`."""
        return await self.send(self.definition[name].upsert(value, key, **more))

    async def delete(self, name: str, key: str, **more: str) -> Appended:
        """Remove a value of the collection `name`."""
        return await self.send(self.definition[name].delete(key, **more))

    async def reset(self) -> Appended:
        """Clear the state: a new epoch begins, perhaps with another schema."""
        appended = await self.send(control(Control.RESET))
        self._in_snapshot = False
        return appended

    async def send(self, *events: Event[object], match: int | None = None) -> Appended:
        """Append several events, all or none. `match`: the tail that the stream has to have."""
        for event in events:
            invalid = self.definition.check(event) if isinstance(event, ChangeEvent) else None
            if invalid is not None:
                raise BadValue(f"{invalid.reason.value}: {invalid.text}")
        try:
            bodies = [encode(event) for event in events]
        except (TypeError, UnicodeEncodeError) as exc:
            raise BadValue(f"JSON does not have it: {exc}") from exc
        return await self.stream.append(bodies, match=match)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Mark the events of the block as a consistent snapshot. Raises SnapshotOpen.

        The end is always written: later events would seem to belong to the snapshot otherwise.
        """
        if self._in_snapshot:
            raise SnapshotOpen("a snapshot is open already")
        await self.send(control(Control.SNAPSHOT_START))
        self._in_snapshot = True
        try:
            yield
        finally:
            if self._in_snapshot:
                self._in_snapshot = False
                await self.send(control(Control.SNAPSHOT_END))

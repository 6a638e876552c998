"""The state of a stream as its node materializes it, by requests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import msgspec

from millpond.actors.errors import SlowDown
from millpond.actors.state.messages import StateInfo as StateInfo
from millpond.node.client.streams.requests import StreamRequests, T
from millpond.transports.p2p.streams import state as s
from millpond.transports.p2p.streams.operations import Operation

PAGE = 1000


class Row(msgspec.Struct, frozen=True, gc=False):
    """A value. `written` is its JSON as the producer wrote it."""

    type: str
    key: str
    written: bytes

    @property
    def value(self) -> object:
        """The value itself."""
        return msgspec.json.decode(self.written)


class NodeState:
    """The state of one stream. Every reply has all records of the time of the request.

    The first request makes the node read the stream from its beginning, and waits for that.
    Raises UnknownStream, and StateTooLarge above the node's limit.
    """

    name: bytes

    def __init__(self, name: bytes, requests: StreamRequests) -> None:
        self.name = name
        self._requests = requests

    async def get(self, kind: str, key: str) -> Row | None:
        """One value; None: there is none."""
        answer = await self._ask(Operation.STATE_GET, s.GetBody(self.name, kind, key), s.ValueBody)
        return None if answer.value is None else Row(kind, key, answer.value)

    async def info(self) -> StateInfo:
        """The counts and positions of the state, without values."""
        return await self._ask(Operation.STATE, s.StateBody(self.name), StateInfo)

    async def rows(self, kind: str | None = None) -> AsyncIterator[Row]:
        """All values, or those of a type, in the order of types and keys. They are read page by
        page: changes in the meantime may be in it or not."""
        async for _, rows in self.pages(kind):
            for row in rows:
                yield row

    async def pages(self, kind: str | None = None) -> AsyncIterator[tuple[int, list[Row]]]:
        """The values page by page, each page with its position. Records from the position of the
        first page on complete the state at the position of the last."""
        after: tuple[str, str] | None = None
        more = True
        while more:
            body = s.ShowBody(self.name, kind, after, PAGE)
            page = await self._ask(Operation.STATE_SHOW, body, s.ValuesBody)
            yield page.position, [Row(*row) for row in page.rows]
            more = page.more and bool(page.rows)
            after = page.rows[-1][:2] if page.rows else None

    async def _ask(self, operation: Operation, body: msgspec.Struct, answer: type[T]) -> T:
        """Repeat the request while the node is still reading."""
        while True:
            try:
                return await self._requests.ask(operation, body, answer)
            except SlowDown as exc:
                await anyio.sleep((exc.delay_ms or 1000) / 1000)

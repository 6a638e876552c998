"""Cell clients: requests to cells from a coroutine, one at a time or many in a session.

No task is made for a request, and no future where the cell replies at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Protocol

import anyio

from millpond.actors.messages import Batch, Failed, Port, Reply, StreamReply, StreamRequest
from millpond.actors.streams.messages import CancelRead, FinishRead, Read
from millpond.transports.http.cancellation import running_loop
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import LISTENER

CellReply = StreamReply | Failed
"""Refusals are returned like other replies: as `StreamFailed` by a stream, as `Failed` by the parts
that carry requests to it (mailbox, store, supervision)."""


class _Future(Protocol):
    """A reply that a coroutine waits for."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> CellReply: ...
    def set_result(self, result: CellReply, /) -> None: ...


class CellClient(Port):
    """The port of one HTTP request. Its `with` block ends by detaching it from the cells that have
    not replied yet.

    `request` sends one request and awaits its reply. A session takes numbers, submits requests that
    carry them, and awaits `reply(number)` in any order; any number of them may be in flight.
    """

    __slots__ = (
        "_capacity",
        "_futures",
        "_is_full",
        "_loop",
        "_next_number",
        "_pending",
        "_ready",
        "_sampled",
        "_sampled_at",
        "_services",
        "number",
        "received_at",
    )

    def __init__(self, services: HttpNodeServices) -> None:
        self.number = services.next_number()
        self.received_at = services.now()
        self._services = services
        self._loop = running_loop()
        self._next_number = 0
        self._pending: dict[int, bytes] = {}
        """The cells of the requests in flight, by number."""
        self._ready: dict[int, CellReply] = {}
        self._futures: dict[int, _Future] = {}
        self._is_full = False
        self._capacity: anyio.Event | None = None
        self._sampled = -1
        """The number of a request whose latency is measured."""
        self._sampled_at = 0.0

    def __enter__(self) -> CellClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def next_number(self) -> int:
        """The number for the request that is submitted next; they count up from 0."""
        number = self._next_number
        self._next_number = number + 1
        return number

    async def request(
        self,
        cell: bytes,
        make: Callable[[int], StreamRequest],
        size_bytes: int = 0,
        *,
        gather: bool = False,
    ) -> CellReply:
        """The reply to one request; `make` builds it for its number. See `submit`."""
        number = self.next_number()
        await self.submit(cell, (make(number),), size_bytes, gather=gather)
        return await self.reply(number)

    async def submit(
        self,
        cell: bytes,
        requests: Sequence[StreamRequest],
        size_bytes: int = 0,
        *,
        gather: bool = False,
    ) -> None:
        """Give a cell requests that have a reply, once its mailbox has room.

        `gather`: in one batch with the requests of others in this pass of the event loop; for
        appends. The requests of one client keep their order all the same.
        """
        if self._is_full:
            await self.wait_for_capacity()
        pending = self._pending
        for each in requests:
            pending[each.number] = cell
        services = self._services
        now = services.now()
        stats = services.protocol_stats[LISTENER]
        if now >= stats.sample_at and not _waits(requests[0]):
            stats.start_sample(now)
            self._sampled, self._sampled_at = requests[0].number, now
        if gather and self._loop is not None:
            services.batcher.add(cell, self, list(requests), size_bytes, self._soon)
        else:
            self._submit_now(cell, requests, size_bytes)

    def notify(self, cell: bytes, request: CancelRead | FinishRead) -> None:
        """Send a request that has no reply."""
        self._submit_now(cell, (request,), 0)

    async def wait_for_capacity(self) -> None:
        """Wait until the mailbox that was full has room."""
        while self._is_full:
            self._capacity = self._capacity or anyio.Event()
            await self._capacity.wait()

    async def reply(self, number: int) -> CellReply:
        """The reply to a request that was submitted, to be taken once.

        A wait that is cancelled loses nothing: the reply can be awaited again.
        """
        ready = self._ready.pop(number, None)
        if ready is not None:
            return ready
        if number not in self._pending:
            raise AssertionError(f"request {number} is not in flight")
        future = _EventFuture() if self._loop is None else self._loop.create_future()
        self._futures[number] = future
        try:
            result: CellReply = await future
        except BaseException:
            if future.done() and not future.cancelled():
                self._ready[number] = future.result()
            else:
                self._futures.pop(number, None)
            raise
        return result

    def peek(self, number: int) -> CellReply | None:
        """The reply that is there already; None: `reply` would wait, or has given it."""
        return self._ready.get(number)

    @property
    def in_flight(self) -> int:
        """The number of requests without a reply."""
        return len(self._pending)

    def close(self) -> None:
        """Give up all requests in flight: cells drop reads that wait for records."""
        cells = set(self._pending.values())
        self._pending.clear()
        self._ready.clear()
        for cell in cells:
            self._services.batcher.submit_now(cell)
            self._services.detach(cell, self)

    # Port: called by cells.

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        pending = self._pending
        for reply in replies:
            if type(reply) is Failed:
                request = reply.request
                if not isinstance(request, StreamRequest) or isinstance(
                    request, CancelRead | FinishRead
                ):
                    continue
                number = request.number
            elif isinstance(reply, StreamReply):
                number = reply.number
            else:
                continue
            if pending.pop(number, None) is None:
                continue
            if number == self._sampled:
                self._sampled = -1
                stats = self._services.protocol_stats[LISTENER]
                stats.end_sample(self._sampled_at, self._services.now())
            future = self._futures.pop(number, None)
            if future is None or future.done():
                self._ready[number] = reply
            else:
                future.set_result(reply)

    def flush(self) -> None:
        """Nothing: coroutines that wait go on in the next pass of the event loop."""

    def must_wait(self, cell: bytes) -> None:
        """The cell's mailbox is full: `submit` waits from here on."""
        self._is_full = True
        self._services.on_capacity(cell, self._has_capacity)

    def _soon(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon(callback)

    def _submit_now(self, cell: bytes, requests: Sequence[StreamRequest], size_bytes: int) -> None:
        services = self._services
        services.batcher.submit_now(cell)
        if not services.submit(cell, Batch(self, list(requests), size_bytes), services.now()):
            self.must_wait(cell)

    def _has_capacity(self) -> None:
        self._is_full = False
        if self._capacity is not None:
            self._capacity.set()
            self._capacity = None


def _waits(request: StreamRequest) -> bool:
    """True for a read that waits for records, for as long as its client likes."""
    return isinstance(request, Read) and request.wait_until > 0


class _EventFuture:
    """The part of `asyncio.Future` that is used here, for trio."""

    __slots__ = ("_event", "_result")

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._result: list[CellReply] = []

    def done(self) -> bool:
        return bool(self._result)

    def cancelled(self) -> bool:
        return False

    def result(self) -> CellReply:
        return self._result[0]

    def set_result(self, result: CellReply, /) -> None:
        self._result.append(result)
        self._event.set()

    def __await__(self) -> Generator[Any, Any, CellReply]:
        yield from self._event.wait().__await__()
        return self._result[0]

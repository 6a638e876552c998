"""Asks cells from a coroutine and awaits their answers: one request, or a session of many.

No task and, where the cell answers at once, no future is made for a request.
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
"""Refusals are returned like other answers: as `StreamFailed` by a stream, as `Failed` by what
carries requests to it (mailbox, store, supervision)."""


class _Slot(Protocol):
    """Where one answer is waited for."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def result(self) -> CellReply: ...
    def set_result(self, result: CellReply, /) -> None: ...


class CellClient(Port):
    """The port of one HTTP request. Leaving its block detaches it from the cells it still asks.

    `ask` is for one request. A session takes numbers, submits requests that carry them, and awaits
    `answer(number)` in whatever order it likes; any number of them may be under way.
    """

    __slots__ = (
        "_full",
        "_host",
        "_loop",
        "_next",
        "_pending",
        "_ready",
        "_room",
        "_waiters",
        "_watched",
        "_watched_at",
        "number",
        "received_at",
    )

    def __init__(self, host: HttpNodeServices) -> None:
        self.number = host.next_number()
        self.received_at = host.now()
        self._host = host
        self._loop = running_loop()
        self._next = 0
        self._pending: dict[int, bytes] = {}
        """The cells of what is under way, by number."""
        self._ready: dict[int, CellReply] = {}
        self._waiters: dict[int, _Slot] = {}
        self._full = False
        self._room: anyio.Event | None = None
        self._watched = -1
        """The number of a request that is timed."""
        self._watched_at = 0.0

    def __enter__(self) -> CellClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Asking.

    def take_number(self) -> int:
        """The number for a request that is submitted next; from 0, dense."""
        number = self._next
        self._next = number + 1
        return number

    async def ask(
        self,
        cell: bytes,
        make: Callable[[int], StreamRequest],
        size_bytes: int = 0,
        *,
        gather: bool = False,
    ) -> CellReply:
        """Ask once: `make` gives the request for its number. See `submit`."""
        number = self.take_number()
        await self.submit(cell, (make(number),), size_bytes, gather=gather)
        return await self.answer(number)

    async def submit(
        self,
        cell: bytes,
        requests: Sequence[StreamRequest],
        size_bytes: int = 0,
        *,
        gather: bool = False,
    ) -> None:
        """Give a cell requests that have an answer, once its mailbox has room.

        `gather`: together with what others give it in this pass of the loop; for appends. Requests
        of one inquiry keep their order all the same.
        """
        if self._full:
            await self.room()
        pending = self._pending
        for each in requests:
            pending[each.number] = cell
        host = self._host
        now = host.now()
        if now >= host.protocol_stats[LISTENER].sample_at and not _waits(requests[0]):
            host.protocol_stats[LISTENER].begin(now)
            self._watched, self._watched_at = requests[0].number, now
        if gather and self._loop is not None:
            host.batcher.add(cell, self, list(requests), size_bytes, self._soon)
        else:
            self._hand_over(cell, requests, size_bytes)

    def tell(self, cell: bytes, request: CancelRead | FinishRead) -> None:
        """Say something that has no answer of its own."""
        self._hand_over(cell, (request,), 0)

    async def room(self) -> None:
        """Wait until the mailbox that was full has room."""
        while self._full:
            self._room = self._room or anyio.Event()
            await self._room.wait()

    async def answer(self, number: int) -> CellReply:
        """The answer to a request that was submitted, to be taken once.

        A wait that is cancelled loses nothing: it can be awaited again.
        """
        ready = self._ready.pop(number, None)
        if ready is not None:
            return ready
        if number not in self._pending:
            raise AssertionError(f"number {number} is not under way")
        slot = _EventSlot() if self._loop is None else self._loop.create_future()
        self._waiters[number] = slot
        try:
            result: CellReply = await slot
        except BaseException:
            if slot.done() and not slot.cancelled():
                self._ready[number] = slot.result()
            else:
                self._waiters.pop(number, None)
            raise
        return result

    def peek(self, number: int) -> CellReply | None:
        """What `answer` would give at once; None: it would wait, or gave it already."""
        return self._ready.get(number)

    @property
    def under_way(self) -> int:
        """So many requests have no answer yet."""
        return len(self._pending)

    def close(self) -> None:
        """Nobody waits any more: the cells forget reads that wait for records."""
        cells = set(self._pending.values())
        self._pending.clear()
        self._ready.clear()
        for cell in cells:
            self._host.batcher.submit_now(cell)
            self._host.detach(cell, self)

    # What cells call: Port.

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
            if number == self._watched:
                self._watched = -1
                self._host.protocol_stats[LISTENER].end(self._watched_at, self._host.now())
            slot = self._waiters.pop(number, None)
            if slot is None or slot.done():
                self._ready[number] = reply
            else:
                slot.set_result(reply)

    def flush(self) -> None:
        """Who waits goes on in a turn of its own."""

    def must_wait(self, cell: bytes) -> None:
        """The cell's mailbox is full: `submit` waits from here on."""
        self._full = True
        self._host.on_capacity(cell, self._has_room)

    def _soon(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        self._loop.call_soon(callback)

    def _hand_over(self, cell: bytes, requests: Sequence[StreamRequest], size_bytes: int) -> None:
        host = self._host
        host.batcher.submit_now(cell)
        if not host.submit(cell, Batch(self, list(requests), size_bytes), host.now()):
            self.must_wait(cell)

    def _has_room(self) -> None:
        self._full = False
        if self._room is not None:
            self._room.set()
            self._room = None


def _waits(request: StreamRequest) -> bool:
    """Does it wait for a record, for as long as its client likes?"""
    return isinstance(request, Read) and request.wait_until > 0


class _EventSlot:
    """What `asyncio.Future` is elsewhere, as far as it is used here."""

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

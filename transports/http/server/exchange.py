"""Exchanges: one request and its response, between a connection and the ASGI application.

Bytes of a body wait here until the application takes them; only then the client may send more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import anyio
import anyio.lowlevel

from millpond.transports.http.asgi import (
    EXTENSION,
    WHOLE_RESPONSE,
    Headers,
    Message,
    OutOfMemory,
    Scope,
    ServerExtension,
)
from millpond.transports.http.cancellation import running_loop
from millpond.transports.server.memory_budget import MemoryAccount

ResponseHead = tuple[int, Headers]
Buffer = bytes | memoryview
PIECE_BYTES = 2**10
"""Smaller pieces are joined: each would take more memory than its bytes."""


class ExchangeProtocol(Protocol):
    """The HTTP version of a connection, as its exchanges see it."""

    soon: Callable[[Callable[[], None]], None]
    """Calls back at the end of this pass of the event loop."""

    def body_wanted(self, exchange: Exchange) -> None:
        """The application waits for the body."""

    def body_taken(self, exchange: Exchange, size: int) -> None:
        """The application took so many bytes of the body, as flow control counts them."""

    def write(
        self, exchange: Exchange, head: ResponseHead | None, body: Buffer, is_last: bool
    ) -> Buffer:
        """Write the head, and as much of the body as may be sent now; gives the rest of it."""

    def is_congested(self, exchange: Exchange) -> bool:
        """True if the client does not read what was sent."""

    def may_answer(self, exchange: Exchange) -> bool:
        """True if the client can be written to. False: `resume_writing` is called when it can."""

    def now(self) -> float:
        """Seconds, of the node's clock."""

    def account(self) -> MemoryAccount | None:
        """The memory of the connection; None: it is not counted."""

    def finished(self, exchange: Exchange) -> None:
        """The application is done. A response that is not complete is broken off."""


class Exchange:
    """One request and its response.

    Implements ASGI's `receive` and `send`, with `asgi.WHOLE_RESPONSE`. `number`: its stream of
    HTTP/2; 0 in HTTP/1.1.
    """

    __slots__ = (
        "_collected",
        "_collected_bytes",
        "_credit",
        "_drop_kept",
        "_extension",
        "_head",
        "_input_event",
        "_is_collecting",
        "_is_end_reported",
        "_is_refused",
        "_memory_bytes",
        "_memory_event",
        "_output_event",
        "_pieces",
        "_protocol",
        "is_answered",
        "is_complete",
        "is_disconnected",
        "is_input_ended",
        "is_started",
        "number",
        "scope",
        "soon",
        "unread_bytes",
    )

    def __init__(self, protocol: ExchangeProtocol, scope: Scope, number: int = 0) -> None:
        self.scope = scope
        self.number = number
        self.soon = protocol.soon
        self.is_complete = False
        """The request came whole."""
        self.is_input_ended = False
        """The client sends no more, whether or not the request is complete."""
        self.is_disconnected = False
        """Nothing reaches the client any more."""
        self.is_started = False
        """The head of the response was written."""
        self.is_answered = False
        """The whole response was written."""
        self.unread_bytes = 0
        self._protocol = protocol
        self._pieces: list[bytes] = []
        self._credit = 0
        self._is_end_reported = False
        self._is_collecting = False
        """The application collects the whole body, and takes OutOfMemory for an answer."""
        self._is_refused = False
        """The application is yet to be told that there is no memory for the body."""
        self._head: ResponseHead | None = None
        self._input_event: asyncio.Event | anyio.Event | None = None
        self._output_event: asyncio.Event | anyio.Event | None = None
        self._memory_event: asyncio.Event | anyio.Event | None = None
        self._collected: list[bytes] = []
        """The body that the application collects. It holds the same list."""
        self._collected_bytes = 0
        """Memory that is held for the body, also once it is whole."""
        self._drop_kept: Callable[[], None] | None = None
        """Frees what the application keeps of a body that it reads in pieces."""
        self._memory_bytes = 0
        """Memory that is held for the answer."""
        self._extension: ServerExtension = scope["extensions"][EXTENSION]
        self._extension.memory = self

    @property
    def held_bytes(self) -> int:
        """The bytes of the request and its answer that are in memory, outside of the wire."""
        return self.unread_bytes + self._collected_bytes + self._memory_bytes

    @property
    def waits_for_client(self) -> bool:
        """True if the client has to send the body, or to read the answer."""
        return self._memory_event is None and (
            self._output_event is not None
            or not (self.is_complete or self.is_input_ended or self.unread_bytes)
        )

    def feed(self, data: bytes, credit: int) -> None:
        """Add a piece of the body; `credit` is what flow control counts for it."""
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= PIECE_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)
        self._credit += credit
        self.unread_bytes += len(data)
        if self._input_event is not None:
            self._wake_reader()

    def complete(self) -> None:
        """The body has come to its end."""
        self.is_complete = True
        if self._input_event is not None:
            self._wake_reader()

    def end_input(self) -> None:
        """The client sends no more. It may still read the response."""
        self.is_input_ended = True
        self._wake_reader()

    def disconnect(self) -> None:
        """The client is gone: what was not read is dropped, and later writes go nowhere."""
        self.is_disconnected = True
        self._extension.memory = None  # the two no longer hold each other
        self._collected.clear()
        self._collected_bytes = 0
        drop, self._drop_kept = self._drop_kept, None
        if drop is not None:
            drop()
        self._drop_input()
        self.end_input()
        self.resume_writing()
        if self._memory_event is not None:
            self._memory_event.set()

    def refuse_input(self) -> bool:
        """Drop a body that the application collects, and let it respond that there is no memory.
        False: the body is not one that can be refused."""
        if not self._is_collecting or self.is_complete or self.is_started or self.is_disconnected:
            return False
        self._is_collecting, self._is_refused = False, True
        self._collected.clear()
        self._collected_bytes = 0
        self._wake_reader()
        self._drop_input()
        return True

    def resume_writing(self) -> None:
        """The client may be written to again."""
        if self._output_event is not None:
            self._output_event.set()
            self._output_event = None

    def _wake_reader(self) -> None:
        if self._input_event is not None:
            self._input_event.set()
            self._input_event = None

    # Called by the application: ASGI.

    async def receive(self) -> Message:
        """`http.request`, each with a piece of the body, then `http.disconnect`. Raises OutOfMemory
        where the body is refused."""
        if not (self._pieces or self.is_complete or self.is_input_ended):
            self._protocol.body_wanted(self)
        while not (self._pieces or self.is_input_ended or self.is_answered or self._is_refused):
            if self.is_complete and not self._is_end_reported:
                break
            self._input_event = new_event()
            await self._input_event.wait()
        if self._is_refused:
            self._is_refused = False
            raise OutOfMemory
        has_body = bool(self._pieces)
        if not has_body and (self._is_end_reported or self.is_disconnected or not self.is_complete):
            return {"type": "http.disconnect"}
        body = self.body()
        self._is_end_reported = self.is_complete
        self._drop_input()  # which may let more of it in
        return {"type": "http.request", "body": body, "more_body": not self._is_end_reported}

    async def send(self, message: Message) -> None:
        """`http.response.start`, whose head leaves with the first `http.response.body`."""
        kind = message["type"]
        if kind == "http.response.start":
            self._head = (message["status"], message["headers"])
            return
        if kind == WHOLE_RESPONSE:
            self._head = (message["status"], message["headers"])
        is_last = not message.get("more_body", False)
        head, self._head = self._head, None
        body: Buffer = message.get("body", b"")
        rest = b"" if self.is_disconnected else self._write(head, body, is_last)
        if rest and len(body) > self._memory_bytes:
            self._memory_bytes = len(body)  # it is there already, whether or not there was room
            self._measure()
        while rest and not self.is_disconnected:
            await self._wait_to_write()
            if not self.is_disconnected:
                rest = self._write(None, rest, is_last)
        if body and (self._memory_bytes or self._collected_bytes):
            self._give_back()
        while not (is_last or self.is_disconnected) and self._protocol.is_congested(self):
            await self._wait_to_write()
        if is_last:
            self.is_answered = True
            self._wake_reader()

    def _write(self, head: ResponseHead | None, body: Buffer, is_last: bool) -> Buffer:
        self.is_started = True
        return self._protocol.write(self, head, body, is_last)

    async def _wait_to_write(self) -> None:
        if self._output_event is None:
            self._output_event = new_event()
        await self._output_event.wait()

    # Called by the application: asgi.RequestMemory.

    async def hold_answer(self, size_bytes: int) -> None:
        if self.is_disconnected:
            # Nothing waits any more: an application that reads on could never be cancelled.
            await anyio.lowlevel.checkpoint()
        while not (self.is_disconnected or self._protocol.may_answer(self)):
            await self._wait_to_write()
        size_bytes -= self._memory_bytes + self._collected_bytes
        account = self._protocol.account()
        if size_bytes <= 0 or account is None or self.is_disconnected:
            return
        if account.has_room(size_bytes, self._protocol.now()):
            self._memory_bytes += size_bytes
            self._measure()
        else:
            await self._wait_for_memory(account, size_bytes)

    def share_body(self, pieces: list[bytes]) -> None:
        self._collected = pieces
        self._is_collecting = True

    def keep_input(self, size_bytes: int, drop: Callable[[], None]) -> None:
        if not self.is_disconnected:
            self._collected_bytes, self._drop_kept = size_bytes, drop

    async def hold_input(self, size_bytes: int) -> None:
        account = self._protocol.account()
        if account is None or self.is_disconnected:
            return
        self._collected_bytes += size_bytes  # it came already
        if not account.has_room(0, self._protocol.now()):
            await self._wait_for_memory(account, 0)
        if self._is_refused:  # while it was measured
            self._is_refused = False
            raise OutOfMemory

    async def _wait_for_memory(self, account: MemoryAccount, size_bytes: int) -> None:
        """Wait until so many more bytes count as held. Raises OutOfMemory."""
        event = self._memory_event = new_event()
        is_refused = False

        def granted() -> None:
            self._memory_bytes += size_bytes
            event.set()

        def refused() -> bool:
            nonlocal is_refused
            is_refused = True
            self._is_collecting = False
            event.set()
            return True

        # A response that has begun cannot be refused any more.
        now, may_refuse = self._protocol.now(), not self.is_started
        waiter = account.wait(size_bytes, now, granted, refused if may_refuse else None)
        try:
            await event.wait()
        finally:
            account.cancel(waiter)
            self._memory_event = None
        if is_refused or self._is_refused:
            self._is_refused = False  # its connection may have refused the body as well
            raise OutOfMemory

    def _give_back(self) -> None:
        """Nothing is held for the request any more."""
        self._memory_bytes = self._collected_bytes = 0
        self._measure()

    def _measure(self) -> None:
        account = self._protocol.account()
        if account is not None:
            account.measure(self._protocol.now())

    # Called by a connection that answers without a task.

    def body(self) -> bytes:
        """The received bytes of the body that were not taken."""
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def answered(self) -> None:
        """The connection has written the whole response, if there is still a client."""
        self.is_started = self.is_answered = True
        self.finish()

    def finish(self) -> None:
        """The application is done."""
        self._drop_input()
        self._extension.memory = self._drop_kept = None  # nothing holds this object any more
        if self._memory_bytes or self._collected_bytes:
            self._give_back()
        self._protocol.finished(self)

    def _drop_input(self) -> None:
        """Forget what came and was not taken; flow control gets its credit back."""
        self._pieces.clear()
        credit, self._credit, self.unread_bytes = self._credit, 0, 0
        if credit:
            self._protocol.body_taken(self, credit)


def new_event() -> asyncio.Event | anyio.Event:
    """An event; on asyncio its own, which costs a tenth of anyio's."""
    return anyio.Event() if running_loop() is None else asyncio.Event()

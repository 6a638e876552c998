"""One request and its answer: what a connection knows of it, and what its application sees (ASGI).

Bytes of a body wait here until the application takes them; only then the other end may send more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import anyio

from millpond.transports.http.asgi import WHOLE_RESPONSE, Headers, Message, Scope
from millpond.transports.http.cancellation import running_loop

Head = tuple[int, Headers]
PIECE_BYTES = 2**10
"""Smaller pieces are kept as one: each would take more memory than what is in it."""


class ExchangeProtocol(Protocol):
    """The protocol of a connection, as one of its exchanges sees it."""

    def asks_for_body(self, exchange: Exchange) -> None:
        """The application waits for the body."""

    def taken(self, exchange: Exchange, size: int) -> None:
        """It took so many bytes of the body, as flow control counts them."""

    def write(self, exchange: Exchange, head: Head | None, body: bytes, is_last: bool) -> bytes:
        """Write the head, and what may be written of the body now; gives the rest of it."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back at the end of this pass of the loop."""

    def defer(self, exchange: Exchange) -> None:
        """It is to be answered in a task."""

    def is_held_up(self, exchange: Exchange) -> bool:
        """Does the other end not read what was sent?"""

    def conclude(self, exchange: Exchange) -> None:
        """The application is done with it. An answer that is not complete is broken off."""


class Exchange:
    """Implements ASGI's `receive` and `send` for one request, with `asgi.WHOLE` besides. `number`:
    its stream of HTTP/2."""

    __slots__ = (
        "_credit",
        "_head",
        "_is_told",
        "_pieces",
        "_room",
        "_speech",
        "_word",
        "is_answered",
        "is_complete",
        "is_cut",
        "is_gone",
        "is_started",
        "number",
        "scope",
        "unread_bytes",
    )

    def __init__(self, speech: ExchangeProtocol, scope: Scope, number: int = 0) -> None:
        self.scope = scope
        self.number = number
        self.is_complete = False
        """The request came whole."""
        self.is_gone = False
        """The other end says no more, whether or not it has said all."""
        self.is_cut = False
        """Nothing reaches it any more."""
        self.is_started = False
        """The answer's head was written."""
        self.is_answered = False
        """All of the answer was."""
        self.unread_bytes = 0
        self._speech = speech
        self._pieces: list[bytes] = []
        self._credit = 0
        self._is_told = False
        self._head: Head | None = None
        self._word: asyncio.Event | anyio.Event | None = None
        self._room: asyncio.Event | anyio.Event | None = None

    # What the connection says.

    def feed(self, data: bytes, credit: int) -> None:
        """A piece of the body came; `credit` is what flow control counts for it."""
        pieces = self._pieces
        if pieces and len(pieces[-1]) + len(data) <= PIECE_BYTES:
            pieces[-1] += data
        else:
            pieces.append(data)
        self._credit += credit
        self.unread_bytes += len(data)
        self._tell()

    def complete(self) -> None:
        """The body has come to its end."""
        self.is_complete = True
        self._tell()

    def leave(self) -> None:
        """Nothing more comes of it. What is written may still be heard."""
        self.is_gone = True
        self._tell()

    def cut(self) -> None:
        """Nobody is there any more: what it said and nobody took is no request, what is written
        from now on goes nowhere."""
        self.is_cut = True
        self._let_go()
        self.leave()
        self.make_room()

    def make_room(self) -> None:
        """Who waits to write may try again."""
        if self._room is not None:
            self._room.set()
            self._room = None

    def _tell(self) -> None:
        if self._word is not None:
            self._word.set()
            self._word = None

    # What the application asks: ASGI.

    async def receive(self) -> Message:
        """`http.request`, each with a piece of the body, then `http.disconnect`."""
        if not (self._pieces or self.is_complete or self.is_gone):
            self._speech.asks_for_body(self)
        while not (self._pieces or self.is_gone or self.is_answered):
            if self.is_complete and not self._is_told:
                break
            self._word = new_event()
            await self._word.wait()
        if not self._pieces and (self._is_told or self.is_cut or not self.is_complete):
            return {"type": "http.disconnect"}
        body = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._is_told = self.is_complete
        self._let_go()  # which may let more of it in
        return {"type": "http.request", "body": body, "more_body": not self._is_told}

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
        rest = b"" if self.is_cut else self._write(head, message.get("body", b""), is_last)
        while rest and not self.is_cut:
            await self._wait_for_room()
            if not self.is_cut:
                rest = self._write(None, rest, is_last)
        while not (is_last or self.is_cut) and self._speech.is_held_up(self):
            await self._wait_for_room()
        if is_last:
            self.is_answered = True
            self._tell()

    def _write(self, head: Head | None, body: bytes, is_last: bool) -> bytes:
        self.is_started = True
        return self._speech.write(self, head, body, is_last)

    async def _wait_for_room(self) -> None:
        if self._room is None:
            self._room = new_event()
        await self._room.wait()

    # Where no task is needed: asgi.Asked.

    def body(self) -> bytes:
        pieces = self._pieces
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def soon(self, callback: Callable[[], None]) -> None:
        self._speech.soon(callback)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        try:
            if not self.is_cut:
                rest = self._write((status, headers), body, True)
                assert not rest, "HTTP/1.1 takes all there is"
            self.is_answered = True
        finally:
            self.over()

    def defer(self) -> None:
        self._speech.defer(self)

    def over(self) -> None:
        """The application is done."""
        self._let_go()
        self._speech.conclude(self)

    def _let_go(self) -> None:
        """Of what came and was not taken."""
        self._pieces.clear()
        credit, self._credit, self.unread_bytes = self._credit, 0, 0
        if credit:
            self._speech.taken(self, credit)


def new_event() -> asyncio.Event | anyio.Event:
    """Where asyncio runs, its own: a tenth of the cost."""
    return anyio.Event() if running_loop() is None else asyncio.Event()

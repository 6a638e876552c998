"""A client that says what a script has it say, and keeps what it hears."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio

from millpond.node.testing.dialogue.protocol import Decoder
from millpond.transports.io.interface import Wire

Heard = TypeVar("Heard")


class DialogueClient(Generic[Heard]):
    """A session."""

    def __init__(self, decoder: Decoder[Heard]) -> None:
        self.heard: deque[Heard] = deque()
        self.is_over = False
        self._decoder = decoder
        self._stirred = anyio.Event()
        self._wire: Wire | None = None

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def received(self, data: bytes) -> None:
        self.heard.extend(self._decoder.feed(data))
        self._stirred.set()

    def uncongested(self) -> None: ...

    def eof(self) -> None:
        self._end()

    def ended(self) -> None:
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._stirred.set()
        self.close()

    # What the script calls.

    def say(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.write(data)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    async def listen(self) -> Heard | None:
        """What the node says next; None once it has closed the connection."""
        while not self.heard:
            if self.is_over:
                return None
            self._stirred = anyio.Event()
            await self._stirred.wait()
        return self.heard.popleft()

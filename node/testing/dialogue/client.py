"""The client of a dialogue: it sends what the script says, and keeps received messages."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import anyio

from millpond.node.testing.dialogue.protocol import Decoder
from millpond.transports.io.interface import Wire

Received = TypeVar("Received")


class DialogueClient(Generic[Received]):
    """One connection of a dialogue, as a session."""

    def __init__(self, decoder: Decoder[Received]) -> None:
        self.received_messages: deque[Received] = deque()
        self.is_over = False
        self._decoder = decoder
        self._changed = anyio.Event()
        self._wire: Wire | None = None

    # Session: called by the wire.

    def opened(self, wire: Wire) -> None:
        self._wire = wire

    def received(self, data: bytes) -> None:
        self.received_messages.extend(self._decoder.feed(data))
        self._changed.set()

    def uncongested(self) -> None: ...

    def eof(self) -> None:
        self._end()

    def ended(self) -> None:
        self._end()

    def _end(self) -> None:
        self.is_over = True
        self._changed.set()
        self.close()

    # Called by the script.

    def send(self, data: bytes) -> None:
        if self._wire is not None:
            self._wire.write(data)

    def close(self) -> None:
        if self._wire is not None:
            self._wire.close()

    async def receive(self) -> Received | None:
        """The node's next message; None after it has closed the connection."""
        while not self.received_messages:
            if self.is_over:
                return None
            self._changed = anyio.Event()
            await self._changed.wait()
        return self.received_messages.popleft()

"""A server that says what the test tells it, byte for byte, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio

from millpond.transports.io import tcp
from millpond.transports.io.interface import Listener, Wire

SOON_S = 5


class ByteLine:
    """One accepted connection, as the server sees it."""

    def __init__(self, server: ByteServer) -> None:
        self.input = b""
        self.is_over = False
        self._server = server
        self._wire: Wire

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._server.lines.append(self)
        if self._server.greeting:
            self.say(self._server.greeting)
            self.close()
        self._server.stir()

    def received(self, data: bytes) -> None:
        self.input += data
        self._server.answer(self)
        self._server.stir()

    def uncongested(self) -> None: ...

    def eof(self) -> None:
        self.is_over = True
        self._wire.close()
        self._server.stir()

    def ended(self) -> None:
        self.is_over = True
        self._server.stir()

    def say(self, data: bytes) -> None:
        self._wire.write(data)

    def close(self) -> None:
        """Say no more, in order."""
        self._wire.close()

    def cut(self) -> None:
        """End now."""
        self._wire.abort()


class ByteServer:
    """`answer` is called with the input of a line; by default it does nothing."""

    def __init__(self) -> None:
        self.lines: list[ByteLine] = []
        self.greeting = b""
        self.address = ""
        self.answer: Callable[[ByteLine], None] = lambda line: None
        self._stirred = anyio.Event()
        self._listener: Listener

    @property
    def line(self) -> ByteLine:
        """The newest connection."""
        return self.lines[-1]

    def stir(self) -> None:
        self._stirred.set()

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait until something holds; what is not on the wire is looked at now and then."""
        with anyio.fail_after(SOON_S):
            while not fact():
                self._stirred = anyio.Event()
                with anyio.move_on_after(0.005):
                    await self._stirred.wait()

    async def expects(self, data: bytes, line: int = -1) -> ByteLine:
        """Wait for exactly these bytes on a line, by default the newest, and forget them."""
        await self.until(lambda: len(self._input(line)) >= len(data))
        found, self.lines[line].input = self.lines[line].input, b""
        assert found == data
        return self.lines[line]

    def _input(self, line: int) -> bytes:
        return self.lines[line].input if self.lines[line:] else b""

    async def go_away(self) -> None:
        """Accept no more, and end what there is."""
        await self.stop_listening()
        for line in self.lines:
            line.cut()

    async def stop_listening(self) -> None:
        """Accept no more."""
        await self._listener.aclose()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[ByteServer]:
        async with anyio.create_task_group() as tasks:
            self._listener = await tcp.listen(tasks, "127.0.0.1", 0, lambda: ByteLine(self))
            self.address = self._listener.address
            yield self
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def byte_server() -> AsyncIterator[ByteServer]:
    """A server that listens until the block ends."""
    async with ByteServer().listening() as server:
        yield server

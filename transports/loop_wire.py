"""A Wire on asyncio's and uvloop's own transports: a read calls the session, a write the transport.

No task, no queue and no future per connection (performance.md 2a, 3): idle, it costs its slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import anyio

from transports.address import format_address
from transports.seam import Session
from transports.streams import FLUSH_S, LINGER_BYTES, LINGER_S


class LoopWire(asyncio.Protocol):
    """A Wire that is its own asyncio protocol. After `close` it only flushes and discards."""

    __slots__ = (
        "_closing",
        "_congested",
        "_discarded_bytes",
        "_eof",
        "_high_water_bytes",
        "_paused",
        "_session",
        "_timer",
        "_transport",
        "_wires",
        "host",
        "peer",
        "secure",
    )

    def __init__(
        self, session: Session, wires: LoopWires, high_water_bytes: int, *, secure: bool
    ) -> None:
        self.peer = self.host = ""
        self.secure = secure
        self._session = session
        self._wires = wires
        self._high_water_bytes = high_water_bytes
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0
        self._closing = self._congested = self._eof = self._paused = False

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        transport = self._transport
        # uvloop raises on a transport that a reset has closed before connection_lost is called.
        if not (transport is None or self._closing or transport.is_closing()):
            transport.write(data)

    def pause(self) -> None:
        if self._transport is not None and not (self._eof or self._closing):
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and self._paused and not self._eof:
            self._paused = False
            self._transport.resume_reading()

    def close(self) -> None:
        transport = self._transport
        if transport is None or self._closing:
            return
        self.resume()
        self._closing = True
        if transport.is_closing():
            return
        self._end_after(FLUSH_S, transport.abort)
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        transport.write_eof()
        transport.set_write_buffer_limits(0)  # now resume_writing means that all is sent
        if not transport.get_write_buffer_size():
            self._end_after(LINGER_S, transport.close)

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # what TCP and TLS always give
        self._wires.add(self)
        host, port = transport.get_extra_info("peername", ("", 0))[:2]
        self.host, self.peer = host, format_address(host, port)
        self._transport.set_write_buffer_limits(self._high_water_bytes)
        self._tell(self._session.opened, self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._discard(len(data))
        else:
            self._session.received(data)

    def eof_received(self) -> bool:
        self._eof = True
        if not self._closing:
            self._session.eof()
        elif self._transport is not None:
            self._transport.close()
        return not self.secure  # TLS cannot stay half open

    def pause_writing(self) -> None:
        self._congested = True

    def resume_writing(self) -> None:
        self._congested = False
        # asyncio ends a connection twice when it is closed or aborted in here.
        asyncio.get_running_loop().call_soon(self._drained)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        session = self._session
        del self._session  # wire and session no longer hold each other: no work for the collector
        self._transport = self._timer = None
        self._closing = True
        self._congested = False
        self._wires.remove(self)
        session.ended()

    def _drained(self) -> None:
        if self._transport is None:
            return
        if self._closing:
            self._end_after(LINGER_S, self._transport.close)
        elif not self._congested:
            self._tell(self._session.uncongested)

    def _tell(self, event: Callable[..., None], *args: object) -> None:
        """Call the session where asyncio only logs what it raises, and end the connection then."""
        survived = False
        try:
            event(*args)
            survived = True
        finally:
            if not survived:
                self.abort()

    def _discard(self, size: int) -> None:
        # Until all is sent the other end may have to be read to make it read in turn.
        if self._transport is not None and not self._transport.get_write_buffer_size():
            self._discarded_bytes += size
            if self._discarded_bytes > LINGER_BYTES:
                self._transport.close()

    def _end_after(self, delay_s: float, end: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, end)


class LoopWires:
    """The open wires of one listener or dial. They end with the task that holds them."""

    def __init__(self) -> None:
        self._open: set[LoopWire] = set()
        self._is_complete = False
        self._over = asyncio.Event()

    def add(self, wire: LoopWire) -> None:
        self._open.add(wire)

    def remove(self, wire: LoopWire) -> None:
        self._open.discard(wire)
        self._look()

    def complete(self) -> None:
        """No more wires come."""
        self._is_complete = True
        self._look()

    async def hold(self, stop: Callable[[], None] = lambda: None) -> None:
        """Return when the last wire is gone; cancelled, `stop` new ones and abort the open ones."""
        try:
            await self._over.wait()
        except asyncio.CancelledError:
            stop()
            self.complete()
            for wire in tuple(self._open):
                wire.abort()
            with anyio.move_on_after(LINGER_S, shield=True):
                await self._over.wait()
            raise

    def _look(self) -> None:
        if self._is_complete and not self._open:
            self._over.set()

"""A Wire on asyncio's and uvloop's own transports, without a task, a queue or a future of its own.

Idle, it costs its slots (docs/internals/performance-notes.md). Reads and writes go through the
listener's `LoopPass`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import anyio

from millpond.transports.io.address import format_address
from millpond.transports.io.anyio_wire import FLUSH_S, LINGER_BYTES, LINGER_S
from millpond.transports.io.interface import Session
from millpond.transports.io.loop_pass import LoopPass

LARGE_BYTES = 2**16
"""Larger writes are not joined first."""
PIECE_BYTES = 2**18
"""Bytes that the transport does not take at once are cut into pieces of this size: the transport
keeps a piece until all of it is sent, and would keep a large answer whole until its last byte."""


_NO_PIECES: deque[bytes] = deque()
"""Of most wires; never added to."""


class AsyncioWire(asyncio.Protocol):
    """A Wire that is its own asyncio protocol. After `close` it only flushes and discards."""

    __slots__ = (
        "_closing",
        "_discarded_bytes",
        "_eof",
        "_high_water_bytes",
        "_is_over",
        "_loop_pass",
        "_paused",
        "_pieces",
        "_pieces_bytes",
        "_session",
        "_timer",
        "_transport",
        "_unwritten",
        "_unwritten_bytes",
        "_wires",
        "congested",
        "host",
        "peer",
    )

    secure = False
    peer_certificate_hash: bytes | None = None
    failure: OSError | None = None

    def __init__(self, session: Session, wires: AsyncioWires, high_water_bytes: int) -> None:
        self.peer = self.host = ""
        self._session = session
        self._wires = wires
        self._loop_pass = wires.loop_pass
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = 0
        self._high_water_bytes = high_water_bytes
        self._pieces: deque[bytes] = _NO_PIECES
        """The bytes that wait for the transport; `congested` as long as there are any."""
        self._pieces_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._discarded_bytes = 0
        self._closing = self._eof = self._paused = self._is_over = False
        self.congested = False

    @property
    def fileno(self) -> int:
        socket = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if socket is None else int(socket.fileno())

    @property
    def unsent_bytes(self) -> int:
        if self._transport is None:
            return 0
        waiting_bytes = self._unwritten_bytes + self._pieces_bytes
        return self._transport.get_write_buffer_size() + waiting_bytes

    def write(self, data: bytes) -> None:
        if self._closing:
            return
        loop_pass, unwritten = self._loop_pass, self._unwritten
        is_first = not unwritten
        unwritten.append(data)
        self._unwritten_bytes += len(data)
        if not loop_pass.is_running or self._unwritten_bytes > self._high_water_bytes:
            self.write_out()
        elif is_first:
            loop_pass.add_write(self)

    def write_out(self) -> None:
        """Give the transport the bytes that waited for the end of the pass."""
        unwritten, transport = self._unwritten, self._transport
        # uvloop raises on a transport that a reset has closed before connection_lost is called.
        if unwritten and transport is not None and not transport.is_closing():
            if self._pieces or self._unwritten_bytes > self._high_water_bytes:
                self._cut(unwritten)
                self._feed(transport)
            elif len(unwritten) == 1:
                transport.write(unwritten[0])
            elif self._unwritten_bytes < LARGE_BYTES:
                transport.write(b"".join(unwritten))
            else:
                transport.writelines(unwritten)
        unwritten.clear()
        self._unwritten_bytes = 0

    def _cut(self, unwritten: list[bytes]) -> None:
        if self._pieces is _NO_PIECES:
            self._pieces = deque()
        for data in unwritten:
            self._pieces_bytes += len(data)
            if len(data) <= PIECE_BYTES:
                self._pieces.append(data)
            else:
                starts = range(0, len(data), PIECE_BYTES)
                self._pieces += [data[start : start + PIECE_BYTES] for start in starts]

    def _feed(self, transport: asyncio.Transport) -> None:
        """Give the transport pieces until it is full."""
        pieces = self._pieces
        while pieces and not self.congested:
            piece = pieces.popleft()
            self._pieces_bytes -= len(piece)
            transport.write(piece)

    def handle_read(self, data: bytes) -> None:
        """Give what was read to the session, b"" being an end; while closing, discard it."""
        if data and not self._closing:
            self._session.received(data)
        elif data:
            self._discard(len(data))
        elif self._transport is None:
            self._finish()
        elif self._closing:
            self._transport.close()
        else:
            self._session.eof()

    def soon(self, callback: Callable[[], None]) -> None:
        if self._loop_pass.is_running:
            self._loop_pass.call_at_end(callback)
        else:
            callback()

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
        self.write_out()
        self._closing = True
        if transport.is_closing():
            return
        if self._pieces:
            transport.writelines(self._pieces)
            self._drop_pieces()
        self._end_after(FLUSH_S, transport.abort)
        if self._eof or not transport.can_write_eof():
            transport.close()
            return
        try:
            transport.write_eof()
        except OSError:  # a reset that was not reported yet
            transport.abort()
            return
        transport.set_write_buffer_limits(0)  # now resume_writing means that all is sent
        if not transport.get_write_buffer_size():
            self._end_after(LINGER_S, transport.close)

    def abort(self) -> None:
        self._closing = True
        self._unwritten.clear()
        self._unwritten_bytes = 0
        self._drop_pieces()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # what TCP and TLS always give
        self._wires.add(self)
        host, port = (transport.get_extra_info("peername") or ("", 0))[:2]  # "": reset already
        self.host, self.peer = host, format_address(host, port)
        self._transport.set_write_buffer_limits(self._high_water_bytes)
        self._call(self._session.opened, self)

    def data_received(self, data: bytes) -> None:
        self._loop_pass.add_read(self, data)

    def eof_received(self) -> bool:
        self._eof = True
        self.data_received(b"")  # an end keeps its place behind what came before it
        return True

    def pause_writing(self) -> None:
        self.congested = True

    def resume_writing(self) -> None:
        self.congested = bool(self._pieces)
        # asyncio ends a connection twice when it is closed or aborted in here.
        asyncio.get_running_loop().call_soon(self._drained)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._transport = self._timer = None
        self._drop_pieces()
        self.congested = False
        self.data_received(b"")

    def _finish(self) -> None:
        self._closing = True
        if not self._is_over:
            self._is_over = True
            session = self._session
            del self._session  # the two no longer hold each other: no work for the collector
            self._wires.remove(self)
            session.ended()

    def _drained(self) -> None:
        if self._transport is None:
            return
        if self._pieces:
            self.congested = False
            self._feed(self._transport)
        if self._closing:
            self._end_after(LINGER_S, self._transport.close)
        elif not self.congested:
            self._call(self._session.uncongested)

    def _drop_pieces(self) -> None:
        self._pieces = _NO_PIECES
        self._pieces_bytes = 0

    def _call(self, event: Callable[..., None], *args: object) -> None:
        """Call the session, and end the connection if it raises: asyncio would only log it."""
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


class AsyncioWires:
    """The open wires of one listener or dial. They end with the task that holds them."""

    def __init__(self) -> None:
        self.loop_pass = LoopPass(asyncio.get_running_loop())
        self._open: set[AsyncioWire] = set()
        self._is_complete = False
        self._over = asyncio.Event()

    def add(self, wire: AsyncioWire) -> None:
        self._open.add(wire)

    def remove(self, wire: AsyncioWire) -> None:
        self._open.discard(wire)
        self._check_complete()

    def complete(self) -> None:
        """No more wires come."""
        self._is_complete = True
        self._check_complete()

    async def wait_closed(self, stop: Callable[[], None] = lambda: None) -> None:
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

    def _check_complete(self) -> None:
        if self._is_complete and not self._open:
            self._over.set()

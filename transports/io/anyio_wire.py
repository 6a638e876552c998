"""Drives a session over any anyio byte stream: one task reads, one writes (trio, `memory`)."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import ByteStream, SocketAttribute, TaskStatus

from millpond.transports.io.interface import Session

HIGH_WATER_BYTES = 2**20
READ_BYTES = 2**16
SEND_BYTES = 2**18
"""Bytes are sent in pieces of at most this size, and larger writes are cut into such pieces: a
write that is kept whole would hold its memory until its last byte is sent."""
FLUSH_S = 10.0
LINGER_S = 0.2
LINGER_BYTES = 2**16
_GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)

Guard = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Runs one connection, and keeps its exceptions from ending the others."""


async def unguarded(run: Callable[[], Awaitable[None]]) -> None:
    """Runs a connection without a guard: exceptions of the session reach the task group."""
    await run()


async def drive(
    stream: ByteStream,
    session: Session,
    *,
    peer: str,
    host: str | None = None,
    high_water_bytes: int = HIGH_WATER_BYTES,
    guard: Guard = unguarded,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Run `session` on `stream` until the connection is gone; `host` is `peer` when not given.

    `task_status` is started once `session.opened` was called.
    """
    wire = _AnyioWire(stream, session, high_water_bytes)
    wire.peer, wire.host = peer, peer if host is None else host

    async def run() -> None:
        await wire.run(task_status)

    await guard(run)


class _AnyioWire:
    """A Wire over a ByteStream. `write` only queues: the writing task sends."""

    peer: str
    host: str
    secure = False
    peer_certificate_hash: bytes | None = None
    failure: OSError | None = None

    def __init__(self, stream: ByteStream, session: Session, high_water_bytes: int) -> None:
        self._stream = stream
        self._session = session
        self._high_water_bytes = high_water_bytes
        self._scope = anyio.CancelScope()
        self._out: deque[bytes] = deque()
        """The pieces that wait to be sent."""
        self._unsent_bytes = 0
        self._wake = anyio.Event()
        self._resumed = anyio.Event()
        self._input_over = anyio.Event()
        self._congested = False
        self._paused = False
        self._closing = False

    @property
    def congested(self) -> bool:
        return self._congested

    @property
    def fileno(self) -> int:
        socket = self._stream.extra(SocketAttribute.raw_socket, None)
        return -1 if socket is None else socket.fileno()

    @property
    def unsent_bytes(self) -> int:
        return self._unsent_bytes

    def write(self, data: bytes) -> None:
        if self._closing or not data:
            return
        if len(data) <= SEND_BYTES:
            self._out.append(data)
        else:
            starts = range(0, len(data), SEND_BYTES)
            self._out += [data[start : start + SEND_BYTES] for start in starts]
        self._unsent_bytes += len(data)
        if self._unsent_bytes > self._high_water_bytes:
            self._congested = True
        self._wake.set()

    def soon(self, callback: Callable[[], None]) -> None:
        callback()

    def pause(self) -> None:
        if not self._paused and not self._closing:
            self._paused = True
            self._resumed = anyio.Event()

    def resume(self) -> None:
        self._paused = False
        self._resumed.set()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._scope.deadline = anyio.current_time() + FLUSH_S + LINGER_S
            self.resume()
            self._wake.set()

    def abort(self) -> None:
        self._closing = True
        self._scope.cancel()

    async def run(self, task_status: TaskStatus[None]) -> None:
        """Carry the connection from `opened` to `ended`."""
        try:
            await self._run_open(task_status)
        finally:
            self._closing = True
            self._out.clear()
            self._unsent_bytes = 0
            try:
                await anyio.aclose_forcefully(self._stream)
            finally:
                self._session.ended()

    async def _run_open(self, task_status: TaskStatus[None]) -> None:
        with self._scope:
            try:
                self._session.opened(self)
            finally:
                task_status.started()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_all)
                await self._write_all()
                await self._half_close()
                tasks.cancel_scope.cancel()

    async def _read_all(self) -> None:
        discarded_bytes = 0
        while discarded_bytes <= LINGER_BYTES:
            try:
                data = await self._stream.receive(READ_BYTES)
            except anyio.EndOfStream:
                if not self._closing:
                    self._session.eof()
                break
            except _GONE:
                self._scope.cancel()
                break
            while self._paused:
                await self._resumed.wait()
            if self._closing:
                # Until all is sent the other end may have to be read to make it read in turn.
                discarded_bytes += 0 if self._unsent_bytes else len(data)
            else:
                self._session.received(data)
        self._input_over.set()

    async def _write_all(self) -> None:
        """Send what is queued, until the wire is closed and the queue is empty."""
        while True:
            if self._out:
                try:
                    await self._send(self._next_piece())
                except _GONE:
                    self._scope.cancel()
                    return
            elif self._closing:
                return
            else:
                self._wake = anyio.Event()
                await self._wake.wait()

    def _next_piece(self) -> bytes:
        """The piece that is sent next: small writes are joined."""
        out = self._out
        pieces = [out.popleft()]
        size = len(pieces[0])
        while out and size + len(out[0]) <= SEND_BYTES:
            size += len(out[0])
            pieces.append(out.popleft())
        return b"".join(pieces)

    async def _send(self, piece: bytes) -> None:
        await self._stream.send(piece)
        self._unsent_bytes -= len(piece)
        if self._congested and self._unsent_bytes <= self._high_water_bytes // 4:
            self._congested = False
            if not self._closing:
                self._session.uncongested()

    async def _half_close(self) -> None:
        """Send an end of stream, and wait for that of the other end
        (docs/reference/wire-protocol.md, S3A-25)."""
        with anyio.move_on_after(LINGER_S):
            try:
                await self._stream.send_eof()
            except _GONE:
                return
            await self._input_over.wait()

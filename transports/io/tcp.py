"""TCP: `listen` and `dial`, by `asyncio_wire` on asyncio and uvloop, by `anyio_wire` on trio."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketListener, SocketStream, TaskGroup, TaskStatus

from millpond.transports.io.address import format_address as format_address
from millpond.transports.io.address import parse_address as parse_address
from millpond.transports.io.anyio_wire import HIGH_WATER_BYTES, Guard, drive, unguarded
from millpond.transports.io.asyncio_wire import AsyncioWire, AsyncioWires
from millpond.transports.io.interface import Listener, Session, SessionFactory
from millpond.transports.io.session_factory import contained
from millpond.transports.io.tls import SecureWire
from millpond.transports.io.tls_handshake import HANDSHAKE_S, TlsAcceptor, TlsConnector

BACKLOG = 1024
ACCEPT_RETRY_S = 0.1
PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 120_000}
"""Seconds, a count and milliseconds: a peer that vanished is noticed in two minutes."""


async def listen(
    tasks: TaskGroup,
    host: str,
    port: int,
    factory: SessionFactory,
    *,
    tls: ssl.SSLContext | TlsAcceptor | None = None,
    high_water_bytes: int = HIGH_WATER_BYTES,
    guard: Guard = unguarded,
) -> Listener:
    """Accept connections at one address, each with a session of its own; port 0 is any port.

    Listener and connections end with `tasks` at the latest. Where a connection needs a task of its
    own, it runs under `guard`; elsewhere the event loop reports exceptions of a session. A
    connection whose session cannot be made is closed, and the listener goes on. With `tls` a
    session is opened once the TLS handshake is done; see `TlsAcceptor`. Raises OSError, also when
    the port is taken.
    """
    factory = contained(factory)
    acceptor = TlsAcceptor(lambda: tls) if isinstance(tls, ssl.SSLContext) else tls
    bound = await bind(host, port)
    address = format_address(*bound.getsockname()[:2])
    listener: _AsyncioListener | _AnyioListener
    if acceptor is not None:
        factory = acceptor.wrap(factory)
        tasks.start_soon(acceptor.watch)
    if _asyncio_runs():
        wires = AsyncioWires()
        server = await asyncio.get_running_loop().create_server(
            lambda: AsyncioWire(factory(), wires, high_water_bytes), sock=bound, backlog=BACKLOG
        )
        tasks.start_soon(wires.wait_closed, server.close)
        return _AsyncioListener(address, server, wires, acceptor)
    listener = _AnyioListener(address, await SocketListener.from_socket(bound), acceptor)
    serve = partial(_serve, high_water_bytes=high_water_bytes, guard=guard)
    tasks.start_soon(listener.accept_all, tasks, factory, serve)
    return listener


async def dial(
    tasks: TaskGroup,
    host: str,
    port: int,
    session: Session,
    *,
    tls: ssl.SSLContext | None = None,
    server_hostname: str | None = None,
    high_water_bytes: int = HIGH_WATER_BYTES,
    guard: Guard = unguarded,
) -> None:
    """Connect `session`; returns once its `opened` was called. Raises OSError, TLS's included."""
    if tls is None:
        await _dial(tasks, host, port, session, high_water_bytes, guard)
        return
    connector = TlsConnector()
    secured = SecureWire(session, tls, connector, server_hostname or host)
    await _dial(tasks, host, port, secured, high_water_bytes, guard)
    await connector.wait(HANDSHAKE_S, secured)


async def _dial(
    tasks: TaskGroup, host: str, port: int, session: Session, high_water_bytes: int, guard: Guard
) -> None:
    if _asyncio_runs():
        wires = AsyncioWires()
        await asyncio.get_running_loop().create_connection(
            lambda: AsyncioWire(session, wires, high_water_bytes), host, port
        )
        wires.complete()
        tasks.start_soon(wires.wait_closed)
        return
    stream = await anyio.connect_tcp(host, port)
    await tasks.start(partial(_drive_socket, stream, session, high_water_bytes, guard))


async def bind(host: str, port: int) -> socket.socket:
    """One listening socket, IPv4 where a name has both; no SO_REUSEPORT: a taken port is taken."""
    found = await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _probe(bound)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def _probe(bound: socket.socket) -> None:
    """Enable keep-alive probes, which accepted connections inherit."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        option = getattr(socket, name, None)  # not all systems have all of them
        if option is not None:
            bound.setsockopt(socket.IPPROTO_TCP, option, value)


def _asyncio_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


PASSES_TO_MAKE_A_WIRE = 3
"""After so many passes of the loop an accepted socket is a wire."""


class _AsyncioListener:
    def __init__(
        self,
        address: str,
        server: asyncio.Server,
        wires: AsyncioWires,
        acceptor: TlsAcceptor | None,
    ) -> None:
        self.address = address
        self._server = server
        self._wires = wires
        self._acceptor = acceptor

    async def aclose(self) -> None:
        await self._stop_accepting()
        self._server.close()
        self._wires.complete()
        if self._acceptor is not None:
            self._acceptor.complete()
        await asyncio.sleep(0)  # uvloop frees the port one pass later

    async def _stop_accepting(self) -> None:
        """asyncio (as of 3.11) leaks a socket that it accepted and has no transport for when its
        server is closed; so it accepts no more, and what it has becomes a wire first."""
        loop = asyncio.get_running_loop()
        if not isinstance(loop, asyncio.SelectorEventLoop):
            return
        for each in self._server.sockets:
            loop.remove_reader(each.fileno())
        with anyio.CancelScope(shield=True):
            for _ in range(PASSES_TO_MAKE_A_WIRE):
                await asyncio.sleep(0)


_Serve = Callable[[SocketStream, Session], Coroutine[Any, Any, None]]


class _AnyioListener:
    def __init__(
        self, address: str, listener: SocketListener, acceptor: TlsAcceptor | None
    ) -> None:
        self.address = address
        self._listener = listener
        self._acceptor = acceptor
        self._scope = anyio.CancelScope()

    async def accept_all(self, tasks: TaskGroup, factory: SessionFactory, serve: _Serve) -> None:
        """Accept until `aclose`; without descriptors to spare, wait for some."""
        try:
            with self._scope:
                while True:
                    try:
                        stream = await self._listener.accept()
                    except anyio.ClosedResourceError:
                        return
                    except anyio.BrokenResourceError:
                        await anyio.sleep(ACCEPT_RETRY_S)
                    else:
                        tasks.start_soon(serve, stream, factory())
        finally:
            await anyio.aclose_forcefully(self._listener)

    async def aclose(self) -> None:
        self._scope.cancel()
        await self._listener.aclose()
        if self._acceptor is not None:
            self._acceptor.complete()


async def _serve(
    stream: SocketStream, session: Session, *, high_water_bytes: int, guard: Guard
) -> None:
    try:
        await _drive_socket(stream, session, high_water_bytes, guard)
    except OSError:
        return  # reset while it waited to be accepted


async def _drive_socket(
    stream: SocketStream,
    session: Session,
    high_water_bytes: int,
    guard: Guard,
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    remote = stream.extra(SocketAttribute.remote_address, None)
    if remote is None:
        await anyio.aclose_forcefully(stream)
        raise ConnectionResetError("the other end is gone already")
    host, port = str(remote[0]), int(remote[1])
    await drive(
        stream,
        session,
        peer=format_address(host, port),
        host=host,
        high_water_bytes=high_water_bytes,
        guard=guard,
        task_status=task_status,
    )

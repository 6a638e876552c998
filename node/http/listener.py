"""The HTTP listener of a node: HTTP/1.1 and HTTP/2 on one port."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio.abc import TaskGroup

from millpond.actors.runtime.supervisor import contain
from millpond.node.config import Config
from millpond.transports.http.server.server import Clock, HttpServer
from millpond.transports.http.server.settings import ServerSettings
from millpond.transports.io.interface import Listener, Session
from millpond.transports.io.tcp import listen as listen_by_bytes
from millpond.transports.io.tls_handshake import TlsAcceptor
from millpond.transports.server.interface import MemoryServices

if TYPE_CHECKING:
    from millpond.transports.http.app import Application

HIGH_WATER_BYTES = 2**18


class ListenerServices(Clock, MemoryServices, Protocol):
    """The node, as its HTTP listener sees it: clock, timers and memory."""


class HttpListener:
    """An open HTTP listener. Implements `millpond.transports.io.interface.Listener`."""

    def __init__(self, server: HttpServer, accepting: Listener) -> None:
        self.address = accepting.address
        self._server = server
        self._accepting = accepting

    async def aclose(self) -> None:
        """Accept no more connections; answer the requests in progress, then close theirs."""
        await self._accepting.aclose()
        self._server.start_drain()


async def listen(
    tasks: TaskGroup,
    host: str,
    port: int,
    application: Callable[[], Application],
    config: Config,
    services: ListenerServices,
    cut: Callable[[], None],
    acceptor: TlsAcceptor | None = None,
    new_websocket: Callable[[], Session] | None = None,
) -> HttpListener:
    """Serve at one address; port 0 is any port. Ends with `tasks`. Raises OSError.

    `application` makes what is served, before the first connection, as that takes time;
    `cut` ends all requests at once; `new_websocket` makes sessions of WebSockets.
    The seconds of `services` are those since 1970.
    """

    def load(server: HttpServer) -> None:
        made = application()
        server.use(made, made.direct_requests, made.rejection_headers)

    guard = partial(contain, "request/http")
    server = HttpServer(
        None,
        settings_of(config),
        services,
        guard,
        DateHeader(),
        memory=services.memory,
        principal_key=services.principal_key,
        new_websocket=new_websocket,
        load=load,
    )
    inner: TaskGroup = await tasks.start(server.run)
    try:
        accepting = await listen_by_bytes(
            inner,
            host,
            port,
            server.new_connection,
            tls=acceptor,
            high_water_bytes=HIGH_WATER_BYTES,
            guard=partial(contain, "connection/http"),
        )
        await tasks.start(server.stop_when_cancelled, cut)
    except BaseException:
        server.stop()
        raise
    return HttpListener(server, accepting)


class DateHeader:
    """The value of the header `date`, formatted once a second."""

    def __init__(self) -> None:
        self._second = -1
        self._text = b""

    def __call__(self, now: float) -> bytes:
        second = int(now)
        if second != self._second:
            from email.utils import formatdate  # it takes time, and the start needs no date

            self._second = second
            self._text = formatdate(second, usegmt=True).encode()
        return self._text


def settings_of(config: Config) -> ServerSettings:
    """The settings of HTTP connections, from the node's configuration."""
    return ServerSettings(
        connections_max=config.http_connections_max,
        streams_max=config.http_streams_max,
        url_bytes_max=config.http_url_bytes_max,
        header_bytes_max=config.http_header_bytes_max,
        head_s=config.http_head_s,
        idle_s=config.http_idle_s,
        ping_s=config.http_ping_s,
    )

"""The HTTP listener of a standby: `/health` and `/ready` tell what it is, and everything else is
redirected to the owner, where that has a public address, or refused until it has taken over.

It knows no clients and has no store, so a request of another machine gets no reason. The browser
policy is that of the node: no page learns from it that there is a standby.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from millpond.actors.runtime.supervisor import contain
from millpond.actors.runtime.timers import Timers
from millpond.node.browser_policy import browser_policy
from millpond.node.config import OFF, Config
from millpond.node.http.health import READING
from millpond.node.http.listener import HIGH_WATER_BYTES, DateHeader, settings_of
from millpond.node.ip import is_remote
from millpond.node.tls.listeners import TlsListeners
from millpond.transports.browser_policy import BrowserPolicy, BrowserRefusal
from millpond.transports.http.asgi import Receive, Scope, Send
from millpond.transports.http.server.server import HttpServer
from millpond.transports.io.address import parse_address
from millpond.transports.io.tcp import listen
from millpond.transports.server.interface import ConnectionCounters

TIMERS_S = 0.5
RETRY_AFTER_S = 1
ROLE = "standby"
REFUSED = "this node is a standby: it serves once it has taken over; ask the owner of the replica"

REDIRECTED = "this node is a standby: the owner of the replica is at the address of Location"


class StandbyState(Protocol):
    """A standby, as its listener shows it."""

    @property
    def state(self) -> str:
        """Its state, in words."""

    @property
    def owner_url(self) -> str:
        """The public address of the owner; empty: there is none, or it gives no sign of life."""


class StandbyApplication:
    """The ASGI application of a standby."""

    def __init__(self, standby: StandbyState, policy: BrowserPolicy) -> None:
        self._standby = standby
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server has no other scopes without an application"
        status, content, more = self._answer(scope)
        body = json.dumps(content).encode() + b"\n"
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"cache-control", b"no-store"),
            *more,
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _answer(self, scope: Scope) -> tuple[int, dict[str, object], list[tuple[bytes, bytes]]]:
        refusal = self._refusal(scope)
        if refusal is not None:
            return refusal.status, {"code": refusal.code, "message": refusal.text}, []
        retry = [(b"retry-after", b"%d" % RETRY_AFTER_S)]
        path = scope["path"]
        if path in ("/health", "/ping", "/ready") and scope["method"] not in READING:
            content = {"code": "method", "message": "only GET and HEAD are supported"}
            return 405, {**content}, [(b"allow", b"GET, HEAD")]
        match path:
            case "/health" | "/ping":
                return 200, {"role": ROLE}, []
            case "/ready":
                return (
                    503,
                    {"ready": False, "role": ROLE, "reasons": [*self._reasons(scope)]},
                    retry,
                )
            case _ if owner := self._standby.owner_url:
                target = owner.rstrip("/").encode() + scope["raw_path"]
                if scope["query_string"]:
                    target += b"?" + scope["query_string"]
                return 307, {"code": ROLE, "message": REDIRECTED}, [(b"location", target)]
            case _:
                return 503, {"code": ROLE, "message": REFUSED}, retry

    def _refusal(self, scope: Scope) -> BrowserRefusal | None:
        found: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            found.setdefault(name, []).append(value)
        hosts = [*found.get(b"host", ()), *found.get(b":authority", ())]
        sites = found.get(b"sec-fetch-site")
        return self._policy.check(
            hosts, found.get(b"origin", ()), None if sites is None else sites[-1]
        )

    def _reasons(self, scope: Scope) -> Iterator[str]:
        client = scope.get("client")
        is_here = client is not None and not is_remote(client[0])
        yield f"standby: {self._standby.state}" if is_here else "standby"


class _Clock:
    """Clock and timers of the connections. Implements `server.Clock`."""

    def __init__(self, wall: Callable[[], float]) -> None:
        timers = Timers(lambda when: None)
        self.now, self.arm, self.disarm = wall, timers.arm, timers.disarm
        self._timers = timers

    async def run(self) -> None:
        """Wake connections whose time is over. The limits are in seconds: it need not be exact."""
        while True:
            await anyio.sleep(TIMERS_S if self._timers.next_at < inf else 2 * TIMERS_S)
            now = self.now()
            while (owner := self._timers.take_due(now)) is not None:
                owner.wake(now)


async def listen_as_standby(
    tasks: TaskGroup, config: Config, standby: StandbyState, wall: Callable[[], float]
) -> str | None:
    """Serve at the HTTP address of `config` until `tasks` are cancelled; gives the address, None:
    there is no such listener. Raises ValueError, TlsError, OSError."""
    if config.http == OFF:
        return None
    host, port = parse_address(config.http)
    clock = _Clock(wall)
    tls = TlsListeners(config, wall, ConnectionCounters(), lambda digest: None)
    server = HttpServer(
        StandbyApplication(standby, browser_policy(config, tls.certificate_names)),
        settings_of(config),
        clock,
        partial(contain, "request/http"),
        DateHeader(),
    )
    inner: TaskGroup = await tasks.start(server.run)
    try:
        accepting = await listen(
            inner,
            host,
            port,
            server.new_connection,
            tls=tls.acceptor("http"),
            high_water_bytes=HIGH_WATER_BYTES,
            guard=partial(contain, "connection/http"),
        )
        inner.start_soon(clock.run)
        await tasks.start(server.stop_when_cancelled, lambda: None)
    except BaseException:
        server.stop()
        raise
    return accepting.address

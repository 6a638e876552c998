"""An HTTP application on real cells in memory: a scheduler that runs, streams, and its limits."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import anyio

from millpond.actors.runtime.supervisor import contain, contain_call
from millpond.actors.store.filesystem import Disk
from millpond.node.access.policy import AccessPolicy
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.transports.http.app import Api, Application
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import HttpLimits, Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection

CLOSED = {"p2p": OFF, "ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF}
QUICK = HttpLimits(body_s=1.0, linger_s=0.1)

Run = Callable[[Request, ResponseWriter], Awaitable[None]]


class Does:
    """An API that does what a test says."""

    name = "test"

    def __init__(self, run: Run, *, serves_draining: bool = False) -> None:
        self._run = run
        self._serves_draining = serves_draining

    async def __call__(self, request: Request, writer: ResponseWriter) -> None:
        await self._run(request, writer)

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return None if self._serves_draining else plain_rejection(reason)


class RunningApp:
    """A running node without listeners, and an application that asks it."""

    def __init__(self, node: Node, apis: Mapping[tuple[bytes, ...], Api], limits: HttpLimits):
        self.node = node
        self.services = node.services
        self.access: AccessPolicy = node._access
        guard = partial(contain, "request/http")
        call_guard = partial(contain_call, "request/http")
        self.application = Application(self.services, apis, guard, limits, call_guard)
        self.direct_requests = self.application.direct_requests
        self.rejection_headers = self.application.rejection_headers

    async def __call__(self, scope, receive, send):  # type: ignore[no-untyped-def]
        await self.application(scope, receive, send)


@asynccontextmanager
async def running_app(
    apis: Mapping[tuple[bytes, ...], Api] | Run,
    *,
    limits: HttpLimits = QUICK,
    clock: Clock | None = None,
    disk: Disk | None = None,
    **settings: object,
) -> AsyncIterator[RunningApp]:
    """Serve `apis`, or one that does this for whatever lies below `/do`."""
    if not isinstance(apis, Mapping):
        apis = {(b"do",): Does(apis)}
    config = Config(**{**CLOSED, "drain_timeout_s": 0.2, **settings})  # type: ignore[arg-type]
    async with Node(config, rng=Random(7), clock=clock, disk=disk) as node:
        yield RunningApp(node, apis, limits)
        await anyio.lowlevel.checkpoint()

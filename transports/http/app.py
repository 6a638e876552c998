"""The ASGI application: it routes requests to APIs, and applies limits, drain and error handling.

It can be served by any ASGI server, mounted into another application, and called in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from typing import Protocol

import anyio
import msgspec

from millpond.transports.browser_policy import BrowserPolicy
from millpond.transports.http.active_request import ActiveRequest
from millpond.transports.http.asgi import (
    ADMITTED,
    EXTENSION,
    DirectConnection,
    Headers,
    OutOfMemory,
    Receive,
    Scope,
    Send,
    ServerExtension,
    server_extension,
)
from millpond.transports.http.cors import CrossOrigin
from millpond.transports.http.direct import CallGuard, DirectApi, DirectPort, DirectRoute
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import (
    BadPath,
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    HttpLimits,
    Request,
    RequestHead,
    head_without_path,
    raw_segments,
    request_head,
    split_path,
)
from millpond.transports.http.response import Pairs, Response, ResponseWriter, plain_rejection
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.tracing import has_trace

TaskGuard = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Awaits a request's coroutine; an exception is logged and does not reach other requests."""

FINAL_ERROR_S = 1.0
"""A client that does not read for so long gets no final error."""

_BODY_REJECTIONS = {
    BodyTooLarge: Rejection.BODY_TOO_LARGE,
    BodyTooSlow: Rejection.BODY_TOO_SLOW,
    BadPath: Rejection.BAD_PATH,
    OutOfMemory: Rejection.OUT_OF_MEMORY,
}
_BROWSER_REFUSALS = {
    Rejection.HOST_REFUSED: Refusal.FOREIGN_HOST,
    Rejection.ORIGIN_REFUSED: Refusal.FOREIGN_PAGE,
    Rejection.CROSS_SITE_REFUSED: Refusal.FOREIGN_PAGE,
}


_RETRIED = (Rejection.OUT_OF_MEMORY,)
_RETRY_AFTER = (b"retry-after", b"1")


class ResponseAborted(Exception):
    """A stream cannot be completed; the server breaks off its connection or HTTP/2 stream."""


class Api(Protocol):
    """A part of the application, below a prefix of the path. Metrics use its short `name`."""

    name: str

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response | None:
        """The response; None if it was written to `writer`.

        May let ClientGone, BodyTooLarge, BodyTooSlow, BadPath and OutOfMemory through.
        """

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection in this API's own form; None: serve the request all the same."""


class _NotFound:
    """The API of paths that have none."""

    name = "none"

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        return plain_rejection(Rejection.NOT_FOUND)

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(reason)


_NOT_FOUND = _NotFound()
ROUTE = "route"
"""The key of a head's route in `asgi.ServerExtension.cache`."""


class Route(msgspec.Struct, frozen=True, gc=False):
    """The route of a request, decided by its head alone: its API, a reason to reject it, the route
    of requests that need no task, the headers of CORS, and the response to a preflight."""

    head: RequestHead
    api: Api
    reason: Rejection | None
    direct: DirectRoute | None
    cors: Pairs
    preflight: Response | None


class Application:
    """Serves `apis`, each below the segments that are its key; the longest prefix wins.

    `cross_origin` checks every request before anything else. `pages` are the paths of pages for
    people, to which pages of other sites may link.
    """

    def __init__(
        self,
        services: HttpNodeServices,
        apis: Mapping[tuple[bytes, ...], Api],
        task_guard: TaskGuard,
        limits: HttpLimits | None = None,
        call_guard: CallGuard | None = None,
        cross_origin: CrossOrigin | None = None,
        pages: Collection[tuple[bytes, ...]] = (),
    ) -> None:
        self._cross_origin = cross_origin or CrossOrigin(BrowserPolicy())
        self._pages = frozenset(pages)
        self._services = services
        self._apis = dict(apis)
        self._task_guard = task_guard
        self._call_guard = call_guard or _call
        self._limits = limits or HttpLimits()
        self._lengths = sorted({len(prefix) for prefix in apis}, reverse=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "lifespan":
            await _serve_lifespan(receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise AssertionError(f"ASGI 3 has no scope {kind!r}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        services = self._services
        services.http.requests += 1
        route = self._route(scope)
        api = route.api
        request = Request(scope, receive, self._limits, route.head, route.cors)
        writer = ResponseWriter(send, request)
        active = request.active = ActiveRequest(request.client)
        span = None
        if services.tracing is not None:
            span = services.tracing.request(
                api.name, route.head.method, scope["path"], scope["headers"]
            )
        try:
            response = self._admit(route, request, is_admitted=ADMITTED in scope)
            if response is not None:
                await writer.respond(response)
            else:
                await self._run(api, request, writer)
        finally:
            services.unregister(active)
            if span is not None:
                span.end(writer.status)
            request.release()
            writer.release()
            answers, key = services.http.answers, (api.name, writer.status)
            if writer.status:
                answers[key] = answers.get(key, 0) + 1
            services.http.bytes_in += request.bytes_read
            services.http.bytes_out += writer.bytes_sent

    def direct_requests(self, connection: DirectConnection) -> DirectPort:
        """The requests of a connection that need no task (`asgi.DirectHandler`)."""
        return DirectPort(
            self._services, connection, self._direct_route, self._call_guard, self._limits
        )

    def _direct_route(self, scope: Scope) -> DirectRoute | None:
        if self._services.tracing is not None and has_trace(scope["headers"]):
            return None  # its span is that of a request with a task
        extension: ServerExtension = scope["extensions"][EXTENSION]
        route: Route = extension.cache.get(ROUTE) or self._route(scope)
        return route.direct

    def rejection_headers(self, headers: Headers) -> Pairs:
        """The headers of a rejection by the server, for a request with these headers."""
        return self._cross_origin.rejection_headers(headers)

    def _rate_limited(self, api: Api, request: Request) -> Response | None:
        """The rejection of a client that is above its rate limit."""
        services = self._services
        bucket = services.shared_bucket(request.principal)
        if bucket is None:
            return None
        delay_ms = bucket.take(services.now())
        if not delay_ms:
            return None
        services.record_refusal(Refusal.TOO_FAST, request.client)
        return api.reject(Rejection.TOO_FAST, delay_ms)

    def _route(self, scope: Scope) -> Route:
        """The route of a request; a head that comes again has it in its cache."""
        extension = server_extension(scope)
        if extension is None:
            return self._find_route(scope)
        found: Route | None = extension.cache.get(ROUTE)
        if found is None:
            found = extension.cache[ROUTE] = self._find_route(scope)
        return found

    def _find_route(self, scope: Scope) -> Route:
        api = self._find_api(raw_segments(scope))
        reason = _oversize(scope, self._limits)
        try:
            segments = split_path(scope)
            api = self._find_api(segments)
            head = request_head(scope, segments)
        except BadPath:
            segments, head = (), head_without_path(scope)
            reason = reason or Rejection.BAD_PATH
        decision = self._cross_origin.decide(
            head.method, head.headers, head.last, is_page=segments in self._pages
        )
        reason = decision.reason or reason
        direct: DirectRoute | None = None
        if reason is None and isinstance(api, DirectApi):
            operation = api.direct_operation(head, decision.headers)
            if operation is not None:
                direct = DirectRoute(head, api, operation, decision.headers)
        return Route(head, api, reason, direct, decision.headers, decision.preflight)

    def _find_api(self, segments: tuple[bytes, ...]) -> Api:
        for length in self._lengths:
            api = self._apis.get(segments[:length])
            if api is not None:
                return api
        return _NOT_FOUND

    def _admit(self, route: Route, request: Request, *, is_admitted: bool) -> Response | None:
        """Register the request with the node. The response if no API is to answer it, else None."""
        services, active, reason = self._services, request.active, route.reason
        if not services.register(active):
            reason = reason or (Rejection.DRAINING if services.is_draining else Rejection.TOO_MANY)
            services.record_refusal(Refusal.TOO_MANY, request.client)
        services.handshake_done(active)
        if reason is not None:
            if reason in _BROWSER_REFUSALS:
                services.record_refusal(_BROWSER_REFUSALS[reason], request.client)
            return route.api.reject(reason, None)
        if route.preflight is not None:
            return route.preflight
        return None if is_admitted else self._rate_limited(route.api, request)

    async def _run(self, api: Api, request: Request, writer: ResponseWriter) -> None:
        """The API's response; the client hears of a failure, if it still can."""
        active, outcome = request.active, _Outcome()
        with active.scope:
            await self._task_guard(partial(outcome.run, api, request, writer))
        if writer.is_ended:
            return
        if outcome.is_disconnected or request.is_disconnected:
            self._services.http.gone += 1
            if writer.is_started or request.is_complete:
                return
            # The client may still be there, with a body that cannot be read, for instance in bad
            # chunks: servers report both alike.
            reason = Rejection.BODY_BROKEN
            with anyio.move_on_after(FINAL_ERROR_S):
                await writer.respond(api.reject(reason, None) or plain_rejection(reason))
            return
        reason = active.abort_reason or outcome.reason
        if reason is Rejection.CRASHED:
            self._services.http.crashed += 1
        with anyio.move_on_after(FINAL_ERROR_S):
            if not writer.is_started:
                response = api.reject(reason, None) or plain_rejection(reason)
                await writer.respond(_retried(response) if reason in _RETRIED else response)
            else:
                await writer.fail(reason)
        if not writer.is_ended:
            raise ResponseAborted(reason.message)


def _call(call: Callable[[], None]) -> bool:
    """The guard of an application without one: exceptions pass through."""
    call()
    return True


def _retried(response: Response) -> Response:
    """The response to a request that succeeds a little later."""
    headers = [each for each in response.headers if each[0] != _RETRY_AFTER[0]]
    return Response(response.status, (*headers, _RETRY_AFTER), response.body)


class _Outcome:
    """The end of an API's coroutine: CRASHED unless `run` finds another reason."""

    def __init__(self) -> None:
        self.is_disconnected = False
        self.reason = Rejection.CRASHED

    async def run(self, api: Api, request: Request, writer: ResponseWriter) -> None:
        """Await the API and send its response. Only unexpected exceptions pass through."""
        try:
            response = await api(request, writer)
            if response is not None:
                await writer.respond(response)
        except ClientGone:
            self.is_disconnected = True
        except (BodyTooLarge, BodyTooSlow, BadPath, OutOfMemory) as exc:
            self.reason = _BODY_REJECTIONS[type(exc)]
        except ExceptionGroup as group:
            # A session's tasks end one another; in none of them a client that left is an error.
            _, rest = group.split(ClientGone)
            if rest is not None:
                raise
            self.is_disconnected = True


def _oversize(scope: Scope, limits: HttpLimits) -> Rejection | None:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    if len(raw) + len(scope.get("query_string", b"")) > limits.url_bytes_max:
        return Rejection.URL_TOO_LONG
    if len(scope["headers"]) > limits.headers_max:
        return Rejection.HEADERS_TOO_LARGE
    size = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
    return Rejection.HEADERS_TOO_LARGE if size > limits.header_bytes_max else None


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    """The ASGI lifespan. There is nothing to start or stop: the node does that."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return

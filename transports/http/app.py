"""The ASGI application: raw path to API, limits, drain, and what becomes of errors.

It can be served by any ASGI server, mounted into another application, and driven in memory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Protocol

import anyio

from millpond.transports.http.active_request import ActiveRequest
from millpond.transports.http.asgi import (
    ADMITTED,
    Receive,
    Scope,
    Send,
    WholeRequest,
    server_extension,
)
from millpond.transports.http.direct import CallGuard, DirectApi, DirectExchange
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
    receive_nothing,
    request_head,
    split_path,
)
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection
from millpond.transports.server.refusals import Refusal

TaskGuard = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]
"""Awaits a request's coroutine; logs what it raises and lets nobody else feel it."""

LAST_WORDS_S = 1.0
"""A client that does not read hears no last words."""

_BROKEN = {
    BodyTooLarge: Rejection.BODY_TOO_LARGE,
    BodyTooSlow: Rejection.BODY_TOO_SLOW,
    BadPath: Rejection.BAD_PATH,
}


class ResponseAborted(Exception):
    """A stream that could not be completed: the server breaks its connection or stream off."""


class Api(Protocol):
    """What is served below a prefix. `name` is short; metrics are told by it."""

    name: str

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        """Answer a request. May let ClientGone, BodyTooLarge, BodyTooSlow and BadPath through."""

    def refuse(self, why: Rejection, delay_ms: int | None) -> Response | None:
        """A refusal in this API's own form; None: serve the request all the same."""


class _Nothing:
    """What is served where there is nothing."""

    name = "none"

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        await answer.whole(plain_rejection(Rejection.NOT_FOUND))

    def refuse(self, why: Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(why)


_NOTHING = _Nothing()
AIM = "aim"
"""What is kept of a head here (`asgi.Told.kept`)."""
Aim = tuple[RequestHead, Api, Rejection | None, DirectApi | None]


class Application:
    """Serves `apis`, each below the segments that are its key; the longest prefix wins."""

    def __init__(
        self,
        host: HttpNodeServices,
        apis: Mapping[tuple[bytes, ...], Api],
        guard: TaskGuard,
        limits: HttpLimits | None = None,
        shelter: CallGuard | None = None,
    ) -> None:
        self._host = host
        self._apis = dict(apis)
        self._guard = guard
        self._shelter = shelter
        self._limits = limits or HttpLimits()
        self._lengths = sorted({len(prefix) for prefix in apis}, reverse=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind == "http":
            await self._serve(scope, receive, send)
        elif kind == "lifespan":
            await _live(receive, send)
        elif kind == "websocket":
            await receive()
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise AssertionError(f"a server that speaks ASGI 3 has no scope {kind!r}")

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = self._host
        host.http.requests += 1
        question, api, why, _ = self._aim(scope)
        request = Request(scope, receive, self._limits, question)
        answer = ResponseWriter(send, request)
        visit = request.visit = ActiveRequest(request.client)
        try:
            await self._admit(api, request, answer, why, has_paid=ADMITTED in scope)
        finally:
            host.unregister(visit)
            request.let_go()
            answer.let_go()
            answers, key = host.http.answers, (api.name, answer.status)
            if answer.status:
                answers[key] = answers.get(key, 0) + 1
            host.http.bytes_in += request.bytes_read
            host.http.bytes_out += answer.bytes_sent

    def prompt(self, asked: WholeRequest) -> bool:
        """Answer a request that came whole without a task, if it is such a one (`asgi.Prompt`)."""
        question, _, why, api = self._aim(asked.scope)
        shelter, host = self._shelter, self._host
        if why is not None or shelter is None or api is None:
            return False
        request = Request(asked.scope, receive_nothing, self._limits, question)
        body = asked.body()
        if host.is_draining or len(body) > self._limits.body_bytes_max:
            return False
        visit = DirectExchange(host, api, asked, len(body), shelter)
        if not host.register(visit):
            host.unregister(visit)  # it is refused in a task
            return False
        host.handshake_done(visit)
        refusal = self._too_fast(api, request)
        if refusal is not None:
            visit.say(refusal)
        elif not shelter(partial(visit.run, request, body)):
            visit.fail(Rejection.CRASHED)
        return True

    def _too_fast(self, api: Api | DirectApi, request: Request) -> Response | None:
        """The answer to who asks more than its share."""
        host = self._host
        bucket = host.shared_bucket(request.principal)
        delay_ms = bucket.take(host.now()) if bucket is not None else 0
        if not delay_ms:
            return None
        host.record_refusal(Refusal.TOO_FAST, request.client)
        return api.refuse(Rejection.TOO_FAST, delay_ms)

    def _aim(self, scope: Scope) -> Aim:
        """What is asked of which API, and why it is refused, as far as its head tells."""
        told = server_extension(scope)
        if told is None:
            return self._find_out(scope)
        found: Aim | None = told.kept.get(AIM)
        if found is None:
            found = told.kept[AIM] = self._find_out(scope)
        return found

    def _find_out(self, scope: Scope) -> Aim:
        why = _oversize(scope, self._limits)
        api = self._find(raw_segments(scope))
        try:
            segments = split_path(scope)
            api = self._find(segments)
            question = request_head(scope, segments)
        except BadPath:
            return head_without_path(scope), api, why or Rejection.BAD_PATH, None
        if isinstance(api, DirectApi) and api.is_direct(question):
            return question, api, why, api
        return question, api, why, None

    def _find(self, segments: tuple[bytes, ...]) -> Api:
        for length in self._lengths:
            api = self._apis.get(segments[:length])
            if api is not None:
                return api
        return _NOTHING

    async def _admit(
        self,
        api: Api,
        request: Request,
        answer: ResponseWriter,
        why: Rejection | None,
        *,
        has_paid: bool,
    ) -> None:
        host, visit = self._host, request.visit
        if not host.register(visit):
            why = Rejection.DRAINING if host.is_draining else Rejection.TOO_MANY
            host.record_refusal(Refusal.TOO_MANY, request.client)
        host.handshake_done(visit)
        if why is not None:
            response = api.refuse(why, None)
        else:
            response = None if has_paid else self._too_fast(api, request)
        if response is not None:
            await answer.whole(response)
        else:
            await self._run(api, request, answer, visit)

    async def _run(
        self, api: Api, request: Request, answer: ResponseWriter, visit: ActiveRequest
    ) -> None:
        """Have the API answer, and see to it that the client hears of whatever went wrong."""
        fate = _Fate()
        with visit.scope:
            await self._guard(partial(fate.settle, api, request, answer))
        if answer.is_ended:
            return
        if fate.has_left or request.has_left:
            self._host.http.gone += 1
            if not (answer.is_started or request.came_whole):
                await self._say_broken(api, answer)
            return
        why = visit.why_cut or fate.why
        if why is Rejection.CRASHED:
            self._host.http.crashed += 1
        with anyio.move_on_after(LAST_WORDS_S):
            if not answer.is_started:
                await answer.whole(api.refuse(why, None) or plain_rejection(why))
            elif answer.last_words is not None:
                await answer.send(answer.last_words(why))
                await answer.end()
        if not answer.is_ended:
            raise ResponseAborted(why.message)

    async def _say_broken(self, api: Api, answer: ResponseWriter) -> None:
        """Who seems gone may be there with a body that cannot be read, as of bad chunks: servers
        tell both alike. Left without a word it would be told of a mistake of ours."""
        why = Rejection.BODY_BROKEN
        with anyio.move_on_after(LAST_WORDS_S):
            await answer.whole(api.refuse(why, None) or plain_rejection(why))


class _Fate:
    """How the API's coroutine ended; CRASHED unless it says otherwise."""

    def __init__(self) -> None:
        self.has_left = False
        self.why = Rejection.CRASHED

    async def settle(self, api: Api, request: Request, answer: ResponseWriter) -> None:
        """Await the API, and take from what it raises what is no mistake."""
        try:
            await api(request, answer)
        except ClientGone:
            self.has_left = True
        except (BodyTooLarge, BodyTooSlow, BadPath) as exc:
            self.why = _BROKEN[type(exc)]
        except ExceptionGroup as group:
            # A session's tasks end one another; that the client left is no mistake in any of them.
            _, rest = group.split(ClientGone)
            if rest is not None:
                raise
            self.has_left = True


def _oversize(scope: Scope, limits: HttpLimits) -> Rejection | None:
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    if len(raw) + len(scope.get("query_string", b"")) > limits.url_bytes_max:
        return Rejection.URL_TOO_LONG
    size = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
    return Rejection.HEADERS_TOO_LARGE if size > limits.header_bytes_max else None


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or to stop: the node does that."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return

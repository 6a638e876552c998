"""The API of Durable Streams: which request is which operation, and what becomes of refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from millpond.actors.messages import Rights
from millpond.transports.http import rejections as http
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.durable import append as appends
from millpond.transports.http.durable import create as creation
from millpond.transports.http.durable import head_and_delete as about
from millpond.transports.http.durable import read as reads
from millpond.transports.http.durable.context import (
    PREFIX,
    SECURITY_HEADERS,
    Asking,
    Call,
    Target,
    target_of,
)
from millpond.transports.http.durable.errors import DurableError, Pairs
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.live_waiters import LiveWaiters
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Response, ResponseWriter, json_response

RESERVED = b"__ds"
"""The first segment of paths that are no streams."""

_OPERATIONS: Mapping[str, Callable[[Call, Target], Awaitable[None]]] = {
    "PUT": creation.put,
    "POST": appends.post,
    "GET": reads.get,
    "HEAD": about.head,
    "DELETE": about.delete,
}


class DurableApi:
    """Implements `millpond.transports.http.app.Api`."""

    name = "durable"

    def __init__(self, host: HttpNodeServices, settings: DurableSettings) -> None:
        self._host = host
        self._settings = settings
        self._followers = LiveWaiters()

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        """Answer a request."""
        call = Call(self._host, self._settings, request, answer, self._followers)
        try:
            await _route(call, request.segments[len(PREFIX) :])
        except DurableError as refusal:
            await answer.whole(refusal.response(call.shared))

    def is_direct(self, question: RequestHead) -> bool:
        """Implements `millpond.transports.http.direct.DirectApi`: appends are."""
        return question.method == "POST"

    def direct_request(self, request: Request, body: bytes) -> DirectRequest | Response:
        """What an append asks."""
        asking = Asking(self._host, self._settings, request)
        try:
            target = _target(asking, request.segments[len(PREFIX) :])
            asking.require(target, Rights.PUT)
            return appends.errand_of(asking, target, body)
        except DurableError as refusal:
            return refusal.response(asking.shared)

    def refuse(self, why: http.Rejection, delay_ms: int | None) -> Response | None:
        """What the application itself refuses."""
        headers: Pairs = SECURITY_HEADERS
        if delay_ms is not None:
            headers = (*SECURITY_HEADERS, (b"retry-after", b"%d" % -(-delay_ms // 1000)))
        return json_response(why.status, {"code": why.code, "message": why.message}, headers)


async def _route(call: Call, segments: tuple[bytes, ...]) -> None:
    method = call.request.method
    if method == "OPTIONS":
        try:
            call.check_origin()
        except DurableError:
            pass  # it is told what there is, and not that it may
        await about.options(call)
        return
    target = _target(call, segments)
    await _OPERATIONS[method](call, target)


def _target(asking: Asking, segments: tuple[bytes, ...]) -> Target:
    asking.check_origin()
    if not segments or segments[0] == RESERVED:
        raise DurableError(404, "not_found", "there is nothing at this path")
    if asking.request.method not in _OPERATIONS:
        allow = ((b"allow", about.METHODS),)
        text = f"there is no {asking.request.method[:20]} of streams"
        raise DurableError(405, "bad_method", text, allow)
    return target_of(b"/".join(segments))

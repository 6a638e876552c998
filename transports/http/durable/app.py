"""The API of Durable Streams: which request is which operation, and what becomes of refusals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from millpond.transports.http.direct import DirectOperation
from millpond.transports.http.durable import append, create, head_and_delete, read
from millpond.transports.http.durable.context import (
    RESERVED,
    SECURITY_HEADERS,
    DurableContext,
    DurableTarget,
    target_at,
)
from millpond.transports.http.durable.errors import DurableError
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.live_waiters import LiveWaiters
from millpond.transports.http.durable.subscriptions.app import SubscriptionsApi
from millpond.transports.http.durable.subscriptions.interface import SubscriptionNodeServices
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Pairs, Response, ResponseWriter, json_response

_OPERATIONS: Mapping[str, Callable[[DurableContext, DurableTarget], Awaitable[Response | None]]] = {
    "PUT": create.put,
    "POST": append.post,
    "GET": read.get,
    "HEAD": head_and_delete.head,
    "DELETE": head_and_delete.delete,
}


class DurableApi:
    """The API of Durable Streams. Implements `millpond.transports.http.app.Api`."""

    name = "durable"

    def __init__(self, services: SubscriptionNodeServices, settings: DurableSettings) -> None:
        self._services = services
        self._settings = settings
        self._live_waiters = LiveWaiters()
        self._subscriptions = SubscriptionsApi(
            services, settings.subscriptions, is_secure=settings.is_secure
        )

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response | None:
        context = DurableContext(
            self._services, self._settings, request, self._live_waiters, writer
        )
        try:
            if request.method == "OPTIONS":
                return head_and_delete.options(context)
            if request.segments[len(DURABLE) : len(DURABLE) + 1] == (RESERVED,):
                return await self._subscriptions.respond(request)
            target = _target(context)
            return await _OPERATIONS[request.method](context, target)
        except DurableError as error:
            return error.response(context.common_headers)

    def direct_operation(self, head: RequestHead, cors: Pairs) -> DirectOperation | None:
        """Appends are direct, and reads that do not wait; see
        `millpond.transports.http.direct.DirectApi`."""
        if head.segments[len(DURABLE) : len(DURABLE) + 1] == (RESERVED,):
            return None
        if head.method == "POST":
            return append.DirectAppends(self._services, self._settings, head, cors)
        return read.direct_reads(self._services, head) if head.method == "GET" else None

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, as JSON."""
        headers: Pairs = SECURITY_HEADERS
        if delay_ms is not None:
            headers = (*SECURITY_HEADERS, (b"retry-after", b"%d" % -(-delay_ms // 1000)))
        return json_response(
            reason.status, {"code": reason.code, "message": reason.message}, headers
        )


def _target(context: DurableContext) -> DurableTarget:
    segments = context.request.segments[len(DURABLE) :]
    if segments and context.request.method not in _OPERATIONS:
        allow = ((b"allow", head_and_delete.METHODS),)
        text = f"streams do not support {context.request.method[:20]}"
        raise DurableError(405, "bad_method", text, allow)
    return target_at(segments)

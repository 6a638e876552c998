"""Direct requests: requests that only need replies of one cell, answered without a task.

A task, its scopes and its passes of the event loop were two thirds of the cost of a small append.
Where a request came whole, its API gives the message for the cell, and makes the response of the
cell's reply, or the next message; the response is written when the cell replies, as on the
listeners of S3P and P2P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, runtime_checkable

import msgspec

from millpond.actors.messages import Failed, Port, Reply, StreamReply, StreamRequest
from millpond.transports.http.asgi import (
    EXTENSION,
    DirectConnection,
    EncodedResponse,
    Scope,
    ServerExtension,
    server_extension,
)
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import (
    LISTENER,
    HttpLimits,
    Request,
    RequestHead,
    receive_nothing,
)
from millpond.transports.http.response import Pairs, Response, plain_rejection
from millpond.transports.server.interface import Principal
from millpond.transports.server.refusals import Refusal

CallGuard = Callable[[Callable[[], None]], bool]
"""Calls a function; an exception is logged, and the result is False."""


class DirectRequest(msgspec.Struct, frozen=True, gc=False):
    """A message for a cell, and the bytes for which its mailbox counts it."""

    cell: bytes
    request: StreamRequest
    size_bytes: int


class DirectClient(Protocol):
    """The client of a direct request."""

    principal: Principal

    def request(self) -> Request:
        """The request, for what its head alone does not tell. It has no body."""


class DirectOperation(Protocol):
    """The direct requests with one head. It is made once for each head."""

    def message(
        self, number: int, client: DirectClient, body: bytes
    ) -> DirectRequest | Response | EncodedResponse:
        """The message for the cell, with this number; or the response if none is needed."""

    def response(
        self, sent: DirectRequest, reply: CellReply
    ) -> DirectRequest | Response | EncodedResponse | None:
        """The response to a reply, or the next message for the cell, with the same number. None:
        nothing was done yet, and a task has to answer."""


@runtime_checkable
class DirectApi(Protocol):
    """An API that answers some requests directly."""

    name: str

    def direct_operation(self, head: RequestHead, cors: Pairs) -> DirectOperation | None:
        """The operation of requests with this head; None: they need a task. It is called once for
        each head. An encoded response has the headers `cors`; to a `Response` they are added."""

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """See `app.Api`."""


class DirectRoute(msgspec.Struct, frozen=True, gc=False):
    """The part of a route that direct requests use: the head, its API, the operation, and the
    headers of CORS."""

    head: RequestHead
    api: DirectApi
    operation: DirectOperation
    cors: Pairs


class DirectPort(Port):
    """The direct requests of one connection, one at a time: the port of their cells, and a
    connection that the node counts while there is one.

    Replies to an earlier request, which was cut off, are known by their numbers. Implements
    `asgi.DirectRequests`, `DirectClient` and `transports.server.interface.ServerConnection`.
    """

    __slots__ = (
        "_body",
        "_connection",
        "_find_route",
        "_guard",
        "_is_answered",
        "_limits",
        "_reply",
        "_request_number",
        "_route",
        "_sampled_at",
        "_scope",
        "_sent",
        "_services",
        "address",
        "deadline",
        "number",
        "principal",
        "received_at",
    )

    def __init__(
        self,
        services: HttpNodeServices,
        connection: DirectConnection,
        find_route: Callable[[Scope], DirectRoute | None],
        guard: CallGuard,
        limits: HttpLimits,
    ) -> None:
        self.number = services.next_number()
        self.received_at = 0.0
        self.deadline = inf
        self.address, port = connection.client
        self.principal = Principal(
            None, None, self.address, LISTENER, connection.certificate, port or 0
        )
        self._services = services
        self._connection = connection
        self._find_route = find_route
        self._guard = guard
        self._limits = limits
        self._request_number = 0
        self._scope: Scope = {}
        self._route: DirectRoute
        self._body = b""
        self._sent: DirectRequest | None = None
        self._reply: CellReply | None = None
        self._sampled_at = 0.0
        self._is_answered = True
        """No request is in progress."""

    # asgi.DirectRequests: called by the connection.

    def begin(self, scope: Scope, body: bytes, now: float) -> bool:
        route, services = self._find_route(scope), self._services
        if route is None or len(body) > self._limits.body_bytes_max or not services.admit(self):
            return False
        self.received_at = now
        self._scope, self._route, self._body = scope, route, body
        self._is_answered = False
        self._request_number += 1
        bearer, principal = route.head.bearer, self.principal
        if bearer != principal.token:
            self.principal = principal = msgspec.structs.replace(principal, token=bearer)
        bucket = services.shared_bucket(principal)
        delay_ms = 0 if bucket is None else bucket.take(now)
        if delay_ms:
            services.record_refusal(Refusal.TOO_FAST, self.address)
            rejected = route.api.reject(Rejection.TOO_FAST, delay_ms)
            if rejected is not None:
                self._respond(rejected)
                return True
        if not self._guard(self._send_message):
            self._fail(Rejection.CRASHED)
        return True

    def _send_message(self) -> None:
        """Send the message to the cell, together with others of this pass of the loop."""
        services = self._services
        sent = self._route.operation.message(self._request_number, self, self._body)
        if not isinstance(sent, DirectRequest):
            self._respond(sent)
            return
        stats = services.protocol_stats[LISTENER]
        if self.received_at >= stats.sample_at:
            stats.start_sample(self.received_at)
            self._sampled_at = self.received_at
        self._send(sent)

    def _send(self, sent: DirectRequest) -> None:
        self._sent = sent
        self._services.batcher.add(
            sent.cell, self, [sent.request], sent.size_bytes, self._connection.soon
        )

    def _respond(self, response: Response | EncodedResponse) -> None:
        """Write the response."""
        self._end()
        http, key = self._services.http, (self._route.api.name, response.status)
        http.requests += 1
        http.answers[key] = http.answers.get(key, 0) + 1
        http.bytes_in += len(self._body)
        http.bytes_out += len(response.body)
        self._body = b""
        if isinstance(response, Response):
            response = response.encoded(self._route.cors)
        self._connection.respond(response)

    def _end(self) -> None:
        """The request is over, as far as the node counts it."""
        self._is_answered = True
        self._sent = self._reply = None
        self._sampled_at = 0.0
        self._services.unregister(self)

    def _fail(self, reason: Rejection) -> None:
        """Respond with a failure; end the connection if the response was what failed."""
        if reason is Rejection.CRASHED:
            self._services.http.crashed += 1
        if self._is_answered:
            self._connection.break_off()
        else:
            self._respond(self._route.api.reject(reason, None) or plain_rejection(reason))

    # DirectClient: called by operations.

    def request(self) -> Request:
        extension = server_extension(self._scope)
        cache = {} if extension is None else extension.cache
        own = ServerExtension(self.principal.certificate, cache)
        client = (self.address, self.principal.port)
        scope = {**self._scope, "client": client, "extensions": {EXTENSION: own}}
        route = self._route
        return Request(scope, receive_nothing, self._limits, route.head, route.cors)

    # Port: called by cells.

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, StreamReply):
                number = reply.number
            elif isinstance(reply, Failed) and isinstance(reply.request, StreamRequest):
                number = reply.request.number
            else:
                continue
            if number == self._request_number and not self._is_answered:
                self._reply = reply

    def flush(self) -> None:
        if self._reply is not None and not self._guard(self._take_reply):
            self._fail(Rejection.CRASHED)

    def must_wait(self, cell: bytes) -> None:
        """Nothing: there is one message at a time."""

    def _take_reply(self) -> None:
        sent, reply = self._sent, self._reply
        self._sent = self._reply = None
        if sent is None or reply is None:
            return
        response = self._route.operation.response(sent, reply)
        if isinstance(response, DirectRequest):
            self._send(response)
            return
        if self._sampled_at:
            stats = self._services.protocol_stats[LISTENER]
            stats.end_sample(self._sampled_at, self._services.now())
        if response is not None:
            self._respond(response)
            return
        self._end()
        self._body = b""
        self._connection.defer()

    # ServerConnection: called by the node.

    @property
    def peer(self) -> str:
        return self.address

    @property
    def summary(self) -> None:
        """None: requests come and go."""

    def wake(self, now: float) -> None:
        """Nothing: a request arms no deadlines."""

    def start_drain(self) -> None:
        """Nothing: the response comes soon in any case."""

    def reauthorize(self) -> None:
        """Nothing: the request was allowed when it came."""

    def close(self) -> None:
        if not self._is_answered:
            self._fail(Rejection.CUT_OFF)

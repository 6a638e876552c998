"""Direct requests: one request to one cell, answered without a task.

A task, its scopes and its passes of the event loop were two thirds of the cost of a small append.
Where a request came whole, its API gives the cell, the message and a function for the response; the
response is written when the cell replies, as on the listeners of S3P and P2P.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Protocol, runtime_checkable

import msgspec

from millpond.actors.messages import Failed, Port, Reply, StreamReply, StreamRequest
from millpond.transports.http.asgi import ADMITTED, WholeRequest
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import LISTENER, Request, RequestHead
from millpond.transports.http.response import Response, plain_rejection

CallGuard = Callable[[Callable[[], None]], bool]
"""Calls a function; an exception is logged, and the result is False."""


class DirectRequest(msgspec.Struct, frozen=True, gc=False):
    """A message for a cell; `request` has the number 0.

    `to_response` makes the response of the cell's reply. None: nothing was done yet, and a task has
    to answer.
    """

    cell: bytes
    request: StreamRequest
    size_bytes: int
    to_response: Callable[[CellReply], Response | None]


@runtime_checkable
class DirectApi(Protocol):
    """An API that answers some requests directly."""

    name: str

    def is_direct(self, head: RequestHead) -> bool:
        """True if requests with this head are direct. It is called once for each head."""

    def direct_request(self, request: Request, body: bytes) -> DirectRequest | Response:
        """The message for the cell, or the response if none is needed."""

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """See `app.Api`."""


class DirectExchange(Port):
    """A direct request in progress: the port of its cell, and a connection that the node counts.

    Implements `transports.server.interface.ServerConnection`.
    """

    __slots__ = (
        "_api",
        "_body",
        "_direct",
        "_guard",
        "_reply",
        "_request",
        "_sampled_at",
        "_services",
        "_whole",
        "address",
        "deadline",
        "number",
        "received_at",
    )

    def __init__(
        self,
        services: HttpNodeServices,
        api: DirectApi,
        whole: WholeRequest,
        request: Request,
        body: bytes,
        guard: CallGuard,
    ) -> None:
        self.number = services.next_number()
        self.received_at = services.now()
        self.deadline = inf
        self.address = request.client
        self._services = services
        self._api = api
        self._whole: WholeRequest | None = whole
        self._request = request
        self._body = body
        self._guard = guard
        self._direct: DirectRequest | None = None
        self._reply: CellReply | None = None
        self._sampled_at = 0.0

    def run(self) -> None:
        """Send the message to the cell, together with others of this pass of the loop."""
        whole, services = self._whole, self._services
        assert whole is not None, "the request was answered already"
        direct = self._api.direct_request(self._request, self._body)
        if isinstance(direct, Response):
            self.respond(direct)
            return
        self._direct = direct
        stats = services.protocol_stats[LISTENER]
        if self.received_at >= stats.sample_at:
            stats.start_sample(self.received_at)
            self._sampled_at = self.received_at
        services.batcher.add(direct.cell, self, [direct.request], direct.size_bytes, whole.soon)

    def respond(self, response: Response) -> None:
        """Write the response, unless there was one before."""
        whole, services = self._whole, self._services
        if whole is None:
            return
        self._whole = None
        services.unregister(self)
        http, key = services.http, (self._api.name, response.status)
        http.requests += 1
        http.answers[key] = http.answers.get(key, 0) + 1
        http.bytes_in += len(self._body)
        http.bytes_out += len(response.body)
        headers = response.all_headers(self._request.cors)
        whole.respond(response.status, headers, response.body)

    def fail(self, reason: Rejection) -> None:
        """Respond with a failure."""
        if reason is Rejection.CRASHED:
            self._services.http.crashed += 1
        self.respond(self._api.reject(reason, None) or plain_rejection(reason))

    # Port: called by cells.

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, StreamReply | Failed):
                self._reply = reply

    def flush(self) -> None:
        if self._reply is not None and not self._guard(self._finish):
            self.fail(Rejection.CRASHED)

    def must_wait(self, cell: bytes) -> None:
        """Nothing: there is one message only."""

    def _finish(self) -> None:
        direct, reply = self._direct, self._reply
        self._direct = self._reply = None
        if direct is None or reply is None:
            return
        if self._sampled_at:
            self._services.protocol_stats[LISTENER].end_sample(
                self._sampled_at, self._services.now()
            )
        response = direct.to_response(reply)
        if response is not None:
            self.respond(response)
        elif self._whole is not None:
            whole, self._whole = self._whole, None
            self._services.unregister(self)
            whole.scope[ADMITTED] = True
            whole.defer()

    # ServerConnection: called by the node.

    @property
    def peer(self) -> str:
        return self.address

    def wake(self, now: float) -> None:
        """Nothing: a request arms no deadlines."""

    def start_drain(self) -> None:
        """Nothing: the response comes soon in any case."""

    def reauthorize(self) -> None:
        """Nothing: the request was allowed when it came."""

    def close(self) -> None:
        self.fail(Rejection.CUT_OFF)

"""Requests that are one question to one cell: they are answered without a task.

A task, its scopes and its turns of the loop were two thirds of what a small append cost. Where a
request came whole, its API says which cell to ask what, and how the answer is told; the answer is
written when the cell has given it, as on the listeners that speak S3P and P2P.
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
from millpond.transports.http.response import Response, plain_rejection, response_headers

CallGuard = Callable[[Callable[[], None]], bool]
"""Calls; logs what is raised, and then gives False."""


class DirectRequest(msgspec.Struct, frozen=True, gc=False):
    """What to ask of whom: `request` has the number 0. `tell` makes the answer; None: there is more
    to be done, by a task, and nothing has been done yet."""

    cell: bytes
    request: StreamRequest
    size_bytes: int
    tell: Callable[[CellReply], Response | None]


@runtime_checkable
class DirectApi(Protocol):
    """An API with requests that are errands."""

    name: str

    def is_direct(self, question: RequestHead) -> bool:
        """Is it one, as far as its head tells? The same head is not asked about twice."""

    def direct_request(self, request: Request, body: bytes) -> DirectRequest | Response:
        """What to ask, or what is answered at once."""

    def refuse(self, why: Rejection, delay_ms: int | None) -> Response | None:
        """See `application.Api`."""


class DirectExchange(Port):
    """One errand under way: the port of its cell, and what the node counts like a connection."""

    __slots__ = (
        "_api",
        "_asked",
        "_errand",
        "_host",
        "_reply",
        "_shelter",
        "_size_bytes",
        "_watched_at",
        "address",
        "deadline",
        "number",
        "received_at",
    )

    def __init__(
        self,
        host: HttpNodeServices,
        api: DirectApi,
        asked: WholeRequest,
        size_bytes: int,
        shelter: CallGuard,
    ) -> None:
        self.number = host.next_number()
        self.received_at = host.now()
        self.deadline = inf
        self.address: str = asked.scope["client"][0]
        self._host = host
        self._api = api
        self._asked: WholeRequest | None = asked
        self._size_bytes = size_bytes
        self._shelter = shelter
        self._errand: DirectRequest | None = None
        self._reply: CellReply | None = None
        self._watched_at = 0.0

    def run(self, request: Request, body: bytes) -> None:
        """Ask the cell."""
        asked, host = self._asked, self._host
        assert asked is not None, "nobody has answered yet"
        found = self._api.direct_request(request, body)
        if isinstance(found, Response):
            self.say(found)
            return
        self._errand = found
        traffic = host.protocol_stats[LISTENER]
        if self.received_at >= traffic.sample_at:
            traffic.begin(self.received_at)
            self._watched_at = self.received_at
        host.batcher.add(found.cell, self, [found.request], found.size_bytes, asked.soon)

    def say(self, response: Response) -> None:
        """Answer, unless that was done."""
        asked, host = self._asked, self._host
        if asked is None:
            return
        self._asked = None
        host.unregister(self)
        host.http.requests += 1
        key = (self._api.name, response.status)
        host.http.answers[key] = host.http.answers.get(key, 0) + 1
        host.http.bytes_in += self._size_bytes
        host.http.bytes_out += len(response.body)
        asked.answer(response.status, response_headers(response), response.body)

    def fail(self, why: Rejection) -> None:
        """Answer that it went wrong."""
        if why is Rejection.CRASHED:
            self._host.http.crashed += 1
        self.say(self._api.refuse(why, None) or plain_rejection(why))

    # What cells call: Port.

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, StreamReply):
                self._reply = reply
            elif type(reply) is Failed:
                self._reply = reply

    def flush(self) -> None:
        if self._reply is not None and not self._shelter(self._tell):
            self.fail(Rejection.CRASHED)

    def must_wait(self, cell: bytes) -> None:
        """It asks for nothing more."""

    def _tell(self) -> None:
        errand, reply = self._errand, self._reply
        self._errand = self._reply = None
        if errand is None or reply is None:
            return
        if self._watched_at:
            self._host.protocol_stats[LISTENER].end(self._watched_at, self._host.now())
        response = errand.tell(reply)
        if response is not None:
            self.say(response)
        elif self._asked is not None:
            asked, self._asked = self._asked, None
            self._host.unregister(self)
            asked.scope[ADMITTED] = True
            asked.defer()

    # What the node calls: Visitor.

    @property
    def peer(self) -> str:
        return self.address

    def wake(self, now: float) -> None:
        """It arms no deadlines."""

    def start_drain(self) -> None:
        """It is answered soon in any case."""

    def reauthorize(self) -> None:
        """It was allowed when it was asked."""

    def close(self) -> None:
        self.fail(Rejection.CUT_OFF)

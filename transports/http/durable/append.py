"""POST: append, close, or both (B.2, B.3)."""

from __future__ import annotations

import msgspec

from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.transports.http.asgi import EncodedResponse
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectClient, DirectRequest
from millpond.transports.http.durable import protocol, request_headers
from millpond.transports.http.durable.context import (
    SECURITY_HEADERS,
    DurableContext,
    DurableTarget,
    require,
    target_at,
)
from millpond.transports.http.durable.create import bodies_of
from millpond.transports.http.durable.errors import (
    DurableError,
    bad_request,
    error_of,
    refusal_error,
)
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.paths import DURABLE
from millpond.transports.http.request import HasHeaders, RequestHead
from millpond.transports.http.response import SERVER, Pairs, Response, header_lines

_EMPTY = (b"content-length", b"0")


class AppendHeaders(msgspec.Struct, frozen=True, gc=False):
    """The headers of an append; `content_type` None: it is missing or blank."""

    closes: bool
    producer: d.Producer | None
    stream_seq: bytes | None
    content_type: bytes | None
    is_json: bool


def append_headers(request: HasHeaders) -> AppendHeaders:
    """The headers of an append. Raises DurableError."""
    closes, producer = request_headers.is_closing(request), request_headers.producer(request)
    stream_seq = request_headers.stream_seq(request)
    content_type = request.header(b"content-type")
    if content_type is not None and not content_type.strip():
        content_type = None
    return AppendHeaders(
        closes,
        producer,
        stream_seq,
        content_type,
        content_type is not None and protocol.is_json(content_type),
    )


def append_of(
    number: int, headers: AppendHeaders, body: bytes, messages_max: int
) -> d.DurableAppend:
    """The append that a body is. Raises DurableError."""
    bodies: list[bytes] = []
    content_type = headers.content_type
    if body:
        if content_type is None:
            raise bad_request("content-type: an append needs one")
        bodies = bodies_of(body, content_type, messages_max) if headers.is_json else [body]
    if not bodies and (body or not headers.closes):
        raise bad_request("the append is empty")
    return d.DurableAppend(
        number, bodies, content_type, headers.stream_seq, headers.producer, headers.closes
    )


async def post(context: DurableContext, target: DurableTarget) -> Response:
    """POST /v1/stream/{name}."""
    context.require(target, Rights.PUT)
    body = await context.request.body()
    append = append_of(0, append_headers(context.request), body, context.settings.messages_max)
    with context.cell_client() as cells:
        reply = await cells.request(
            target.cell,
            lambda number: msgspec.structs.replace(append, number=number),
            len(body),
            gather=True,
        )
    return _response(append, reply)


class DirectAppends:
    """The appends with one head. Implements `transports.http.direct.DirectOperation`."""

    __slots__ = ("_accepted", "_head", "_headers", "_messages_max", "_services", "_target")

    def __init__(
        self,
        services: HttpNodeServices,
        settings: DurableSettings,
        head: RequestHead,
        cors: Pairs,
    ) -> None:
        self._services = services
        self._messages_max = settings.messages_max
        self._head = head
        self._target: DurableTarget | None = None
        self._headers: AppendHeaders | None = None
        """These two are None until a request needed them; where they cannot be read, for good."""
        self._accepted = header_lines((*SECURITY_HEADERS, *cors, _EMPTY, SERVER))
        """The headers of a plain success, behind the offset."""

    def message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest | Response:
        """The stream's part in an append."""
        try:
            target = self._target
            if target is None:
                target = self._target = target_at(self._head.segments[len(DURABLE) :])
            require(self._services, client.principal, target, Rights.PUT)
            headers = self._headers
            if headers is None:
                headers = self._headers = append_headers(self._head)
            append = append_of(number, headers, body, self._messages_max)
        except DurableError as error:
            return error.response(SECURITY_HEADERS)
        return DirectRequest(target.cell, append, len(body))

    def response(self, sent: DirectRequest, reply: CellReply) -> Response | EncodedResponse:
        """The response to the stream's reply."""
        append = sent.request
        assert isinstance(append, d.DurableAppend), "an append was sent"
        if type(reply) is d.DurableAppended and append.producer is None and not reply.is_closed:
            offset = offset_of(reply.tail)
            return EncodedResponse(204, b"stream-next-offset: %b\r\n%b" % (offset, self._accepted))
        return _response(append, reply)


def _response(append: d.DurableAppend, reply: CellReply) -> Response:
    match reply:
        case d.DurableAppended():
            headers = [(protocol.NEXT_OFFSET, offset_of(reply.tail))]
            if append.producer is not None:
                headers.append((protocol.PRODUCER_EPOCH, b"%d" % reply.epoch))
                headers.append((protocol.PRODUCER_SEQ, b"%d" % reply.seq))
            if reply.is_closed:
                headers.append((protocol.CLOSED, protocol.TRUE))
            is_new = append.producer is not None and reply.is_new and bool(append.bodies)
            return Response(200 if is_new else 204, (*headers, *SECURITY_HEADERS))
        case d.DurableRefused():
            error = refusal_error(reply, 0 if append.producer is None else append.producer.seq)
        case m.StreamFailed() | Failed():
            error = error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no append")
    return error.response(SECURITY_HEADERS)

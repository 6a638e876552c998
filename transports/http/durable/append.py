"""POST: append, close, or both (B.2, B.3)."""

from __future__ import annotations

from functools import partial

from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.durable import headers as asked
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable.context import Asking, Call, Target
from millpond.transports.http.durable.create import bodies_of
from millpond.transports.http.durable.errors import bad_request, declined_error, error_of
from millpond.transports.http.durable.offsets import offset_of
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response

TERMS = "terms of an append"
Terms = tuple[bool, d.Producer | None, bytes | None, bytes | None]
"""Does it close, who appends, its order, and the content type."""


async def post(call: Call, target: Target) -> None:
    """POST /v1/stream/{name}."""
    call.require(target, Rights.PUT)
    errand = errand_of(call, target, await call.request.body())
    with call.inquiry() as inquiry:
        reply = await inquiry.ask(
            errand.cell, lambda _: errand.request, errand.size_bytes, gather=True
        )
    response = errand.tell(reply)
    assert response is not None, "there is nothing more to be done"
    await call.answer.whole(response)


def errand_of(asking: Asking, target: Target, body: bytes) -> DirectRequest:
    """What the stream is asked, by whoever may append. Raises Refusal."""
    closes, producer, order, kind = _terms_of(asking.request)
    bodies: list[bytes] = []
    if body:
        if kind is None or not kind.strip():
            raise bad_request("content-type: an append says what it is")
        bodies = bodies_of(body, kind)
    if not bodies and (body or not closes):
        raise bad_request("there is nothing to append")
    submit = d.DurableAppend(0, bodies, kind, order, producer, closes)
    return DirectRequest(target.cell, submit, len(body), partial(_tell, asking, submit))


def _terms_of(request: Request) -> Terms:
    """What the head says besides the path; once for heads that repeat."""
    found: Terms | None = request.kept.get(TERMS)
    if found is None:
        kind = request.header(b"content-type")
        found = (
            asked.is_closing(request),
            asked.producer(request),
            asked.stream_seq(request),
            kind,
        )
        request.kept[TERMS] = found
    return found


def _tell(asking: Asking, submit: d.DurableAppend, reply: CellReply) -> Response:
    producer = submit.producer
    match reply:
        case d.DurableAppended():
            return _accepted(asking, submit, reply)
        case d.DurableRefused():
            refusal = declined_error(reply, 0 if producer is None else producer.seq)
        case m.StreamFailed() | Failed():
            refusal = error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers no append")
    return refusal.response(asking.shared)


def _accepted(asking: Asking, submit: d.DurableAppend, reply: d.DurableAppended) -> Response:
    headers = [(w.NEXT_OFFSET, offset_of(reply.tail))]
    if submit.producer is not None:
        headers.append((w.PRODUCER_EPOCH, b"%d" % reply.epoch))
        headers.append((w.PRODUCER_SEQ, b"%d" % reply.seq))
    if reply.is_closed:
        headers.append((w.CLOSED, w.TRUE))
    is_told = submit.producer is not None and reply.is_new and bool(submit.bodies)
    return Response(200 if is_told else 204, (*headers, *asking.shared))

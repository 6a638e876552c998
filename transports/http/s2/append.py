"""Unary appends (A.6): a whole body in, all or nothing, an ack once it is durable."""

from __future__ import annotations

from functools import partial

from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.response import Response
from millpond.transports.http.s2.auto_create import (
    TRIES,
    ensure,
    failure,
    is_unknown,
    stream_not_found,
)
from millpond.transports.http.s2.codecs import json as json_form
from millpond.transports.http.s2.codecs import protobuf as protobuf_form
from millpond.transports.http.s2.codecs.compression import write_body
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import Asking, Call, Target
from millpond.transports.http.s2.errors import S2Error, StreamPosition, bad_json
from millpond.transports.http.s2.model import AppendAck, AppendInput, check_append

BODY_BYTES_MAX = 8 * 2**20
"""Of a body once it is decompressed: 1 MiB of records takes more in Base64 with its headers."""


async def append(call: Call, target: Target) -> None:
    """POST /v1/streams/{stream}/records."""
    call.require(Operation.APPEND, target)
    call.refuse_key()
    call.require_basin(target.basin)
    given, size = _given(call, target, await call.body(BODY_BYTES_MAX))
    with call.inquiry() as inquiry:
        appended = await _append(call, inquiry, target, given, size)
    await call.say(_response(call, ack_of(appended)))


def errand_of(asking: Asking, target: Target, data: bytes) -> DirectRequest:
    """The same of a body that is there: what the stream is asked. Raises S2Error."""
    asking.check(Operation.APPEND, target)
    try:
        asking.refuse_key()
        asking.require_basin(target.basin)
        given, size = _given(asking, target, asking.unpacked(data, BODY_BYTES_MAX))
    except S2Error:
        asking.figures.count(Operation.APPEND, target.basin)
        raise
    return DirectRequest(
        target.cell, _request(0, given), size, partial(_tell, asking, target, size)
    )


def _tell(asking: Asking, target: Target, size: int, reply: CellReply) -> Response | None:
    """The answer; a stream that is not there may be made with its first append."""
    if is_unknown(reply):
        return None
    asking.figures.count(Operation.APPEND, target.basin)
    if isinstance(reply, m.Appended):
        asking.figures.of(target.basin).appended_bytes += size
        return _response(asking, ack_of(reply))
    error = failure(reply, target)
    return Response(error.status, error.headers, error.body)


def _given(asking: Asking, target: Target, data: bytes) -> tuple[AppendInput, int]:
    given = _read(asking, data)
    size = check_append(given)
    require_commands(asking, target, given)
    return given, size


def _read(call: Asking, data: bytes) -> AppendInput:
    kind = call.header(b"content-type")
    if protobuf_form.is_protobuf(kind):
        return protobuf_form.decode_input(data)
    if not is_json(kind):
        raise bad_json("content-type: application/json or application/protobuf")
    return json_form.decode_input(data, json_form.format_of(call.header(b"s2-format")))


def is_json(content_type: str | None) -> bool:
    """Is that what a body says it is?"""
    kind = (content_type or "").partition(";")[0].strip().lower()
    return kind == "application/json" or (
        kind.startswith("application/") and kind.endswith("+json")
    )


def require_commands(call: Asking, target: Target, given: AppendInput) -> None:
    """Commands take operations of their own; a trim the right that other views ask for it.

    Raises Refused.
    """
    verbs = {pairs[0][1] for pairs in given.headers or () if pairs and not pairs[0][0]}
    if b"trim" in verbs:
        call.require(Operation.TRIM, target)
    if b"fence" in verbs:
        call.require(Operation.FENCE, target)


async def _append(
    call: Call, inquiry: CellClient, target: Target, given: AppendInput, size: int
) -> m.Appended:
    for _ in range(TRIES):
        answer = await inquiry.ask(
            target.cell, lambda number: _request(number, given), size, gather=True
        )
        if isinstance(answer, m.Appended):
            call.figures.of(target.basin).appended_bytes += size
            return answer
        if not is_unknown(answer):
            raise failure(answer, target)
        await ensure(call, inquiry, target, is_append=True)
    raise stream_not_found(target)


def _request(number: int, given: AppendInput) -> m.Append:
    return m.Append(
        number,
        given.bodies,
        None,
        given.headers,
        given.timestamps,
        given.fencing_token,
        given.match_seq_num,
    )


def ack_of(appended: m.Appended) -> AppendAck:
    """The tail is as it was when the last of these records was added."""
    after = StreamPosition(appended.first + appended.count, appended.timestamp)
    return AppendAck(StreamPosition(appended.first, appended.first_timestamp), after, after)


def _response(call: Asking, ack: AppendAck) -> Response:
    if protobuf_form.is_protobuf(call.header(b"accept")):
        kind, body = protobuf_form.MEDIA_TYPE, protobuf_form.encode_ack(ack)
    else:
        kind, body = json_form.MEDIA_TYPE, json_form.encode_ack(ack)
    return packed(call, kind, body)


def packed(call: Asking, kind: bytes, body: bytes) -> Response:
    """200 with a body, compressed if it is worth it and the client takes it."""
    body, encoding = write_body(body, call.header(b"accept-encoding"))
    headers = [(b"content-type", kind)]
    if encoding is not None:
        headers.append((b"content-encoding", encoding))
    return Response(200, headers, body)

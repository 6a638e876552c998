"""Unary appends (A.6): a whole body in, all or nothing, an ack once it is durable."""

from __future__ import annotations

from functools import partial

from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.response import Response
from millpond.transports.http.s2.auto_create import (
    TRIES,
    ensure,
    failure,
    is_unknown,
    stream_not_found,
)
from millpond.transports.http.s2.codecs import json as json_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs.compression import write_body
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, Target, is_json
from millpond.transports.http.s2.errors import S2Error, StreamPosition, bad_json
from millpond.transports.http.s2.model import AppendAck, AppendInput, check_append

BODY_BYTES_MAX = 8 * 2**20
"""The largest body after decompression: 1 MiB of records takes more in Base64 with its headers."""


async def append(context: S2Context, target: Target) -> Response:
    """POST /v1/streams/{stream}/records."""
    context.require(Operation.APPEND, target)
    context.refuse_key()
    context.require_basin(target.basin)
    given, size = _decode(context, target, await context.body(BODY_BYTES_MAX))
    with context.cell_client() as cells:
        for _ in range(TRIES):
            reply = await cells.request(
                target.cell, lambda number: _request(number, given), size, gather=True
            )
            if isinstance(reply, m.Appended):
                return _response(context, target, size, reply)
            if not is_unknown(reply):
                raise failure(reply, target)
            await ensure(context, cells, target, is_append=True)
    raise stream_not_found(target)


def direct_append(context: S2Context, target: Target, data: bytes) -> DirectRequest:
    """The append that the body `data` is. Raises S2Error."""
    context.check(Operation.APPEND, target)
    try:
        context.refuse_key()
        context.require_basin(target.basin)
        body = context.decompressed(data, BODY_BYTES_MAX)
        given, size = _decode(context, target, body)
    except S2Error:
        context.usage.count(Operation.APPEND, target.basin)
        raise
    to_response = partial(_direct_response, context, target, size)
    return DirectRequest(target.cell, _request(0, given), size, to_response)


def _direct_response(
    context: S2Context, target: Target, size: int, reply: CellReply
) -> Response | None:
    """The response to a reply; None: the stream does not exist, and may be created now."""
    if is_unknown(reply):
        return None
    context.usage.count(Operation.APPEND, target.basin)
    if isinstance(reply, m.Appended):
        return _response(context, target, size, reply)
    return failure(reply, target).response


def _decode(context: S2Context, target: Target, data: bytes) -> tuple[AppendInput, int]:
    """The records of a body, and their metered bytes. Raises S2Error."""
    kind = context.header(b"content-type")
    if protobuf_codec.is_protobuf(kind):
        given = protobuf_codec.decode_input(data)
    elif is_json(kind):
        given = json_codec.decode_input(data, json_codec.format_of(context.header(b"s2-format")))
    else:
        raise bad_json("content-type: application/json or application/protobuf")
    size = check_append(given)
    require_commands(context, target, given)
    return given, size


def require_commands(context: S2Context, target: Target, given: AppendInput) -> None:
    """Commands take operations of their own; a trim the right that other views ask for it.

    Raises CodedError.
    """
    verbs = {pairs[0][1] for pairs in given.headers or () if pairs and not pairs[0][0]}
    if b"trim" in verbs:
        context.require(Operation.TRIM, target)
    if b"fence" in verbs:
        context.require(Operation.FENCE, target)


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


def _response(context: S2Context, target: Target, size: int, appended: m.Appended) -> Response:
    context.usage.of(target.basin).appended_bytes += size
    ack = ack_of(appended)
    if protobuf_codec.is_protobuf(context.header(b"accept")):
        return compressed(context, protobuf_codec.MEDIA_TYPE, protobuf_codec.encode_ack(ack))
    return compressed(context, json_codec.MEDIA_TYPE, json_codec.encode_ack(ack))


def compressed(context: S2Context, kind: bytes, body: bytes) -> Response:
    """200 with a body, compressed if the client accepts that and it saves bytes."""
    body, encoding = write_body(body, context.header(b"accept-encoding"))
    headers = [(b"content-type", kind)]
    if encoding is not None:
        headers.append((b"content-encoding", encoding))
    return Response(200, headers, body)

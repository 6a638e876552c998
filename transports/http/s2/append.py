"""Unary appends (A.6): a whole body in, all or nothing, an ack once it is durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from millpond.actors.messages import Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.messages import Headers
from millpond.transports.http.asgi import EncodedResponse
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.direct import DirectClient, DirectRequest
from millpond.transports.http.request import RequestHead
from millpond.transports.http.response import SERVER, Pairs, Response, header_lines
from millpond.transports.http.s2.auto_create import (
    TRIES,
    ensure,
    failure,
    is_encrypted,
    is_unknown,
    stream_not_found,
)
from millpond.transports.http.s2.codecs import json as json_codec
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs.compression import write_body
from millpond.transports.http.s2.codecs.config import StorageClass
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import (
    BASIN_HEADER,
    S2Context,
    S2Target,
    is_json,
    target_in,
)
from millpond.transports.http.s2.encryption import EncryptionKey
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    S2Error,
    StreamPosition,
    bad_json,
)
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.metadata import storage_class_of
from millpond.transports.http.s2.model import (
    AppendAck,
    AppendInput,
    check_append,
    check_basin,
    check_stream,
)
from millpond.transports.http.s2.usage import S2Usage

BODY_BYTES_MAX = 8 * 2**20
"""The largest body after decompression: 1 MiB of records takes more in Base64 with its headers."""


async def append(context: S2Context, target: S2Target) -> Response:
    """POST /v1/streams/{stream}/records."""
    key = context.encryption_key()
    given, size = _given(context, await context.body(BODY_BYTES_MAX))
    context.check(Operation.APPEND, target)
    storage_class: StorageClass | None = None
    try:
        reply = await _append(context, target, given, size, key)
        storage_class = storage_class_of(reply.options)
    finally:
        context.usage.count_append(target.basin, storage_class)
    context.usage.of(target.basin).appended_bytes[storage_class] += size
    return _response(context, reply)


async def _append(
    context: S2Context, target: S2Target, given: AppendInput, size: int, key: EncryptionKey
) -> m.Appended:
    """Append to the stream, which is created if its basin says so. Raises S2Error."""
    require_commands(context, target, given.headers)
    context.require_basin(target.basin)
    with context.cell_client() as cells:
        for _ in range(TRIES):
            reply = await cells.request(
                target.cell, lambda number: _request(number, given), size, gather=True
            )
            if is_encrypted(reply):
                reply = await _append_encrypted(cells, target, given, size, key)
            if isinstance(reply, m.Appended):
                return reply
            if not is_unknown(reply):
                raise failure(reply, target)
            await ensure(context, cells, target, key, is_append=True)
    raise stream_not_found(target)


async def _append_encrypted(
    cells: CellClient, target: S2Target, given: AppendInput, size: int, key: EncryptionKey
) -> CellReply:
    """The reply of an encrypted stream. Raises CodedError (bad_header) for the key."""
    found = await cells.request(target.cell, m.Describe)
    if not isinstance(found, m.StreamDescription):
        return found
    cipher = key.for_stream(target.cell, found)
    if cipher is None:
        raise CodedError(ErrorCode.TRANSACTION_CONFLICT, "the stream was created anew; retry")
    sealed = await cipher.encrypted(given)

    def make(number: int) -> m.EncryptedAppend:
        return m.EncryptedAppend(
            number,
            sealed.bodies,
            None,
            sealed.headers,
            sealed.timestamps,
            sealed.fencing_token,
            sealed.match_seq_num,
            cipher.incarnation,
        )

    return await cells.request(target.cell, make, size, gather=True)


class SentAppend(DirectRequest, frozen=True, gc=False):
    """An append on its way to a stream; `size_bytes` are metered ones."""

    target: S2Target


class PlainAppend(msgspec.Struct, frozen=True, gc=False):
    """A head that leaves nothing open but the rights of the client and the state of the basin: the
    stream, and the decoder of the body, which is not compressed."""

    target: S2Target
    decode: Callable[[bytes], AppendInput]


class DirectAppends:
    """The appends with one head. Implements `transports.http.direct.DirectOperation`."""

    __slots__ = ("_accepted", "_encode_ack", "_head", "_plain", "_services", "_usage")

    def __init__(
        self, services: S2NodeServices, usage: S2Usage, head: RequestHead, cors: Pairs
    ) -> None:
        self._services = services
        self._usage = usage
        self._head = head
        self._plain = _plain_append(services, head)
        accept = (head.header(b"accept") or b"").decode("latin-1")
        is_protobuf = protobuf_codec.is_protobuf(accept)
        kind = protobuf_codec.MEDIA_TYPE if is_protobuf else json_codec.MEDIA_TYPE
        self._encode_ack = protobuf_codec.encode_ack if is_protobuf else json_codec.encode_ack
        self._accepted = header_lines(((b"content-type", kind), *cors, SERVER))
        """The headers of a success, before the length. An ack is too small to be compressed."""

    def message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest | Response:
        """The stream's part in an append."""
        plain, services = self._plain, self._services
        try:
            if plain is None or len(body) > BODY_BYTES_MAX:
                return self._careful_message(number, client, body)
            target = plain.target
            principal = client.principal
            rights = services.authorize_stream(principal, target.qualified_name)
            is_permitted = rights is Rights.ALL or (rights is not None and Rights.PUT in rights)
            if principal.token is not None and services.is_stranger(principal):
                is_permitted = False
            if not is_permitted or services.basins.find(target.basin) is None:
                return self._careful_message(number, client, body)
            given = plain.decode(body)
            size = check_append(given)
            if given.headers is not None:
                self._require_commands(client, target, given)
            return SentAppend(target.cell, _request(number, given), size, target)
        except S2Error as error:
            return error.response

    def _careful_message(self, number: int, client: DirectClient, body: bytes) -> DirectRequest:
        """The same, for any head and any client. Raises S2Error."""
        context = self._context(client)
        target = context.target(self._head.segments[2])
        given, size = _given(context, context.decompressed(body, BODY_BYTES_MAX))
        context.check(Operation.APPEND, target)
        self._require_commands(client, target, given)
        if self._services.basins.find(target.basin) is None:
            self._usage.count_append(target.basin)
        context.require_basin(target.basin)
        return SentAppend(target.cell, _request(number, given), size, target)

    def _require_commands(self, client: DirectClient, target: S2Target, given: AppendInput) -> None:
        """Require the operations of commands, after that of appends, which is counted if they are
        refused; else it is with the reply. Raises CodedError."""
        try:
            require_commands(self._context(client), target, given.headers)
        except S2Error:
            self._usage.count_append(target.basin)
            raise

    def response(self, sent: DirectRequest, reply: CellReply) -> Response | EncodedResponse | None:
        """The response to a reply; None: the stream does not exist, and may be created now, or
        takes encrypted records."""
        assert isinstance(sent, SentAppend), "an append was sent"
        if not isinstance(reply, m.Appended):
            if is_unknown(reply) or is_encrypted(reply):
                return None
            self._usage.count_append(sent.target.basin)
            return failure(reply, sent.target).response
        usage, storage_class = self._usage.of(sent.target.basin), storage_class_of(reply.options)
        usage.appends[storage_class] += 1
        usage.appended_bytes[storage_class] += sent.size_bytes
        body = self._encode_ack(ack_of(reply))
        lines = b"content-length: %d\r\n%b" % (len(body), self._accepted)
        return EncodedResponse(200, lines, body)

    def _context(self, client: DirectClient) -> S2Context:
        return S2Context(self._services, client.request(), self._usage)


def _plain_append(services: S2NodeServices, head: RequestHead) -> PlainAppend | None:
    """The plain append that a head asks for; None: it may be a bad one, or what it means depends on
    more than the head."""
    is_issued = head.bearer is not None and services.tokens.is_issued_form(head.bearer)
    if is_issued or b"content-encoding" in head.last:
        return None
    try:
        basin, kind, form = (
            None if value is None else value.decode()
            for value in map(head.header, (BASIN_HEADER, b"content-type", b"s2-format"))
        )
        if basin is None:
            return None
        check_basin(basin, ErrorCode.BAD_HEADER)
        check_stream(head.segments[2], ErrorCode.BAD_PATH)
        encoding = json_codec.format_of(form)
    except (UnicodeDecodeError, S2Error):
        return None
    target = target_in(services, basin.encode(), head.segments[2])
    if protobuf_codec.is_protobuf(kind):
        return PlainAppend(target, protobuf_codec.decode_input)
    if is_json(kind):
        return PlainAppend(target, partial(json_codec.decode_input, encoding=encoding))
    return None


def _given(context: S2Context, data: bytes) -> tuple[AppendInput, int]:
    """The records of a body, and their metered bytes. Raises S2Error."""
    kind = context.header(b"content-type")
    if protobuf_codec.is_protobuf(kind):
        given = protobuf_codec.decode_input(data)
    elif is_json(kind):
        given = json_codec.decode_input(data, json_codec.format_of(context.header(b"s2-format")))
    else:
        raise bad_json("content-type: application/json or application/protobuf")
    return given, check_append(given)


def require_commands(
    context: S2Context, target: S2Target, headers: Sequence[Headers] | None
) -> None:
    """Commands take operations of their own; a trim the right that other views ask for it.

    Raises CodedError.
    """
    verbs = {pairs[0][1] for pairs in headers or () if pairs and not pairs[0][0]}
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


def _response(context: S2Context, appended: m.Appended) -> Response:
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

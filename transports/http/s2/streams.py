"""The streams of a basin: list, create, describe, reconfigure, delete (A.2)."""

from __future__ import annotations

from functools import partial

from millpond.actors.errors import Code, NotAllowed
from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.response import Response
from millpond.transports.http.s2.auto_create import (
    TRIES,
    basin_of,
    creation,
    describe,
    failure,
    is_unknown,
    make,
    unlisted,
)
from millpond.transports.http.s2.codecs import info as info_codec
from millpond.transports.http.s2.codecs.config import (
    NOTHING,
    BasinConfig,
    StreamConfig,
    change_stream,
    encode_stream_config,
    inherit,
    read_post_stream,
    read_put_stream,
    read_stream_change,
    resolve,
)
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, bad_header
from millpond.transports.http.s2.metadata import (
    as_given,
    config_of,
    settings_of,
    stream_key,
    stream_metadata,
)
from millpond.transports.http.s2.model import is_text
from millpond.transports.p2p.streams.operations import LISTED_MAX, listed

BODY_BYTES_MAX = 65_536
TOKEN_HEADER = b"s2-request-token"
TOKEN_BYTES_MAX = 36
RESULT = b"s2-provision-result"
_JSON = (b"content-type", b"application/json")
_GONE = 202


async def list_streams(context: S2Context) -> Response:
    """GET /v1/streams."""
    basin = context.basin()
    query = info_codec.read_list_query(context.request.query)
    context.require(Operation.LIST_STREAMS, basin)
    if context.sees_basin(basin):
        context.require_basin(basin)  # to others it is the same as one without streams
    prefix, after = (
        each.encode("utf-8", "surrogateescape") for each in (query.prefix, query.start_after)
    )
    page, has_more = _page(context, basin, prefix, after, query.limit)
    infos = []
    with context.cell_client() as cells:
        for name in page:
            target = context.target_in(basin, name)
            found = await cells.request(target.cell, m.Describe)
            if isinstance(found, m.StreamDescription):
                infos.append(_info(target, found))
            elif not is_unknown(found):  # it may have gone since; but a list without it is wrong
                raise unlisted(found, target)
    return Response(200, (_JSON,), info_codec.encode_streams(infos, has_more=has_more))


def _page(
    context: S2Context, basin: bytes, prefix: bytes, after: bytes, limit: int
) -> tuple[list[bytes], bool]:
    """Names that this client may list, and whether there are more. Raises CodedError."""
    own, authorization = context.stream_prefix, context.authorization
    context.require_names()
    begin = own + prefix if authorization is None else authorization.narrowed(own + prefix)
    if begin is None:
        return [], False
    found = context.services.basins.streams(basin).names(begin, own + after, LISTED_MAX + 1)
    names = list(filter(is_text, found))  # S2 cannot spell the others, so they are not there
    try:
        return listed(names, bytes, limit, partial(_rights_in, context, basin))
    except NotAllowed:
        text = f"none of the first {LISTED_MAX} streams may be listed; use a prefix"
        raise CodedError(ErrorCode.PERMISSION_DENIED, text) from None


def _rights_in(context: S2Context, basin: bytes, name: bytes) -> Rights | None:
    return next(context.rights_listed(basin, (name,)))


def _info(target: S2Target, found: m.StreamDescription) -> info_codec.StreamInfo:
    cipher = stream_metadata(found.settings).cipher
    shown = None if cipher is None else cipher.value
    name = target.shown.decode("utf-8", "replace")
    return info_codec.StreamInfo(name, found.info.created_ms, None, shown)


async def post_stream(context: S2Context) -> Response:
    """POST /v1/streams: create, once for each request token."""
    basin = context.basin()
    token = request_token(context)
    wanted = read_post_stream(await context.json_body(BODY_BYTES_MAX))
    target = context.target_named(basin, wanted.stream.encode(), ErrorCode.BAD_JSON)
    context.require(Operation.CREATE_STREAM, target)
    context.require_basin(basin)
    key = stream_key(token, wanted.config)
    settings = creation(basin_of(context, target), wanted.config, key)
    with context.cell_client() as cells:
        is_new = await make(cells, target, settings)
        found = await describe(context, cells, target)
    if not is_new and (not key or stream_metadata(found.settings).creation != key):
        text = f"the stream {wanted.stream!r} exists already"
        raise CodedError(ErrorCode.RESOURCE_ALREADY_EXISTS, text)
    body = info_codec.encode_stream(_info(target, found))
    return Response(201, (_JSON, provisioned(is_new, is_new)), body)


def request_token(context: S2Context) -> str | None:
    """The token that makes a creation idempotent; an empty one is none. Raises CodedError
    (bad_header)."""
    token = context.header(TOKEN_HEADER)
    if token is not None and len(token.encode()) > TOKEN_BYTES_MAX:
        raise bad_header(f"s2-request-token: at most {TOKEN_BYTES_MAX} bytes")
    return token or None


def provisioned(is_new: bool, is_changed: bool) -> tuple[bytes, bytes]:
    """The header that says what a creation came to."""
    if is_new:
        return RESULT, b"created"
    return RESULT, b"updated" if is_changed else b"noop"


async def put_stream(context: S2Context, target: S2Target) -> Response:
    """PUT /v1/streams/{stream}: have it with exactly this configuration."""
    config = read_put_stream(await context.optional_json_body(BODY_BYTES_MAX))
    context.require(Operation.CREATE_STREAM, target)
    context.require_basin(target.basin)
    basin = basin_of(context, target)
    wanted = creation(basin, config)
    with context.cell_client() as cells:
        for _ in range(TRIES):
            if await make(cells, target, wanted):
                is_new = is_changed = True
                break
            changed = await _reconfigure(context, cells, target, config, basin)
            if changed is not None:
                is_new, is_changed = False, changed
                break
        else:
            raise CodedError(
                ErrorCode.TRANSACTION_CONFLICT,
                "the stream was created and deleted concurrently; retry",
            )
        found = await describe(context, cells, target)
    body = info_codec.encode_stream(_info(target, found))
    status = 201 if is_new else 200
    return Response(status, (_JSON, provisioned(is_new, is_changed)), body)


async def _reconfigure(
    context: S2Context,
    cells: CellClient,
    target: S2Target,
    config: StreamConfig,
    basin: BasinConfig,
) -> bool | None:
    """Give a stream that is there a configuration. Was it another? None: it is gone."""
    found = await cells.request(target.cell, m.Describe)
    if isinstance(found, m.StreamFailed) and found.code is Code.UNKNOWN_STREAM:
        return None
    if not isinstance(found, m.StreamDescription):
        raise failure(found, target)
    resolved = resolve(inherit(config, basin.default_stream_config))
    if resolved == config_of(found.settings, context.services.stream_age_s(target.qualified_name)):
        return False
    context.require(Operation.RECONFIGURE_STREAM, target)
    settings = settings_of(resolved, stream_metadata(found.settings), found.settings)
    # The request replaces the settings, whatever they are by now.
    return await _configure(cells, target, settings, None)


async def _configure(
    cells: CellClient, target: S2Target, settings: m.Settings, expected: m.Settings | None
) -> bool:
    """Change the settings; False: somebody else changed those that are expected. Raises S2Error."""
    reply = await cells.request(target.cell, lambda number: m.Configure(number, settings, expected))
    if isinstance(reply, m.StreamFailed) and reply.code is Code.SEQUENCE_MISMATCH:
        return False
    if isinstance(reply, m.StreamFailed | Failed):
        raise failure(reply, target)
    return True


async def show_stream(context: S2Context, target: S2Target) -> Response:
    """GET /v1/streams/{stream}: its configuration, all of it."""
    context.require(Operation.GET_STREAM_CONFIG, target)
    with context.cell_client() as cells:
        found = await describe(context, cells, target)
    config = config_of(found.settings, context.services.stream_age_s(target.qualified_name))
    return Response(200, (_JSON,), encode_stream_config(config))


async def patch_stream(context: S2Context, target: S2Target) -> Response:
    """PATCH /v1/streams/{stream}: change what is named; null: the basin's default."""
    change = read_stream_change(await context.json_body(BODY_BYTES_MAX))
    change_stream(NOTHING, change)
    context.require(Operation.RECONFIGURE_STREAM, target)
    basin = basin_of(context, target)
    with context.cell_client() as cells:
        for _ in range(TRIES):
            found = await describe(context, cells, target)
            before = config_of(found.settings, context.services.stream_age_s(target.qualified_name))
            given = change_stream(as_given(before), change)
            config = resolve(inherit(given, basin.default_stream_config))
            settings = settings_of(config, stream_metadata(found.settings), found.settings)
            if await _configure(cells, target, settings, found.settings):
                break
        else:
            raise CodedError(
                ErrorCode.TRANSACTION_CONFLICT, "the stream was reconfigured concurrently; retry"
            )
    return Response(200, (_JSON,), encode_stream_config(config))


async def delete_stream(context: S2Context, target: S2Target) -> Response:
    """DELETE /v1/streams/{stream}: it is gone at once, with all that reads it."""
    context.require(Operation.DELETE_STREAM, target)
    context.require_basin(target.basin)
    with context.cell_client() as cells:
        reply = await cells.request(target.cell, m.Delete)
    if isinstance(reply, m.StreamFailed | Failed):
        raise failure(reply, target)
    return Response(_GONE)

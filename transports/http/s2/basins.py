"""Basins of S2: list, create, describe, reconfigure, delete (A.2), and their one location.

The node's own basin always exists.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamRequest
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import BASINS
from millpond.transports.http.cell_client import CellReply
from millpond.transports.http.response import Response, json_response
from millpond.transports.http.s2.auto_create import TRIES
from millpond.transports.http.s2.codecs import info as info_codec
from millpond.transports.http.s2.codecs.config import (
    BasinConfig,
    StorageClass,
    change_basin,
    completed,
    encode_basin_config,
    read_basin_change,
    read_post_basin,
    read_put_basin,
    show_basin_config,
)
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context
from millpond.transports.http.s2.encryption import check_cipher
from millpond.transports.http.s2.errors import CodedError, ErrorCode, error_of, invalid
from millpond.transports.http.s2.interface import BasinRow
from millpond.transports.http.s2.metadata import (
    BasinMetadata,
    basin_config,
    creation_key,
    decode_basin_metadata,
    encode_basin_metadata,
)
from millpond.transports.http.s2.model import check_basin_prefix
from millpond.transports.http.s2.streams import (
    BODY_BYTES_MAX,
    provisioned,
    request_token,
)

LOCATION = "default"
LOCATION_BYTES_MAX = 4096
_LOCATION_INFO = {
    "name": LOCATION,
    "is_private": False,
    "storage_classes": [each.value for each in StorageClass],
    "default_storage_class": StorageClass.EXPRESS.value,
}
_decode_location = msgspec.json.Decoder(str).decode
_JSON = (b"content-type", b"application/json")


async def list_basins(context: S2Context) -> Response:
    """GET /v1/basins: the basins that this client may see."""
    context.check_known()
    query = info_codec.read_list_query(context.request.query)
    check_basin_prefix(query.prefix)
    context.require(Operation.LIST_BASINS)
    context.require_names()
    rows = [
        _info(name, row, is_removed=is_removed)
        for name, row, is_removed in context.services.basins.all()
        if context.sees_basin(name)
        and name.decode().startswith(query.prefix)
        and name.decode() > query.start_after
    ]
    has_more = len(rows) > query.limit
    body = info_codec.encode_basins(rows[: query.limit], has_more=has_more)
    return Response(200, (_JSON,), body)


def _info(name: bytes, row: BasinRow, *, is_removed: bool = False) -> info_codec.BasinInfo:
    deleted_ms = row.removed_ms or row.created_ms if is_removed else None
    location = decode_basin_metadata(row.metadata).location
    return info_codec.BasinInfo(name.decode(), row.created_ms, deleted_ms, location or LOCATION)


async def post_basin(context: S2Context) -> Response:
    """POST /v1/basins: create, once for each request token."""
    context.check_known()
    token = request_token(context)
    wanted = read_post_basin(await context.json_body(BODY_BYTES_MAX))
    name = wanted.basin.encode()
    check_location(wanted.location)
    context.require(Operation.CREATE_BASIN, name)
    _check_new_cipher(context, name, wanted.config)
    key = creation_key(token, encode_basin_config(wanted.config))
    metadata = encode_basin_metadata(wanted.config, key)
    is_new = await _make(context, name, metadata)
    row = context.require_basin(name)
    if not is_new and (not key or decode_basin_metadata(row.metadata).creation != key):
        text = f"the basin {wanted.basin!r} exists already"
        raise CodedError(ErrorCode.RESOURCE_ALREADY_EXISTS, text)
    body = info_codec.encode_basin(_info(name, row))
    return Response(201, (_JSON, provisioned(is_new, is_new)), body)


def check_location(name: str | None) -> None:
    """Check a location; there is one here. Raises CodedError (422)."""
    if name not in (None, LOCATION):
        raise CodedError(ErrorCode.INVALID, f"location: {LOCATION!r} is the only location")


async def put_basin(context: S2Context, name: bytes) -> Response:
    """PUT /v1/basins/{basin}: have it with exactly this configuration."""
    config, location = read_put_basin(await context.optional_json_body(BODY_BYTES_MAX))
    check_location(location)
    context.require(Operation.CREATE_BASIN, name)
    _check_new_cipher(context, name, config)
    for _ in range(TRIES):
        if await _make(context, name, encode_basin_metadata(config, b"")):
            is_new = is_changed = True
            break
        before = decode_basin_metadata(context.require_basin(name).metadata)
        is_new, is_changed = False, completed(basin_config(before)) != completed(config)
        if is_changed:
            context.require(Operation.RECONFIGURE_BASIN, name)
        if not is_changed or await _configure(context, name, before, config):
            break
    else:
        raise CodedError(
            ErrorCode.TRANSACTION_CONFLICT, "the basin was created and deleted concurrently; retry"
        )
    body = info_codec.encode_basin(_info(name, context.require_basin(name)))
    status = 201 if is_new else 200
    return Response(status, (_JSON, provisioned(is_new, is_changed)), body)


async def show_basin(context: S2Context, name: bytes) -> Response:
    """GET /v1/basins/{basin}: its configuration."""
    context.require(Operation.GET_BASIN_CONFIG, name)
    config = basin_config(decode_basin_metadata(context.require_basin(name).metadata))
    return Response(200, (_JSON,), show_basin_config(config))


async def patch_basin(context: S2Context, name: bytes) -> Response:
    """PATCH /v1/basins/{basin}: change what is named; null: the default."""
    change = read_basin_change(await context.json_body(BODY_BYTES_MAX))
    change_basin(BasinConfig(), change)
    context.require(Operation.RECONFIGURE_BASIN, name)
    before = decode_basin_metadata(context.require_basin(name).metadata)
    config = change_basin(basin_config(before), change)
    _check_new_cipher(context, name, config)
    if not await _configure(context, name, before, config):
        context.require_basin(name)
    return Response(200, (_JSON,), show_basin_config(config))


def _check_new_cipher(context: S2Context, name: bytes, config: BasinConfig) -> None:
    """Check the cipher of a configuration, unless the basin has it already: a basin keeps it where
    the cipher is not installed any more. Raises CodedError (501)."""
    row = context.services.basins.find(name)
    before = BasinConfig() if row is None else basin_config(decode_basin_metadata(row.metadata))
    if config.stream_cipher is not before.stream_cipher:
        check_cipher(config.stream_cipher)


async def delete_basin(context: S2Context, name: bytes) -> Response:
    """DELETE /v1/basins/{basin}: delete it with its streams; idempotent."""
    context.require(Operation.DELETE_BASIN, name)
    if name == context.services.basins.own:
        text = "the node's own basin cannot be deleted; its streams can"
        raise CodedError(ErrorCode.PERMISSION_DENIED, text)
    if not context.services.basins.is_removed(name):
        context.require_basin(name)
    # Asked again meanwhile, it waits like the first until that is as durable as promised.
    await _ask(context, lambda number: m.DeleteBasin(number, name))
    return Response(202)


async def _make(context: S2Context, name: bytes, metadata: bytes) -> bool:
    """False: there is a basin of this name. Raises S2Error."""
    # Asked also where it is there: the answer comes once what made it is as durable as promised.
    return await _ask(context, lambda number: m.CreateBasin(number, name, metadata))


async def _configure(
    context: S2Context, name: bytes, before: BasinMetadata, config: BasinConfig
) -> bool:
    """False: there is no such basin."""
    metadata = encode_basin_metadata(config, before.creation, before.location)
    return await _ask(context, lambda number: m.ConfigureBasin(number, name, metadata))


async def _ask(context: S2Context, make: Callable[[int], StreamRequest]) -> bool:
    """True: done. False: it is there already, or is not there. Raises S2Error."""
    with context.cell_client() as cells:
        reply: CellReply = await cells.request(BASINS, make)
    match reply:
        case m.Done():
            return True
        case m.StreamFailed(code=Code.STREAM_EXISTS | Code.UNKNOWN_STREAM):
            return False
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} answers nothing about basins")


async def list_locations(context: S2Context) -> Response:
    """GET /v1/locations."""
    context.require(Operation.LIST_LOCATIONS)
    return json_response(200, [_LOCATION_INFO])


async def show_default(context: S2Context) -> Response:
    """GET /v1/locations/default: where basins are that say nothing else."""
    context.require(Operation.GET_DEFAULT_LOCATION)
    return json_response(200, _LOCATION_INFO)


async def put_default(context: S2Context) -> Response:
    """PUT /v1/locations/default, whose body is a name as JSON; only one name is valid."""
    context.check_known()
    name = decode_json(_decode_location, await context.json_body(LOCATION_BYTES_MAX))
    if name != LOCATION:
        raise invalid(f"location: {LOCATION!r} is the only location")
    context.require(Operation.SET_DEFAULT_LOCATION)
    return json_response(200, _LOCATION_INFO)

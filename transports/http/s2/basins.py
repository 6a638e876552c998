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
from millpond.transports.http.s2.codecs import info as info_form
from millpond.transports.http.s2.codecs.config import (
    BasinConfig,
    StorageClass,
    change_basin,
    encode_basin_config,
    read_basin_change,
    read_post_basin,
    read_put_basin,
)
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import Call
from millpond.transports.http.s2.errors import CodedError, ErrorCode, error_of, invalid
from millpond.transports.http.s2.interface import BasinRow
from millpond.transports.http.s2.metadata import (
    BasinMetadata,
    basin_config,
    creation_key,
    decode_basin_metadata,
    encode_basin_metadata,
)
from millpond.transports.http.s2.model import check_basin
from millpond.transports.http.s2.streams import BODY_BYTES_MAX, provisioned, request_token

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


async def list_basins(call: Call) -> None:
    """GET /v1/basins: those that this client may be told of."""
    call.require(Operation.LIST_BASINS)
    query = info_form.read_list_query(call.request.query)
    rows = [
        _info(name, row, is_removed=is_removed)
        for name, row, is_removed in call.host.basins.all()
        if call.sees_basin(name)
        and name.decode().startswith(query.prefix)
        and name.decode() > query.start_after
    ]
    has_more = len(rows) > query.limit
    body = info_form.encode_basins(rows[: query.limit], has_more=has_more)
    await call.say(Response(200, (_JSON,), body))


def _info(name: bytes, row: BasinRow, *, is_removed: bool = False) -> info_form.BasinInfo:
    deleted_ms = row.removed_ms or row.created_ms if is_removed else None
    location = decode_basin_metadata(row.metadata).location
    return info_form.BasinInfo(name.decode(), row.created_ms, deleted_ms, location or LOCATION)


async def post_basin(call: Call) -> None:
    """POST /v1/basins: create, once for each request token."""
    call.check(Operation.CREATE_BASIN)
    asked = read_post_basin(await call.body(BODY_BYTES_MAX))
    name = asked.basin.encode()
    call.require(Operation.CREATE_BASIN, name)
    check_location(asked.location)
    check_cipher(asked.config)
    key = creation_key(request_token(call), encode_basin_config(asked.config))
    notes = encode_basin_metadata(asked.config, key)
    is_new = await _make(call, name, notes)
    row = call.require_basin(name)
    if not is_new and (not key or decode_basin_metadata(row.metadata).creation != key):
        text = f"there is a basin {asked.basin!r}"
        raise CodedError(ErrorCode.RESOURCE_ALREADY_EXISTS, text)
    body = info_form.encode_basin(_info(name, row))
    await call.say(Response(201, (_JSON, provisioned(is_new, is_new)), body))


def check_location(name: str | None) -> None:
    """There is one place here. Raises Refused (422)."""
    if name not in (None, LOCATION):
        raise CodedError(ErrorCode.INVALID, f"location: {LOCATION!r} is the only one")


def check_cipher(config: BasinConfig) -> None:
    """What a client believes to be encrypted must not be stored as it is. Raises Refused (501)."""
    if config.stream_cipher is not None:
        text = "stream_cipher: this node does not encrypt records; clients may, before they send"
        raise CodedError(ErrorCode.NOT_IMPLEMENTED, text)


async def put_basin(call: Call, name: bytes) -> None:
    """PUT /v1/basins/{basin}: have it with exactly this configuration."""
    call.require(Operation.CREATE_BASIN, name)
    config, location = read_put_basin(await call.body(BODY_BYTES_MAX))
    check_basin(name.decode("utf-8", "replace"))
    check_location(location)
    check_cipher(config)
    for _ in range(TRIES):
        if await _make(call, name, encode_basin_metadata(config, b"")):
            is_new = is_changed = True
            break
        before = decode_basin_metadata(call.require_basin(name).metadata)
        is_new, is_changed = False, basin_config(before) != config
        if is_changed:
            call.require(Operation.RECONFIGURE_BASIN, name)
        if not is_changed or await _configure(call, name, before, config):
            break
    else:
        raise CodedError(ErrorCode.TRANSACTION_CONFLICT, "the basin comes and goes; repeat")
    body = info_form.encode_basin(_info(name, call.require_basin(name)))
    status = 201 if is_new else 200
    await call.say(Response(status, (_JSON, provisioned(is_new, is_changed)), body))


async def show_basin(call: Call, name: bytes) -> None:
    """GET /v1/basins/{basin}: its configuration."""
    call.require(Operation.GET_BASIN_CONFIG, name)
    config = basin_config(decode_basin_metadata(call.require_basin(name).metadata))
    await call.say(Response(200, (_JSON,), encode_basin_config(config)))


async def patch_basin(call: Call, name: bytes) -> None:
    """PATCH /v1/basins/{basin}: change what is named; null: the default."""
    call.require(Operation.RECONFIGURE_BASIN, name)
    change = read_basin_change(await call.body(BODY_BYTES_MAX))
    before = decode_basin_metadata(call.require_basin(name).metadata)
    config = change_basin(basin_config(before), change)
    check_cipher(config)
    if not await _configure(call, name, before, config):
        call.require_basin(name)
    await call.say(Response(200, (_JSON,), encode_basin_config(config)))


async def delete_basin(call: Call, name: bytes) -> None:
    """DELETE /v1/basins/{basin}: it goes with its streams; asked again meanwhile, the same."""
    call.require(Operation.DELETE_BASIN, name)
    if name == call.host.basins.own:
        text = "the node's own basin cannot be deleted; its streams can"
        raise CodedError(ErrorCode.PERMISSION_DENIED, text)
    if not call.host.basins.is_removed(name):
        call.require_basin(name)
    # Asked again meanwhile, it waits like the first until that is as durable as promised.
    await _ask(call, lambda number: m.DeleteBasin(number, name))
    await call.say(Response(202))


async def _make(call: Call, name: bytes, notes: bytes) -> bool:
    """False: there is a basin of this name. Raises S2Error."""
    # Asked also where it is there: the answer comes once what made it is as durable as promised.
    return await _ask(call, lambda number: m.CreateBasin(number, name, notes))


async def _configure(call: Call, name: bytes, before: BasinMetadata, config: BasinConfig) -> bool:
    """False: there is no such basin."""
    notes = encode_basin_metadata(config, before.creation, before.location)
    return await _ask(call, lambda number: m.ConfigureBasin(number, name, notes))


async def _ask(call: Call, make: Callable[[int], StreamRequest]) -> bool:
    """True: done. False: it is there already, or is not there. Raises S2Error."""
    with call.inquiry() as inquiry:
        answer: CellReply = await inquiry.ask(BASINS, make)
    match answer:
        case m.Done():
            return True
        case m.StreamFailed(code=Code.STREAM_EXISTS | Code.UNKNOWN_STREAM):
            return False
        case m.StreamFailed() | Failed():
            raise error_of(answer)
        case _:
            raise AssertionError(f"{answer} answers nothing about basins")


async def list_locations(call: Call) -> None:
    """GET /v1/locations."""
    call.require(Operation.LIST_LOCATIONS)
    await call.say(json_response(200, [_LOCATION_INFO]))


async def show_default(call: Call) -> None:
    """GET /v1/locations/default: where basins are that say nothing else."""
    call.require(Operation.GET_DEFAULT_LOCATION)
    await call.say(json_response(200, _LOCATION_INFO))


async def put_default(call: Call) -> None:
    """PUT /v1/locations/default, whose body is a name as JSON: it is that one, or cannot be."""
    call.require(Operation.SET_DEFAULT_LOCATION)
    name = decode_json(_decode_location, await call.body(LOCATION_BYTES_MAX))
    if name != LOCATION:
        raise invalid(f"location: {LOCATION!r} is the only one")
    await call.say(json_response(200, _LOCATION_INFO))

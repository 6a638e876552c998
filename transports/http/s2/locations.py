"""Locations: where basins may be. There is one, this node."""

from __future__ import annotations

import msgspec

from millpond.transports.http.response import json_response
from millpond.transports.http.s2.basins import LOCATION
from millpond.transports.http.s2.codecs.config import StorageClass
from millpond.transports.http.s2.codecs.json import decode_json
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import Call
from millpond.transports.http.s2.errors import invalid

BODY_BYTES_MAX = 4096
_INFO = {
    "name": LOCATION,
    "is_private": False,
    "storage_classes": [each.value for each in StorageClass],
    "default_storage_class": StorageClass.EXPRESS.value,
}
_decode = msgspec.json.Decoder(str).decode


async def list_locations(call: Call) -> None:
    """GET /v1/locations."""
    call.require(Operation.LIST_LOCATIONS)
    await call.say(json_response(200, [_INFO]))


async def show_default(call: Call) -> None:
    """GET /v1/locations/default: where basins are that say nothing else."""
    call.require(Operation.GET_DEFAULT_LOCATION)
    await call.say(json_response(200, _INFO))


async def put_default(call: Call) -> None:
    """PUT /v1/locations/default, whose body is a name as JSON: it is that one, or cannot be."""
    call.require(Operation.SET_DEFAULT_LOCATION)
    name = decode_json(_decode, await call.body(BODY_BYTES_MAX))
    if name != LOCATION:
        raise invalid(f"location: {LOCATION!r} is the only one")
    await call.say(json_response(200, _INFO))

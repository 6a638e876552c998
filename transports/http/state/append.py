"""Events into a stream: one, or an array of them; all are kept, or none."""

from __future__ import annotations

import msgspec

from millpond.actors.messages import Rights
from millpond.actors.state.events import validation_error
from millpond.actors.streams import messages as m
from millpond.transports.http.json_arrays import ArrayTooLong, check_array_length
from millpond.transports.http.response import Response
from millpond.transports.http.state import json_codec
from millpond.transports.http.state.context import StateContext
from millpond.transports.http.state.errors import StateError

BODY_BYTES_MAX = 2**20
EVENTS_MAX = 1000
_COUNT = f"1 to {EVENTS_MAX} events at a time"
CONTENT = b"application/json"

_several = msgspec.json.Decoder(list[msgspec.Raw])


async def append(context: StateContext) -> Response:
    """POST: 200 with the sequence of the first, and the position behind the last."""
    context.require(Rights.PUT)
    kind = (context.request.header(b"content-type") or b"").partition(b";")[0].strip().lower()
    if kind != CONTENT:
        raise StateError(415, "content_type", "content-type: expected application/json")
    match = _match(context)
    bodies = _events(await context.request.body(BODY_BYTES_MAX))
    with context.cell_client() as cells:
        fields = (bodies, None, None, None, None, match)
        appended = await context.ask_stream(cells, m.Append, *fields)
    assert isinstance(appended, m.Appended)
    content = {"first": str(appended.first), "count": appended.count}
    return json_codec.response(content | {"position": str(appended.first + appended.count)})


async def create(context: StateContext) -> Response:
    """PUT: 201 where it is new, else 200."""
    context.require(Rights.PUT)
    with context.cell_client() as cells:
        try:
            await context.ask_stream(cells, m.Create, m.Settings(content_type=CONTENT))
        except StateError as error:
            if error.code != "stream_exists":
                raise
            return json_codec.response({"created": False})
    return json_codec.response({"created": True}, 201)


def _events(data: bytes) -> list[bytes]:
    try:
        is_list = data.lstrip()[:1] == b"["
        if is_list:
            check_array_length(data, EVENTS_MAX)
        bodies = [bytes(each) for each in _several.decode(data)] if is_list else [data.strip()]
    except ArrayTooLong:
        raise StateError(422, "invalid", _COUNT) from None
    except msgspec.MsgspecError as exc:
        raise StateError(400, "bad_json", str(exc)) from exc
    if not bodies:
        raise StateError(422, "invalid", _COUNT)
    for index, body in enumerate(bodies):
        reason = validation_error(body)
        if reason is not None:
            raise StateError(422, "invalid", f"event {index}: {reason}")
    return bodies


def _match(context: StateContext) -> int | None:
    found = dict(context.request.query).get("match")
    if found is None:
        return None
    return context.number("match", found, 0, m.U64_MAX)

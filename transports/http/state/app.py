"""The API of states: `/millpond/state/STREAM[/TYPE[/KEY]]`."""

from __future__ import annotations

from millpond.actors.messages import Rights
from millpond.actors.state import messages as s
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.paths import STATE
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection
from millpond.transports.http.state import json_codec
from millpond.transports.http.state.append import append, create
from millpond.transports.http.state.context import StateContext
from millpond.transports.http.state.errors import StateError
from millpond.transports.http.state.live import stream_state

PAGE = 1000
LIST_BYTES = 2**18
"""Of the values of a list, at most, but always one value."""
EVENT_STREAM = "text/event-stream"


class StateApi:
    """The API of states. Implements `millpond.transports.http.app.Api`.

    `front` is the page for a path without a stream. A live response has some output every
    `heartbeat_s`.
    """

    name = "state"

    def __init__(
        self,
        services: HttpNodeServices,
        front: Response,
        heartbeat_s: float = 15.0,
    ) -> None:
        self._services = services
        self._front = front
        self._heartbeat_s = heartbeat_s

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response | None:
        try:
            return await self._route(request, writer)
        except StateError as error:
            return error.response

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, as JSON."""
        return plain_rejection(reason)

    async def _route(self, request: Request, writer: ResponseWriter) -> Response | None:
        segments = request.segments[len(STATE) :]
        is_read = request.method in ("GET", "HEAD")
        if segments in ((), (b"",)) and is_read:
            return self._front
        stream, *rest = segments or (b"",)
        context = StateContext(self._services, request, writer, stream)
        match rest, request.method:
            case [], "GET" if EVENT_STREAM in _accept(request):
                await stream_state(context, self._heartbeat_s)
                return None
            case [], "POST" | "PUT":
                return await (append if request.method == "POST" else create)(context)
            case [], _ if is_read:
                return await _describe(context)
            case [kind], _ if is_read:
                return await _list_values(context, _text(kind))
            case [kind, key], _ if is_read:
                return await _get_value(context, _text(kind), _text(key))
            case _ if len(rest) > 2:
                raise StateError(404, "bad_path", "the path of a value is STREAM/TYPE/KEY")
            case _:
                raise StateError(405, "method", "this method is not supported here")


async def _describe(context: StateContext) -> Response:
    context.require(Rights.GET)
    with context.cell_client() as cells:
        reply = await context.request.run_until_disconnect(
            lambda: context.ask_state(cells, s.DescribeState)
        )
    assert isinstance(reply, s.StateDescribed)
    await context.hold(sum(map(len, reply.info.types)))
    return json_codec.response(json_codec.described(context.stream, reply))


async def _list_values(context: StateContext, kind: str) -> Response:
    context.require(Rights.GET)
    query = dict(context.request.query)
    after = query.get("after")
    limit = context.number("limit", query.get("limit", str(PAGE)), 1, PAGE)
    behind = None if after is None else (kind, after)
    fields = (kind, behind, limit, LIST_BYTES)
    await context.hold(LIST_BYTES)
    with context.cell_client() as cells:
        reply = await context.request.run_until_disconnect(
            lambda: context.ask_state(cells, s.ListValues, *fields)
        )
    assert isinstance(reply, s.Values)
    await context.hold(s.size_of(reply.rows))
    return json_codec.response(json_codec.values_of_type(reply))


async def _get_value(context: StateContext, kind: str, key: str) -> Response:
    context.require(Rights.GET)
    with context.cell_client() as cells:
        reply = await context.request.run_until_disconnect(
            lambda: context.ask_state(cells, s.GetValue, kind, key)
        )
    assert isinstance(reply, s.Value)
    if reply.value is None:
        raise StateError(404, "not_found", "no value exists for this type and key")
    await context.hold(len(reply.value))
    return json_codec.response(json_codec.one_value(reply))


def _accept(request: Request) -> str:
    return (request.header(b"accept") or b"").decode("latin-1").lower()


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise StateError(400, "bad_path", "types and keys must be UTF-8") from None

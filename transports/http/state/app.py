"""`/millpond/state/STREAM[/TYPE[/KEY]]`: which request is which question."""

from __future__ import annotations

from collections.abc import Callable

from millpond.actors.messages import Rights
from millpond.actors.state import messages as s
from millpond.transports.http import rejections as http
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection
from millpond.transports.http.state import json_codec as form
from millpond.transports.http.state.append import append, create
from millpond.transports.http.state.context import Call
from millpond.transports.http.state.errors import StateError
from millpond.transports.http.state.live import follow

PREFIX = (b"millpond", b"state")
PAGE = 1000
EVENT_STREAM = "text/event-stream"


class StateApi:
    """Implements `millpond.transports.http.app.Api`. `origins`: whose pages may write, besides the
    node's own. `front` gives what stands where no stream is named; a follower hears something every
    `heartbeat_s`."""

    name = "state"

    def __init__(
        self,
        host: HttpNodeServices,
        origins: frozenset[str],
        front: Callable[[Request], Response],
        heartbeat_s: float = 15.0,
    ) -> None:
        self._host = host
        self._origins = origins
        self._front = front
        self._heartbeat_s = heartbeat_s

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        """Answer a request; every refusal is JSON."""
        try:
            await self._route(request, answer, request.segments[len(PREFIX) :])
        except StateError as error:
            await answer.whole(error.response)

    def refuse(self, why: http.Rejection, delay_ms: int | None) -> Response | None:
        return plain_rejection(why)

    async def _route(
        self, request: Request, answer: ResponseWriter, segments: tuple[bytes, ...]
    ) -> None:
        is_read = request.method in ("GET", "HEAD")
        if segments in ((), (b"",)) and is_read:
            await answer.whole(self._front(request))
            return
        stream, *rest = segments or (b"",)
        call = Call(self._host, request, answer, stream)
        match rest, request.method:
            case [], "GET" if EVENT_STREAM in _accept(request):
                await follow(call, self._heartbeat_s)
            case [], "POST" | "PUT":
                call.require_own_page(self._origins)
                await (append if request.method == "POST" else create)(call)
            case [], _ if is_read:
                await _describe(call)
            case [kind], _ if is_read:
                await _show(call, _text(kind))
            case [kind, key], _ if is_read:
                await _get(call, _text(kind), _text(key))
            case _ if len(rest) > 2:
                raise StateError(404, "bad_path", "a state has types, and they have keys")
            case _:
                raise StateError(405, "method", "this cannot be done here")


async def _describe(call: Call) -> None:
    call.require(Rights.GET)
    with call.inquiry() as inquiry:
        told = await call.request.run_until_disconnect(
            lambda: call.ask_state(inquiry, s.DescribeState)
        )
    assert isinstance(told, s.StateDescribed)
    await call.answer.whole(form.response(form.described(call.stream, told)))


async def _show(call: Call, kind: str) -> None:
    call.require(Rights.GET)
    query = dict(call.request.query)
    after = query.get("after")
    limit = call.number("limit", query.get("limit", str(PAGE)), 1, PAGE)
    behind = None if after is None else (kind, after)
    fields = (kind, behind, limit)
    with call.inquiry() as inquiry:
        told = await call.request.run_until_disconnect(
            lambda: call.ask_state(inquiry, s.ListValues, *fields)
        )
    assert isinstance(told, s.Values)
    await call.answer.whole(form.response(form.values_of_type(told)))


async def _get(call: Call, kind: str, key: str) -> None:
    call.require(Rights.GET)
    with call.inquiry() as inquiry:
        told = await call.request.run_until_disconnect(
            lambda: call.ask_state(inquiry, s.GetValue, kind, key)
        )
    assert isinstance(told, s.Value)
    if told.value is None:
        raise StateError(404, "not_found", "there is no value at this type and key")
    await call.answer.whole(form.response(form.one_value(told)))


def _accept(request: Request) -> str:
    return (request.header(b"accept") or b"").decode("latin-1").lower()


def _text(part: bytes) -> str:
    try:
        return part.decode()
    except UnicodeDecodeError:
        raise StateError(400, "bad_path", "types and keys are UTF-8") from None

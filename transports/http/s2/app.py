"""The S2 API: which request is which operation, and what becomes of refusals (A.2, A.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from millpond.transports.http import rejections as http
from millpond.transports.http.direct import DirectRequest
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Response, ResponseWriter
from millpond.transports.http.s2 import append as appends
from millpond.transports.http.s2 import (
    append_session,
    basins,
    metrics,
    read_session,
    streams,
    tokens,
)
from millpond.transports.http.s2 import read as reads
from millpond.transports.http.s2.codecs.sse import MEDIA_TYPE as EVENTS
from millpond.transports.http.s2.context import Asking, Call, Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, NoSuchMethod, S2Error
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.usage import S2Usage

PREFIXES = (
    (b"v1", b"basins"),
    (b"v1", b"streams"),
    (b"v1", b"access-tokens"),
    (b"v1", b"metrics"),
    (b"v1", b"locations"),
)
"""Below these paths S2 answers."""

T = TypeVar("T")


class S2Api:
    """Implements `millpond.transports.http.app.Api`."""

    name = "s2"

    def __init__(self, host: S2NodeServices) -> None:
        self._host = host
        self._figures = S2Usage(host.now(), lambda name: host.basins.find(name) is not None)

    async def __call__(self, request: Request, answer: ResponseWriter) -> None:
        """Answer a request; every refusal has a JSON body (A.9)."""
        call = Call(self._host, request, answer, self._figures)
        try:
            await _route(call, request.segments[1:])
        except S2Error as error:
            await answer.whole(Response(error.status, error.headers, error.body))

    def is_direct(self, question: RequestHead) -> bool:
        """Implements `millpond.transports.http.direct.DirectApi`: unary appends are."""
        match question.segments[1:]:
            case (b"streams", name, b"records") if name and question.method == "POST":
                kind = question.last.get(b"content-type", b"")
                return _media(kind.decode("latin-1")) != read_session.S2S.decode()
        return False

    def direct_request(self, request: Request, body: bytes) -> DirectRequest | Response:
        """What an append asks."""
        asking = Asking(self._host, request, self._figures)
        try:
            return appends.errand_of(asking, asking.target(request.segments[2]), body)
        except S2Error as error:
            return Response(error.status, error.headers, error.body)

    def refuse(self, why: http.Rejection, delay_ms: int | None) -> Response | None:
        """What the application itself refuses, with a code of S2."""
        error = CodedError(_CODES.get(why, ErrorCode.INVALID), why.message, delay_ms)
        return Response(why.status, error.headers, error.body)


_CODES = {
    http.Rejection.NOT_FOUND: ErrorCode.BAD_PATH,
    http.Rejection.BAD_PATH: ErrorCode.BAD_PATH,
    http.Rejection.URL_TOO_LONG: ErrorCode.BAD_PATH,
    http.Rejection.HEADERS_TOO_LARGE: ErrorCode.BAD_HEADER,
    http.Rejection.BODY_TOO_LARGE: ErrorCode.INVALID,
    http.Rejection.BODY_BROKEN: ErrorCode.BAD_JSON,
    http.Rejection.BODY_TOO_SLOW: ErrorCode.REQUEST_TIMEOUT,
    http.Rejection.TOO_MANY: ErrorCode.UNAVAILABLE,
    http.Rejection.TOO_FAST: ErrorCode.RATE_LIMITED,
    http.Rejection.DRAINING: ErrorCode.SERVER_DRAINING,
    http.Rejection.NOT_ALLOWED: ErrorCode.PERMISSION_DENIED,
    http.Rejection.CRASHED: ErrorCode.OTHER,
    http.Rejection.CUT_OFF: ErrorCode.OTHER,
}


async def _append(call: Call, target: Target) -> None:
    is_session = _media(call.header(b"content-type")) == read_session.S2S.decode()
    await (append_session.append_frames if is_session else appends.append)(call, target)


async def _read(call: Call, target: Target) -> None:
    if call.request.method == "HEAD":
        await reads.read(call, target)
    elif _media(call.header(b"content-type")) == read_session.S2S.decode():
        await read_session.read_frames(call, target)
    elif _media(call.header(b"accept")) == EVENTS.decode():
        await read_session.read_events(call, target)
    else:
        await reads.read(call, target)


def _media(value: str | None) -> str:
    """The first media type of a header, without its parameters."""
    return (value or "").partition(",")[0].partition(";")[0].strip().lower()


Plain = Callable[[Call], Awaitable[None]]
OfName = Callable[[Call, bytes], Awaitable[None]]
OfStream = Callable[[Call, Target], Awaitable[None]]

_BASINS: Mapping[str, Plain] = {"GET": basins.list_basins, "POST": basins.post_basin}
_BASIN: Mapping[str, OfName] = {
    "GET": basins.show_basin,
    "PUT": basins.put_basin,
    "PATCH": basins.patch_basin,
    "DELETE": basins.delete_basin,
}
_STREAMS: Mapping[str, Plain] = {"GET": streams.list_streams, "POST": streams.post_stream}
_STREAM: Mapping[str, OfStream] = {
    "GET": streams.show_stream,
    "PUT": streams.put_stream,
    "PATCH": streams.patch_stream,
    "DELETE": streams.delete_stream,
}
_RECORDS: Mapping[str, OfStream] = {"GET": _read, "POST": _append}
_TAIL: Mapping[str, OfStream] = {"GET": reads.tail}
_TOKENS: Mapping[str, Plain] = {"GET": tokens.list_tokens, "POST": tokens.issue_token}
_TOKEN: Mapping[str, OfName] = {"DELETE": tokens.revoke_token}
_ACCOUNT_METRICS: Mapping[str, Plain] = {"GET": metrics.account_metrics}
_BASIN_METRICS: Mapping[str, OfName] = {"GET": metrics.basin_metrics}
_STREAM_METRICS: Mapping[str, OfStream] = {"GET": metrics.stream_metrics}
_LOCATIONS: Mapping[str, Plain] = {"GET": basins.list_locations}
_DEFAULT: Mapping[str, Plain] = {
    "GET": basins.show_default,
    "PUT": basins.put_default,
}
"""What each method does with a path. HEAD is GET without its body."""


async def _route(call: Call, segments: tuple[bytes, ...]) -> None:
    """A slash behind a collection is the same; behind anything else there is nothing."""
    match segments:
        case (b"basins",) | (b"basins", b""):
            await _of(_BASINS, call)(call)
        case (b"basins", name):
            await _of(_BASIN, call)(call, name)
        case (b"streams",) | (b"streams", b""):
            await _of(_STREAMS, call)(call)
        case (b"streams", name):
            await _of(_STREAM, call)(call, call.target(name))
        case (b"streams", name, b"records") if name:
            await _of(_RECORDS, call)(call, call.target(name))
        case (b"streams", name, b"records", b"tail") if name:
            await _of(_TAIL, call)(call, call.target(name))
        case _:
            await _route_account(call, segments)


async def _route_account(call: Call, segments: tuple[bytes, ...]) -> None:
    match segments:
        case (b"access-tokens",) | (b"access-tokens", b""):
            await _of(_TOKENS, call)(call)
        case (b"access-tokens", token_id):
            await _of(_TOKEN, call)(call, token_id)
        case (b"metrics",) | (b"metrics", b""):
            await _of(_ACCOUNT_METRICS, call)(call)
        case (b"metrics", basin):
            await _of(_BASIN_METRICS, call)(call, basin)
        case (b"metrics", basin, name):
            await _of(_STREAM_METRICS, call)(call, call.target_of(basin, name))
        case (b"locations",) | (b"locations", b""):
            await _of(_LOCATIONS, call)(call)
        case (b"locations", b"default"):
            await _of(_DEFAULT, call)(call)
        case _:
            raise CodedError(ErrorCode.BAD_PATH, "S2 has nothing at this path")


def _of(operations: Mapping[str, T], call: Call) -> T:
    """What the request's method does. Raises NoSuchMethod."""
    method = call.request.method
    found = operations.get("GET" if method == "HEAD" else method)
    if found is None:
        raise NoSuchMethod(method, [*operations, *(("HEAD",) if "GET" in operations else ())])
    return found

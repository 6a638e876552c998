"""The S2 API: which request is which operation, and what becomes of refusals (A.2, A.9)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from millpond.transports.http.direct import DirectOperation
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request, RequestHead
from millpond.transports.http.response import Pairs, Response, ResponseWriter
from millpond.transports.http.s2 import (
    append,
    append_session,
    basins,
    metrics,
    read,
    read_session,
    streams,
    tokens,
)
from millpond.transports.http.s2.codecs.sse import MEDIA_TYPE as EVENTS
from millpond.transports.http.s2.context import KEY_HEADER, S2Context, S2Target
from millpond.transports.http.s2.errors import CodedError, ErrorCode, NoSuchMethod, S2Error
from millpond.transports.http.s2.interface import S2NodeServices
from millpond.transports.http.s2.usage import S2Usage

T = TypeVar("T")


class S2Api:
    """The API of S2. Implements `millpond.transports.http.app.Api`."""

    name = "s2"

    def __init__(self, services: S2NodeServices) -> None:
        self._services = services
        self._usage = S2Usage(services.now, lambda name: services.basins.find(name) is not None)

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response | None:
        try:
            return await _route(S2Context(self._services, request, self._usage, writer))
        except S2Error as error:
            return error.response

    def direct_operation(self, head: RequestHead, cors: Pairs) -> DirectOperation | None:
        """Unary appends are direct, and reads that do not wait; see
        `millpond.transports.http.direct.DirectApi`."""
        content_type, accept = (
            _media(head.last.get(name, b"").decode("latin-1"))
            for name in (b"content-type", b"accept")
        )
        match head.segments[1:]:
            case (b"streams", name, b"records") if name:
                if KEY_HEADER in head.last or content_type == read_session.S2S.decode():
                    return None  # for an encrypted stream, most likely; or a session
                if head.method == "POST":
                    return append.DirectAppends(self._services, self._usage, head, cors)
                if head.method == "GET" and accept != EVENTS.decode():
                    return read.direct_reads(self._services, self._usage, head)
        return None

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        """A rejection by the application, with a code of S2."""
        error = CodedError(_CODES.get(reason, ErrorCode.INVALID), reason.message, delay_ms)
        return Response(reason.status, error.headers, error.body)


_CODES = {
    Rejection.NOT_FOUND: ErrorCode.BAD_PATH,
    Rejection.BAD_PATH: ErrorCode.BAD_PATH,
    Rejection.HOST_REFUSED: ErrorCode.BAD_HEADER,
    Rejection.ORIGIN_REFUSED: ErrorCode.PERMISSION_DENIED,
    Rejection.CROSS_SITE_REFUSED: ErrorCode.PERMISSION_DENIED,
    Rejection.URL_TOO_LONG: ErrorCode.BAD_PATH,
    Rejection.HEADERS_TOO_LARGE: ErrorCode.BAD_HEADER,
    Rejection.BODY_TOO_LARGE: ErrorCode.INVALID,
    Rejection.BODY_BROKEN: ErrorCode.BAD_JSON,
    Rejection.BODY_TOO_SLOW: ErrorCode.REQUEST_TIMEOUT,
    Rejection.TOO_MANY: ErrorCode.UNAVAILABLE,
    Rejection.TOO_FAST: ErrorCode.RATE_LIMITED,
    Rejection.DRAINING: ErrorCode.SERVER_DRAINING,
    Rejection.NOT_ALLOWED: ErrorCode.PERMISSION_DENIED,
    Rejection.CRASHED: ErrorCode.OTHER,
    Rejection.CUT_OFF: ErrorCode.OTHER,
}


async def _append(context: S2Context, target: S2Target) -> Response | None:
    if _media(context.header(b"content-type")) != read_session.S2S.decode():
        return await append.append(context, target)
    await append_session.append_frames(context, target)
    return None


async def _read(context: S2Context, target: S2Target) -> Response | None:
    is_head = context.request.method == "HEAD"
    if not is_head and _media(context.header(b"content-type")) == read_session.S2S.decode():
        await read_session.read_frames(context, target)
        return None
    if not is_head and _media(context.header(b"accept")) == EVENTS.decode():
        await read_session.read_events(context, target)
        return None
    return await read.read(context, target)


def _media(value: str | None) -> str:
    """The first media type of a header, without its parameters."""
    return (value or "").partition(",")[0].partition(";")[0].strip().lower()


Plain = Callable[[S2Context], Awaitable[Response | None]]
OfName = Callable[[S2Context, bytes], Awaitable[Response | None]]
OfStream = Callable[[S2Context, S2Target], Awaitable[Response | None]]

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
_TAIL: Mapping[str, OfStream] = {"GET": read.tail}
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
"""Operations of each path, by method. HEAD is GET without its body."""


async def _route(context: S2Context) -> Response | None:
    """A slash behind a collection is the same; behind anything else there is nothing."""
    segments = context.request.segments[1:]
    match segments:
        case (b"basins",) | (b"basins", b""):
            return await _of(_BASINS, context)(context)
        case (b"basins", name):
            return await _of(_BASIN, context)(context, context.basin_at(name))
        case (b"streams",) | (b"streams", b""):
            return await _of(_STREAMS, context)(context)
        case (b"streams", name):
            return await _of(_STREAM, context)(context, context.target(name))
        case (b"streams", name, b"records") if name:
            return await _of(_RECORDS, context)(context, context.target(name))
        case (b"streams", name, b"records", b"tail") if name:
            return await _of(_TAIL, context)(context, context.target(name))
        case _:
            return await _route_account(context, segments)


async def _route_account(context: S2Context, segments: tuple[bytes, ...]) -> Response | None:
    match segments:
        case (b"access-tokens", token_id) if token_id or context.request.method in _TOKEN:
            return await _of(_TOKEN, context)(context, token_id)
        case (b"access-tokens",) | (b"access-tokens", b""):
            return await _of(_TOKENS, context)(context)
        case (b"metrics",) | (b"metrics", b""):
            return await _of(_ACCOUNT_METRICS, context)(context)
        case (b"metrics", basin):
            return await _of(_BASIN_METRICS, context)(context, context.basin_at(basin))
        case (b"metrics", basin, name):
            return await _of(_STREAM_METRICS, context)(context, context.target_of(basin, name))
        case (b"locations",) | (b"locations", b""):
            return await _of(_LOCATIONS, context)(context)
        case (b"locations", b"default"):
            return await _of(_DEFAULT, context)(context)
        case _:
            raise CodedError(ErrorCode.BAD_PATH, "S2 has no such path")


def _of(operations: Mapping[str, T], context: S2Context) -> T:
    """The operation of the request's method. Raises NoSuchMethod."""
    method = context.request.method
    found = operations.get("GET" if method == "HEAD" else method)
    if found is None:
        raise NoSuchMethod(method, [*operations, *(("HEAD",) if "GET" in operations else ())])
    return found

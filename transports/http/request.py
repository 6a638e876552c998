"""A request as an API sees it: raw path in segments, query, headers, a body read within limits.

A body is given whole or not at all: what a client sends half way leaves no trace (http.md 0.8).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import anyio
import msgspec

from millpond.transports.http.active_request import ActiveRequest
from millpond.transports.http.asgi import Headers, Message, Receive, Scope, server_extension
from millpond.transports.http.cancellation import cancel_scope
from millpond.transports.server.interface import Principal

T = TypeVar("T")

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BEARER = re.compile(rb"bearer +(.+)", re.IGNORECASE | re.DOTALL)


class BadPath(Exception):
    """the path cannot be read (400)"""


class RequestHead(msgspec.Struct, frozen=True):
    """`segments`: the raw path split at `/`, each percent-decoded; `query`: decoded pairs, `+` is a
    space, bytes that are no UTF-8 as surrogates (`surrogateescape`). `last` has the last value of
    each header, `bearer` the access token."""

    method: str
    segments: tuple[bytes, ...]
    query: Sequence[tuple[str, str]]
    headers: Headers
    last: dict[bytes, bytes]
    bearer: bytes | None
    is_http2: bool


def request_head(scope: Scope, segments: tuple[bytes, ...]) -> RequestHead:
    """What is asked at a path with these segments. Raises BadPath for a query that cannot be
    read."""
    raw: bytes = scope.get("query_string", b"")
    return _question(scope, segments, parse_query(raw) if raw else ())


def head_without_path(scope: Scope) -> RequestHead:
    """The same of a request whose path or query cannot be read."""
    return _question(scope, (), ())


def _question(
    scope: Scope, segments: tuple[bytes, ...], query: Sequence[tuple[str, str]]
) -> RequestHead:
    headers: Headers = scope["headers"]
    last = dict(headers)
    found = last.get(b"authorization")
    matched = _BEARER.fullmatch(found) if found is not None else None
    return RequestHead(
        scope["method"],
        segments,
        query,
        headers,
        last,
        matched[1].strip() if matched else None,
        scope.get("http_version", "1.1") not in ("1.0", "1.1"),
    )


def raw_segments(scope: Scope) -> tuple[bytes, ...]:
    """The segments as they came, to tell whose a path is that cannot be read."""
    raw: bytes = scope.get("raw_path") or b""
    return tuple(raw.partition(b"?")[0].split(b"/")[1:])


def split_path(scope: Scope) -> tuple[bytes, ...]:
    """The segments of the raw path below `root_path`, decoded one by one. Raises BadPath."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        # A server that tells no raw path has decoded it; nothing is left to be decoded.
        parts = scope["path"].encode("utf-8", "surrogateescape").split(b"/")[1:]
    else:
        parts = raw.partition(b"?")[0].split(b"/")[1:]
        if b"%" in raw:
            parts = [percent_decoded(part) for part in parts]
    root: str = scope.get("root_path", "")
    if root:
        above = root.encode("utf-8", "surrogateescape").strip(b"/").split(b"/")
        if parts[: len(above)] == above:
            parts = parts[len(above) :]
    return tuple(parts)


def percent_decoded(part: bytes) -> bytes:
    """A part of a URL without its escapes. Raises BadPath for a `%` that begins none."""
    if b"%" not in part:
        return part
    if _BROKEN_ESCAPE.search(part):
        raise BadPath("a percent sign is not followed by two hexadecimal digits")
    return unquote_to_bytes(part)


def parse_query(raw: bytes) -> list[tuple[str, str]]:
    """The pairs of a query, in their order; a key without `=` has the value "". Raises BadPath."""
    pairs = []
    for each in raw.replace(b"+", b" ").split(b"&"):
        if each:
            name, _, value = each.partition(b"=")
            pairs.append((_text(name), _text(value)))
    return pairs


def _text(part: bytes) -> str:
    return percent_decoded(part).decode("utf-8", "surrogateescape")


LISTENER = "http"
"""The door's name, for the rules of access."""

CONFIRM_S = 0.01
DISCARDED_BYTES_MAX = 2**20
"""Of a body that nobody wants so much is read before the client counts as gone."""


class ClientGone(Exception):
    """the client left before it had said everything, or heard it; nobody can be answered"""


class BodyTooLarge(Exception):
    """the body has more bytes than the API takes (413)"""


class BodyTooSlow(Exception):
    """the body did not come in time (408)"""


class HttpLimits(msgspec.Struct, frozen=True):
    """Limits of requests; docs/reference/limits.md. A body has `body_s` to come, each piece of a
    session as long as it likes. What is refused before its body came is read on for `linger_s` at
    most."""

    url_bytes_max: int = 16 * 2**10
    header_bytes_max: int = 32 * 2**10
    body_bytes_max: int = 16 * 2**20
    body_s: float = 30.0
    linger_s: float = 0.5
    linger_bytes_max: int = 2**22


class Request:
    """What a client asks: the question, who asks it, and its body."""

    __slots__ = (
        "_is_read",
        "_length",
        "_limits",
        "_receive",
        "bytes_read",
        "client",
        "has_left",
        "header",
        "headers",
        "is_http2",
        "is_ours",
        "kept",
        "method",
        "principal",
        "query",
        "segments",
        "visit",
    )

    def __init__(
        self, scope: Scope, receive: Receive, limits: HttpLimits, question: RequestHead
    ) -> None:
        self.method = question.method
        self.segments = question.segments
        self.headers = question.headers
        self.query = question.query
        self.is_http2 = question.is_http2
        self.header: Callable[[bytes], bytes | None] = question.last.get
        """The last value of a header, named in lower case; None: there is none."""
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        """The other end's host, without its port."""
        told = server_extension(scope)
        self.is_ours = told is not None
        """It is our server that serves it."""
        self.kept: dict[str, Any] = {} if told is None else told.kept
        """What was found out from the question alone, when it was asked before."""
        certificate = None if told is None else told.certificate
        self.principal = Principal(question.bearer, None, self.client, LISTENER, certificate)
        """Who asks, by its token, its address and its certificate."""
        self._limits = limits
        self._receive = receive
        self._is_read = False
        self._length: int | None = None
        """What the whole body has, if that is known."""
        self.has_left = False
        """The client is gone."""
        self.bytes_read = 0
        self.visit: ActiveRequest
        """How the node tells this request that it has to end."""

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, in their order."""
        return [value for each, value in self.headers if each == name]

    @property
    def is_read(self) -> bool:
        """Nothing of the body is left to be read: it came whole, or the client is gone."""
        return self._is_read or self.has_left

    @property
    def came_whole(self) -> bool:
        """All of the body came, whether or not the client is still there."""
        return self._is_read

    @property
    def may_have_body(self) -> bool:
        """Might there be a body that was not read? Without a length HTTP/2 does not tell."""
        if self.is_read:
            return False
        if not self.bytes_read and self.header(b"expect") is not None:
            return False  # it waits for our word before it sends any
        length = self.header(b"content-length")
        if length is not None:
            return length != b"0"
        if self.header(b"transfer-encoding") is not None:
            return True
        return self.is_http2 and self.method in ("POST", "PUT", "PATCH")

    async def body(self, bytes_max: int | None = None) -> bytes:
        """The whole body. Raises BodyTooLarge, BodyTooSlow, and ClientGone for half of one."""
        limit = self._limits.body_bytes_max if bytes_max is None else bytes_max
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise BodyTooLarge(f"the body has {int(length)} bytes, at most {limit} are taken")
        if length == b"0":
            return b""
        if length is not None and length.isdigit():
            self._length = int(length)
        with cancel_scope(self._limits.body_s):
            first = await self._next()
            if not self._is_read or len(first) > limit:
                first = await self._whole(first, limit)
            if self.is_http2 and self._length is None and not self.is_ours:
                await self._confirm()
            return first
        raise BodyTooSlow(f"the body did not come within {self._limits.body_s:g} s")

    async def _confirm(self) -> None:
        """Nobody said how long the body is, and other servers take a reset for its end: if it was
        one, the client is gone at once. Raises ClientGone."""
        with cancel_scope(CONFIRM_S):
            await self._next()

    async def _whole(self, first: bytes, limit: int) -> bytes:
        pieces, size = [first], len(first)
        while size <= limit:
            if self._is_read:
                return b"".join(pieces)
            piece = await self._next()
            pieces.append(piece)
            size += len(piece)
        raise BodyTooLarge(f"the body has more than {limit} bytes")

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, without a limit of time or size. Raises ClientGone."""
        while not self._is_read:
            piece = await self._next()
            if piece:
                yield piece

    async def gone(self) -> None:
        """Returns once the client has left. Nobody else may read meanwhile; what still comes of
        the body is dropped."""
        dropped = 0
        try:
            while dropped <= DISCARDED_BYTES_MAX:
                dropped += len(await self._next())
        except ClientGone:
            return

    async def run_until_disconnect(self, run: Callable[[], Awaitable[T]]) -> T:
        """Await `run()`, which is cancelled when the client leaves; then raises ClientGone.

        For what may take long and does not read the body: waiting reads, sessions that only send.
        """
        results: list[T] = []
        carried = _Carried()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            with carried:
                results.append(await run())
            tasks.cancel_scope.cancel()
        if carried.failure is not None:
            raise carried.failure
        if not results:
            raise ClientGone
        return results[0]

    async def linger(self) -> None:
        """Read on what nobody wants, within the limits, so that the answer reaches a client that
        is still sending: a connection closed with unread input is reset (http.md 0.2)."""
        left = self._limits.linger_bytes_max
        with anyio.move_on_after(self._limits.linger_s):
            try:
                while left > 0 and not self._is_read:
                    left -= len(await self._next())
            except ClientGone:
                return

    def let_go(self) -> None:
        """The request is over. Task groups leave cycles behind; nothing of the server is in them,
        or it would be held until the garbage collector comes."""
        self._receive = receive_nothing

    async def _watch(self, scope: anyio.CancelScope) -> None:
        await self.gone()
        scope.cancel()

    async def _next(self) -> bytes:
        """The next piece of the body. Raises ClientGone."""
        if self.has_left:
            raise ClientGone
        message = await self._receive()
        if message["type"] != "http.request":
            self.has_left = True
            raise ClientGone
        body: bytes = message.get("body", b"")
        self.bytes_read += len(body)
        is_end = not message.get("more_body", False)
        if is_end and self._length not in (None, self.bytes_read):
            # Servers take a reset of HTTP/2 that names no error for the end of the body.
            self.has_left = True
            raise ClientGone
        # Some servers tell the end by an empty piece, which crosses threads like any other.
        self._is_read = is_end or (not self.is_http2 and self.bytes_read == self._length)
        return body


async def receive_nothing() -> Message:
    """Receives nothing."""
    return {"type": "http.disconnect"}


class _Carried:
    """Carries an exception out of a task group, which would wrap it."""

    def __init__(self) -> None:
        self.failure: Exception | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(exc, Exception):
            self.failure = exc
        return self.failure is not None

"""Requests of HTTP: the head (method, path, query, headers), and a body read within limits.

A body is given whole or not at all: half a body leaves no trace (docs/reference/http-apis.md).
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote_to_bytes

import anyio
import msgspec

from millpond.transports.http.active_request import ActiveRequest
from millpond.transports.http.asgi import Headers, Message, Receive, Scope, server_extension
from millpond.transports.http.cancellation import cancel_scope
from millpond.transports.server.interface import Principal
from millpond.transports.server.memory_budget import SMALL_BYTES

T = TypeVar("T")

_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_BEARER = re.compile(rb"bearer +(.+)", re.IGNORECASE | re.DOTALL)


class BadPath(Exception):
    """the path cannot be read (400)"""


class HasHeaders(Protocol):
    """An object with the headers of a request: the request, or its head."""

    @property
    def header(self) -> Callable[[bytes], bytes | None]:
        """The last value of a header, named in lower case; None: there is none."""


class RequestHead(msgspec.Struct, frozen=True):
    """The head of a request.

    `segments`: the raw path split at `/`, each percent-decoded. `query`: decoded pairs; `+` is a
    space, and bytes that are not UTF-8 become surrogates (`surrogateescape`). `last` has the last
    value of each header, `bearer` the access token.
    """

    method: str
    segments: tuple[bytes, ...]
    query: Sequence[tuple[str, str]]
    headers: Headers
    last: dict[bytes, bytes]
    bearer: bytes | None
    is_http2: bool

    @property
    def header(self) -> Callable[[bytes], bytes | None]:
        """The last value of a header, named in lower case; None: there is none."""
        return self.last.get


def request_head(scope: Scope, segments: tuple[bytes, ...]) -> RequestHead:
    """The head of a request whose path has these segments. Raises BadPath for a bad query."""
    raw: bytes = scope.get("query_string", b"")
    return _head(scope, segments, parse_query(raw) if raw else ())


def head_without_path(scope: Scope) -> RequestHead:
    """The head of a request whose path or query cannot be decoded."""
    return _head(scope, (), ())


def _head(
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
    """The segments before decoding, to find the API of a path that cannot be decoded."""
    raw: bytes = scope.get("raw_path") or b""
    return tuple(raw.partition(b"?")[0].split(b"/")[1:])


def split_path(scope: Scope) -> tuple[bytes, ...]:
    """The segments of the raw path below `root_path`, decoded one by one. Raises BadPath."""
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        # A server that gives no raw path has decoded it already.
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
    """A part of a URL with its escapes decoded. Raises BadPath for a `%` that begins none."""
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
"""The listener's name in access rules."""

CONFIRM_S = 0.01
DISCARDED_BYTES_MAX = 2**20
"""Bytes of an unwanted body that are read before the client counts as gone."""


class ClientGone(Exception):
    """the client left before it had sent everything, or received it; nobody can be answered"""


class BodyTooLarge(Exception):
    """the body has more bytes than the API accepts (413)"""


class BodyTooSlow(Exception):
    """the body did not arrive in time (408)"""


class HttpLimits(msgspec.Struct, frozen=True):
    """Limits of requests; docs/reference/limits.md.

    A whole body has `body_s` to arrive; sessions have no limit of time. After a rejection up to
    `linger_bytes_max` are read for `linger_s`.
    """

    url_bytes_max: int = 16 * 2**10
    header_bytes_max: int = 32 * 2**10
    headers_max: int = 256
    body_bytes_max: int = 16 * 2**20
    body_s: float = 30.0
    linger_s: float = 0.5
    linger_bytes_max: int = 2**22


class Request:
    """A request: its head, its client, and its body, which is read on demand."""

    __slots__ = (
        "_is_read",
        "_length",
        "_limits",
        "_memory",
        "_receive",
        "active",
        "bytes_read",
        "cache",
        "client",
        "cors",
        "header",
        "headers",
        "is_disconnected",
        "is_http2",
        "is_own_server",
        "method",
        "principal",
        "query",
        "segments",
    )

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        limits: HttpLimits,
        head: RequestHead,
        cors: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.method = head.method
        self.cors = cors
        """The headers of CORS, which every response has."""
        self.segments = head.segments
        self.headers = head.headers
        self.query = head.query
        self.is_http2 = head.is_http2
        self.header: Callable[[bytes], bytes | None] = head.last.get
        """The last value of a header, named in lower case; None: there is none."""
        client = scope.get("client")
        self.client: str = client[0] if client else ""
        """The client's host, without its port."""
        extension = server_extension(scope)
        self.is_own_server = extension is not None
        """True where our own server serves the request, not another ASGI server."""
        self.cache: dict[str, Any] = {} if extension is None else extension.cache
        """Values derived from the head alone, kept for requests with the same head."""
        certificate = None if extension is None else extension.certificate
        self._memory = None if extension is None else extension.memory
        self.principal = Principal(
            head.bearer, None, self.client, LISTENER, certificate, client[1] or 0 if client else 0
        )
        """The client, by its token, address and certificate."""
        self._limits = limits
        self._receive = receive
        self._is_read = False
        self._length: int | None = None
        """The length of the whole body, if it is known."""
        self.is_disconnected = False
        self.bytes_read = 0
        self.active: ActiveRequest
        """The node's handle of the request; a direct request has none."""

    def values(self, name: bytes) -> list[bytes]:
        """All values of a header, in their order."""
        return [value for each, value in self.headers if each == name]

    @property
    def is_complete(self) -> bool:
        """True if the whole body came, even if the client has gone since."""
        return self._is_read

    @property
    def may_have_body(self) -> bool:
        """True if part of a body may be unread. Without a length HTTP/2 does not tell."""
        if self._is_read or self.is_disconnected:
            return False
        if not self.bytes_read and self.header(b"expect") is not None:
            return False  # the client waits for "100 Continue" before it sends any
        length = self.header(b"content-length")
        if length is not None:
            return length != b"0"
        if self.header(b"transfer-encoding") is not None:
            return True
        return self.is_http2 and self.method in ("POST", "PUT", "PATCH")

    async def body(self, bytes_max: int | None = None) -> bytes:
        """The whole body. Raises BodyTooLarge, BodyTooSlow; ClientGone for half a body."""
        limit = self._limits.body_bytes_max if bytes_max is None else bytes_max
        length = self.header(b"content-length")
        if length is not None and length.isdigit() and int(length) > limit:
            raise BodyTooLarge(f"the body has {int(length)} bytes; at most {limit} are accepted")
        if length == b"0":
            return b""
        if length is not None and length.isdigit():
            self._length = int(length)
        with cancel_scope(self._limits.body_s):
            body = await self._collect(limit)
            if self.is_http2 and self._length is None and not self.is_own_server:
                await self._confirm()
            return body
        raise BodyTooSlow(f"the body did not arrive within {self._limits.body_s:g} s")

    async def hold_answer(self, size_bytes: int) -> None:
        """Wait until an answer of about so many bytes may be made; to be called before its records
        are read. Small answers wait for nothing. Raises OutOfMemory."""
        if self._memory is not None and size_bytes > SMALL_BYTES:
            await self._memory.hold_answer(size_bytes)

    def keep_input(self, size_bytes: int, drop: Callable[[], None]) -> None:
        """Count so many bytes of the body that the application keeps; `drop` frees what can be
        freed of them as soon as the connection ends."""
        if self._memory is not None:
            self._memory.keep_input(size_bytes, drop)

    async def _confirm(self) -> None:
        """Check that a body without a length came to its end. Raises ClientGone.

        Other servers take a reset for the end of the body; after a reset the client is gone.
        """
        with cancel_scope(CONFIRM_S):
            await self._next()

    async def _collect(self, limit: int) -> bytes:
        pieces: list[bytes] = []
        memory, size, held = self._memory, 0, 0
        if memory is not None:
            memory.share_body(pieces)
        try:
            while True:
                pieces.append(await self._next())
                size += len(pieces[-1])
                if memory is not None and size - held > SMALL_BYTES:
                    await memory.hold_input(size - held)
                    held = size
                    if not pieces:
                        raise ClientGone  # the connection was broken off for lack of memory
                if size > limit:
                    raise BodyTooLarge(f"the body has more than {limit} bytes")
                if self._is_read:
                    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        finally:
            pieces.clear()  # the server has the same list

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes, without a limit of time or size. Raises ClientGone."""
        while not self._is_read:
            piece = await self._next()
            if piece:
                yield piece
            del piece  # or it would be kept until the next one has come

    async def wait_for_disconnect(self) -> None:
        """Return once the client has left. Nothing else may read meanwhile; the rest of the body
        is discarded."""
        discarded = 0
        try:
            while discarded <= DISCARDED_BYTES_MAX:
                discarded += len(await self._next())
        except ClientGone:
            return

    async def run_until_disconnect(self, run: Callable[[], Awaitable[T]]) -> T:
        """Await `run()`, which is cancelled when the client leaves; then raises ClientGone.

        For calls that may take long and do not read the body: waiting reads, and sessions that
        only send.
        """
        results: list[T] = []
        kept = _KeptException()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, tasks.cancel_scope)
            with kept:
                results.append(await run())
            tasks.cancel_scope.cancel()
        if kept.failure is not None:
            raise kept.failure
        if not results:
            raise ClientGone
        return results[0]

    async def linger(self) -> None:
        """Read and discard the rest of the body, within the limits, so that the response reaches a
        client that still sends: a connection closed with unread input is reset
        (docs/reference/http-apis.md)."""
        left = self._limits.linger_bytes_max
        with anyio.move_on_after(self._limits.linger_s):
            try:
                while left > 0 and not self._is_read:
                    left -= len(await self._next())
            except ClientGone:
                return

    def release(self) -> None:
        """Drop the server's objects once the request is over. Task groups leave cycles behind,
        which would keep them alive until the garbage collector runs."""
        self._receive = receive_nothing
        self._memory = None

    async def _watch(self, scope: anyio.CancelScope) -> None:
        await self.wait_for_disconnect()
        scope.cancel()

    async def _next(self) -> bytes:
        """The next piece of the body. Raises ClientGone."""
        if self.is_disconnected:
            raise ClientGone
        message = await self._receive()
        if message["type"] != "http.request":
            self.is_disconnected = True
            raise ClientGone
        body: bytes = message.get("body", b"")
        self.bytes_read += len(body)
        is_end = not message.get("more_body", False)
        if is_end and self._length not in (None, self.bytes_read):
            # Servers take a reset of HTTP/2 that names no error for the end of the body.
            self.is_disconnected = True
            raise ClientGone
        # Some servers mark the end by an empty piece, which crosses threads like any other.
        self._is_read = is_end or (not self.is_http2 and self.bytes_read == self._length)
        return body


async def receive_nothing() -> Message:
    """The `receive` of a request that is over, or whose body is known already."""
    return {"type": "http.disconnect"}


class _KeptException:
    """A block that carries an exception out of a task group, which would wrap it."""

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

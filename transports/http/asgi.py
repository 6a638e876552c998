"""The types of ASGI that we use (ASGI 3, HTTP connection scope 2.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

import msgspec

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApplication = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = list[tuple[bytes, bytes]]
"""Names in lower case, in the order of the wire, repeated ones kept."""

EXTENSION = "millpond"
"""The ASGI extension by which an application knows that our own server serves it."""

WHOLE_RESPONSE = "millpond.http.response"
"""A whole response in one message, which our server takes: `status`, `headers` and `body`."""


class RequestMemory(Protocol):
    """The memory of one request, within the node's budget (`server.memory_budget`). Held bytes are
    given back when an answer, or a piece of one, is written out, and when the request ends."""

    async def hold_answer(self, size_bytes: int) -> None:
        """Wait until the client can be written to, and until there is memory for so many bytes of
        an answer, those held already included. Raises OutOfMemory."""

    def share_body(self, pieces: list[bytes]) -> None:
        """Share the list in which the application collects the body.

        It is emptied as soon as the body is refused for lack of memory, or the connection ends.
        `receive` raises OutOfMemory, or tells of the end, only after that.
        """

    def keep_input(self, size_bytes: int, drop: Callable[[], None]) -> None:
        """The application keeps so many bytes of a body that it reads in pieces, in place of those
        that it kept before. `drop` frees them as soon as the connection ends."""

    async def hold_input(self, size_bytes: int) -> None:
        """Wait until there is memory for so many further bytes of the body. Raises OutOfMemory."""


class EncodedResponse(msgspec.Struct, frozen=True, gc=False):
    """A whole response of HTTP/1.1. `lines` are its headers, each with the end of its line; those
    of the connection, and `date`, are added. One of them is `content-length`."""

    status: int
    lines: bytes
    body: bytes = b""


class OutOfMemory(Exception):
    """the node has no memory for the request, and had none for some seconds (503)"""


class ServerExtension(msgspec.Struct):
    """The values that our server adds to a scope: the hash of the client's `certificate`, if any.

    `cache` holds what an application derives from method, path, query and headers alone. It is
    there again when the same head comes again. `memory` is set by the exchange of the request.
    """

    certificate: bytes | None
    cache: dict[str, Any]
    memory: RequestMemory | None = None


def server_extension(scope: Scope) -> ServerExtension | None:
    """The extension of a scope of our server; None under another server."""
    found: ServerExtension | None = scope.get("extensions", {}).get(EXTENSION)
    return found


class DirectConnection(Protocol):
    """A connection whose requests an application may answer without a task, one at a time.

    A request is whole when `DirectRequests.begin` takes it; `respond`, `defer` or `break_off` is
    called once for it, at any time.
    """

    client: tuple[str, int]
    """The address of the client: host and port."""

    @property
    def certificate(self) -> bytes | None:
        """The hash of the client's certificate, if it has shown one."""

    @property
    def soon(self) -> Callable[[Callable[[], None]], None]:
        """Calls back when everything that came in this pass of the event loop is handled."""

    def respond(self, response: EncodedResponse) -> None:
        """Write the whole response."""

    def defer(self) -> None:
        """Leave the request to a task after all, which does not count it against its rate."""

    def break_off(self) -> None:
        """End the connection: there is no response."""


class DirectRequests(Protocol):
    """The application's side of such a connection."""

    def begin(self, scope: Scope, body: bytes, now: float) -> bool:
        """Take a request, to answer it once; False: it needs a task. Of the scope only what its
        head tells counts: it may be that of another connection. `now`: seconds since 1970."""


ADMITTED = "millpond.admitted"
"""A key of a scope: the request was counted against its client's rate before it was deferred."""

DirectHandler = Callable[[DirectConnection], DirectRequests]
"""Makes the application's side of a connection."""

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


class WholeRequest(Protocol):
    """A request with its whole body, for an application that may answer it without a task."""

    @property
    def scope(self) -> Scope: ...

    @property
    def soon(self) -> Callable[[Callable[[], None]], None]:
        """Calls back when everything that came in this pass of the event loop is handled."""

    def body(self) -> bytes:
        """The whole body."""

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Write the whole response; to be called once, at any time."""

    def defer(self) -> None:
        """Leave the request to a task after all."""


ADMITTED = "millpond.admitted"
"""A key of a scope: the request was counted against its client's rate before it was deferred."""

DirectHandler = Callable[[WholeRequest], bool]
"""Takes a request, to answer it once; False: it needs a task."""

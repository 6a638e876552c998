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
"""The extension of ASGI by which an application knows that it is our server that serves it."""


WHOLE_RESPONSE = "millpond.http.response"
"""A whole answer in one message, which our server takes: `status`, `headers` and `body`."""


class ServerExtension(msgspec.Struct, frozen=True):
    """What our server adds to a scope: the `certificate` (its hash) that the client showed, if any.

    What an application finds out from method, path, query and headers alone may be put into `kept`:
    it is there again when the same head comes again.
    """

    certificate: bytes | None
    kept: dict[str, Any]


def server_extension(scope: Scope) -> ServerExtension | None:
    """None: somebody else serves."""
    found: ServerExtension | None = scope.get("extensions", {}).get(EXTENSION)
    return found


class WholeRequest(Protocol):
    """A request that came whole, for an application that may answer it without a task."""

    @property
    def scope(self) -> Scope: ...

    def body(self) -> bytes:
        """All of it."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back when all that came in this pass of the loop is handled."""

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """The whole answer; to be called once, at any time."""

    def defer(self) -> None:
        """Have it answered in a task after all."""


ADMITTED = "millpond.admitted"
"""In a scope: the request has been counted against its client's rate, by an application that then
deferred it."""

DirectHandler = Callable[[WholeRequest], bool]
"""Takes a request, to answer it once; False: it wants a task."""

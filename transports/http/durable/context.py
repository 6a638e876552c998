"""Durable Streams requests: the stream of a request, and the common headers of responses."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.context import RequestContext
from millpond.transports.http.durable import protocol
from millpond.transports.http.durable.errors import DurableError, bad_request, error_of
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.live_waiters import LiveWaiters
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import Pairs, Response, ResponseWriter
from millpond.transports.server.interface import Principal

RESERVED = b"__ds"
"""The first segment of paths that are no streams."""
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Every answer tells browsers to take it for what it says it is, and for nobody else."""


class DurableTarget(msgspec.Struct, frozen=True, gc=False):
    """A stream: its name and its cell."""

    name: bytes
    cell: bytes

    @property
    def path(self) -> bytes:
        """The path of the stream's URL."""
        return b"/v1/stream/" + quote_from_bytes(self.name, safe="/").encode()


def target_of(name: bytes) -> DurableTarget:
    """A stream, whether it is there or not. Raises DurableError."""
    if not 0 < len(name) <= protocol.NAME_BYTES_MAX:
        raise bad_request(f"a stream's name has 1 to {protocol.NAME_BYTES_MAX} bytes")
    return DurableTarget(name, stream_cell(name))


def target_at(segments: tuple[bytes, ...]) -> DurableTarget:
    """The stream at a path, given by the segments behind the prefix. Raises DurableError."""
    if not segments or segments[0] == RESERVED:
        raise DurableError(404, "not_found", "nothing exists at this path")
    return target_of(b"/".join(segments))


def denial(*, is_known: bool) -> DurableError:
    """403, or 401 for a client that has no rights anywhere."""
    if is_known:
        return DurableError(403, "permission_denied", "permission denied for this stream")
    challenge = ((b"www-authenticate", b"Bearer"),)
    return DurableError(401, "authn", "unknown or missing access token", challenge)


def require(
    services: HttpNodeServices, principal: Principal, target: DurableTarget, needed: Rights
) -> None:
    """Require one of these rights in the stream. Raises DurableError (401, 403)."""
    rights = services.authorize_stream(principal, target.name)
    if rights is not Rights.ALL and not (rights and rights & needed):
        raise denial(is_known=services.knows(principal))


def described(reply: CellReply) -> m.StreamDescription | None:
    """The description in a reply; None: the stream does not exist. Raises DurableError."""
    match reply:
        case m.StreamDescription():
            return reply
        case m.StreamFailed(code=Code.UNKNOWN_STREAM, is_tombstone=False):
            return None
        case m.StreamFailed() | Failed():
            raise error_of(reply)
        case _:
            raise AssertionError(f"{reply} describes no stream")


class DurableContext(RequestContext[HttpNodeServices]):
    """A request of Durable Streams, and the headers that every response to it has."""

    __slots__ = ("live_waiters", "settings")

    common_headers: Pairs = SECURITY_HEADERS

    def __init__(
        self,
        services: HttpNodeServices,
        settings: DurableSettings,
        request: Request,
        live_waiters: LiveWaiters,
        writer: ResponseWriter | None = None,
    ) -> None:
        super().__init__(services, request, writer)
        self.settings = settings
        self.live_waiters = live_waiters

    def require(self, target: DurableTarget, rights: Rights) -> None:
        """Require one of these rights in the stream. Raises DurableError (401, 403)."""
        require(self.services, self.request.principal, target, rights)

    def location(self, target: DurableTarget) -> bytes:
        """The stream's URL, under the name by which this client knows the node."""
        host = self.request.header(b"host")
        if host is None:
            return target.path
        return (b"https://" if self.settings.is_secure else b"http://") + host + target.path

    def response(self, status: int, headers: Pairs, body: bytes = b"") -> Response:
        """A response with these headers and the common ones."""
        return Response(status, (*headers, *self.common_headers), body)

    async def describe(
        self, cells: CellClient, target: DurableTarget
    ) -> m.StreamDescription | None:
        """The stream's description; None: the stream does not exist. Raises DurableError."""
        return described(await cells.request(target.cell, m.Describe))

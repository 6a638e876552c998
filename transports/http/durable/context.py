"""One request on its way: which stream it is about, whose it is, what every answer has."""

from __future__ import annotations

from urllib.parse import quote_from_bytes

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, Rights
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.errors import UpgradeRefused
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.durable import protocol as w
from millpond.transports.http.durable.errors import DurableError, Pairs, bad_request, error_of
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.durable.live_waiters import LiveWaiters
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter
from millpond.transports.websocket.origin import check_origin

PREFIX = (b"v1", b"stream")
SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Every answer tells browsers to take it for what it says it is, and for nobody else."""


class Target(msgspec.Struct, frozen=True, gc=False):
    """A stream: its name and its cell."""

    name: bytes
    cell: bytes

    @property
    def path(self) -> bytes:
        """Where it is."""
        return b"/v1/stream/" + quote_from_bytes(self.name, safe="/").encode()


def target_of(name: bytes) -> Target:
    """A stream, whether it is there or not. Raises Refusal."""
    if not 0 < len(name) <= w.NAME_BYTES_MAX:
        raise bad_request(f"a stream has a name of 1 to {w.NAME_BYTES_MAX} bytes")
    return Target(name, stream_cell(name))


class Asking:
    """A request with the node that serves it."""

    __slots__ = ("host", "request", "settings", "shared")

    def __init__(self, host: HttpNodeServices, settings: DurableSettings, request: Request) -> None:
        self.host = host
        self.settings = settings
        self.request = request
        self.shared: Pairs = SECURITY_HEADERS
        """Headers of every answer to this request."""

    def check_origin(self) -> None:
        """Only browsers send an Origin: it is the node's own, or one that was allowed.

        Raises Refusal (403).
        """
        if self.request.header(b"origin") is None:
            return
        given = [each.decode("latin-1") for each in self.request.values(b"origin")]
        hosts = [each.decode("latin-1") for each in self.request.values(b"host")]
        try:
            check_origin(hosts, given, self.settings.origins)
        except UpgradeRefused as refused:
            raise DurableError(refused.status, "origin_refused", refused.reason) from None
        self.shared = (
            *SECURITY_HEADERS,
            (b"access-control-allow-origin", given[0].encode("latin-1")),
            (b"access-control-expose-headers", b", ".join(w.EXPOSED_HEADERS)),
            (b"vary", b"origin"),
        )

    def require(self, target: Target, rights: Rights) -> None:
        """One of these rights in the stream. Raises Refusal: 401 where nobody knows who asks."""
        host, asker = self.host, self.request.principal
        if (host.authorize_stream(asker, target.name) or Rights.NONE) & rights:
            return
        if host.may_use_streams(asker):
            raise DurableError(403, "permission_denied", "not allowed in this stream")
        challenge = ((b"www-authenticate", b"Bearer"),)
        raise DurableError(401, "authn", "no access token that this node knows", challenge)

    def keep_requiring(self, target: Target, rights: Rights) -> None:
        """What lasts ends when it may not go on."""
        asker = self.request.principal

        def may_go_on() -> bool:
            return bool((self.host.authorize_stream(asker, target.name) or Rights.NONE) & rights)

        self.request.visit.may_go_on = may_go_on

    def location(self, target: Target) -> bytes:
        """The stream's URL, as this client names the node."""
        host = self.request.header(b"host")
        if host is None:
            return target.path
        return (b"https://" if self.settings.is_secure else b"http://") + host + target.path


class Call(Asking):
    """The same with its answer."""

    __slots__ = ("answer", "followers")

    def __init__(
        self,
        host: HttpNodeServices,
        settings: DurableSettings,
        request: Request,
        answer: ResponseWriter,
        followers: LiveWaiters,
    ) -> None:
        super().__init__(host, settings, request)
        self.answer = answer
        self.followers = followers

    def inquiry(self) -> CellClient:
        """Asks cells, for this request."""
        return CellClient(self.host)

    async def say(self, status: int, headers: Pairs, body: bytes = b"") -> None:
        """Answer."""
        await self.answer.whole(Response(status, (*headers, *self.shared), body))

    async def describe(self, inquiry: CellClient, target: Target) -> m.StreamDescription | None:
        """The stream's outline; None: there is none. Raises Refusal."""
        found = await inquiry.ask(target.cell, m.Describe)
        match found:
            case m.StreamDescription():
                return found
            case m.StreamFailed(code=Code.UNKNOWN_STREAM, is_tombstone=False):
                return None
            case m.StreamFailed() | Failed():
                raise error_of(found)
            case _:
                raise AssertionError(f"{found} describes no stream")

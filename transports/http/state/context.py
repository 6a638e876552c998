"""One request about a state: whose it is, which stream, and what it may do there."""

from __future__ import annotations

from millpond.actors.messages import Failed, Rights, StreamRequest
from millpond.actors.streams.messages import StreamFailed
from millpond.actors.streams.names import state_cell, stream_cell
from millpond.transports.errors import UpgradeRefused
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import ResponseWriter
from millpond.transports.http.state.errors import StateError, error_of
from millpond.transports.p2p.streams.bodies import NAME_BYTES_MAX
from millpond.transports.websocket.origin import check_origin

Make = type[StreamRequest]


class Call:
    """A request with the node that serves it. Raises StateError for a name that no stream has."""

    __slots__ = ("answer", "host", "request", "stream")

    def __init__(
        self, host: HttpNodeServices, request: Request, answer: ResponseWriter, stream: bytes
    ) -> None:
        if not 0 < len(stream) <= NAME_BYTES_MAX:
            text = f"a stream's name has 1 to {NAME_BYTES_MAX} bytes"
            raise StateError(400, "bad_path", text)
        self.host = host
        self.request = request
        self.answer = answer
        self.stream = stream

    def inquiry(self) -> CellClient:
        """Asks cells, for this request."""
        return CellClient(self.host)

    def require(self, needed: Rights) -> None:
        """Raises StateError: 401 where nobody knows who asks, 403."""
        if not self.may(needed):
            if self.host.may_use_streams(self.request.principal):
                raise StateError(403, "permission_denied", "the token does not permit this")
            raise StateError(401, "unauthorized", "no token that this node knows")

    def may(self, needed: Rights) -> bool:
        """The same, asked."""
        rights = self.host.authorize_stream(self.request.principal, self.stream)
        return bool((rights or Rights.NONE) & needed)

    def require_own_page(self, origins: frozenset[str]) -> None:
        """A browser's page that writes here is the node's own, or one that was allowed.

        Raises StateError (403).
        """
        given = [value.decode("latin-1") for value in self.request.values(b"origin")]
        hosts = [value.decode("latin-1") for value in self.request.values(b"host")]
        if not given:
            return
        try:
            check_origin(hosts or [""], given, origins)
        except UpgradeRefused as exc:
            raise StateError(403, "origin", exc.reason) from exc

    def number(self, name: str, text: str, least: int, most: int) -> int:
        """What a parameter of the query says. Raises StateError (400)."""
        is_number = text.isascii() and text.isdigit() and len(text) <= 20
        if not is_number or not least <= int(text) <= most:
            raise StateError(400, "bad_query", f"{name} is a number from {least} to {most}")
        return int(text)

    async def ask_state(self, inquiry: CellClient, make: Make, *fields: object) -> CellReply:
        """The answer of the state's cell. Raises StateError."""
        return _good(await inquiry.ask(state_cell(self.stream), lambda n: make(n, *fields)))

    async def ask_stream(self, inquiry: CellClient, make: Make, *fields: object) -> CellReply:
        """The answer of the stream itself. Raises StateError."""
        return _good(await inquiry.ask(stream_cell(self.stream), lambda n: make(n, *fields)))


def _good(answer: CellReply) -> CellReply:
    if isinstance(answer, Failed | StreamFailed):
        raise error_of(answer)
    return answer

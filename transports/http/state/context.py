"""State requests: the stream of a request, and requests to its cells."""

from __future__ import annotations

from millpond.actors.messages import Failed, Rights, StreamFailed, StreamRequest
from millpond.actors.streams.names import state_cell, stream_cell
from millpond.transports.http.cell_client import CellClient, CellReply
from millpond.transports.http.context import RequestContext
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import ResponseWriter
from millpond.transports.http.state.errors import StateError, error_of
from millpond.transports.p2p.streams.bodies import NAME_BYTES_MAX

Make = type[StreamRequest]


class StateContext(RequestContext[HttpNodeServices]):
    """A request for the state of a stream. Raises StateError for a name that no stream can have."""

    __slots__ = ("stream",)

    def __init__(
        self, services: HttpNodeServices, request: Request, writer: ResponseWriter, stream: bytes
    ) -> None:
        if not 0 < len(stream) <= NAME_BYTES_MAX:
            text = f"a stream's name has 1 to {NAME_BYTES_MAX} bytes"
            raise StateError(400, "bad_path", text)
        super().__init__(services, request, writer)
        self.stream = stream

    def require(self, needed: Rights) -> None:
        """Require one of these rights in the stream. Raises StateError (401, 403)."""
        if self.rights_in(self.stream) & needed:
            return
        if self.is_known:
            raise StateError(403, "permission_denied", "the token does not permit this")
        raise StateError(401, "unauthorized", "unknown or missing access token")

    def number(self, name: str, text: str, least: int, most: int) -> int:
        """A number in the query. Raises StateError (400)."""
        is_number = text.isascii() and text.isdigit() and len(text) <= 20
        if not is_number or not least <= int(text) <= most:
            raise StateError(400, "bad_query", f"{name}: expected a number from {least} to {most}")
        return int(text)

    async def hold(self, size_bytes: int) -> None:
        """Wait for memory for values of so many bytes, and for what is written of them. Raises
        OutOfMemory."""
        await self.request.hold_answer(2 * size_bytes)

    async def ask_state(self, cells: CellClient, make: Make, *fields: object) -> CellReply:
        """The answer of the state's cell. Raises StateError."""
        return _good(await cells.request(state_cell(self.stream), lambda n: make(n, *fields)))

    async def ask_stream(self, cells: CellClient, make: Make, *fields: object) -> CellReply:
        """The answer of the stream itself. Raises StateError."""
        return _good(await cells.request(stream_cell(self.stream), lambda n: make(n, *fields)))


def _good(answer: CellReply) -> CellReply:
    if isinstance(answer, Failed | StreamFailed):
        raise error_of(answer)
    return answer

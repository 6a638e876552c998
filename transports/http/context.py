"""Request contexts: a request on its way through an API, with the node's services and its response.

S2, Durable Streams and State each add what only they know: how a stream is named, and how a refusal
is written.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from millpond.actors.messages import Rights
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.interface import HttpNodeServices
from millpond.transports.http.request import Request
from millpond.transports.http.response import ResponseWriter

H = TypeVar("H", bound=HttpNodeServices)


class RequestContext(Generic[H]):
    """One request, the services of the node, and the writer of its response.

    A direct request has no writer: it is answered with one `Response`.
    """

    __slots__ = ("request", "services", "writer")

    writer: ResponseWriter

    def __init__(self, services: H, request: Request, writer: ResponseWriter | None = None) -> None:
        self.services = services
        self.request = request
        if writer is not None:
            self.writer = writer

    def cell_client(self) -> CellClient:
        """A client of the node's cells, for this request."""
        return CellClient(self.services)

    def rights_in(self, stream: bytes) -> Rights:
        """The rights of the client in a stream, by the name that access rules use."""
        return self.services.authorize_stream(self.request.principal, stream) or Rights.NONE

    @property
    def is_known(self) -> bool:
        """True if the client may do anything at all; otherwise its credentials are refused."""
        return self.services.knows(self.request.principal)

"""What the HTTP application is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from millpond.actors.messages import Batch, Port, Rights
from millpond.transports.p2p.admission import Asker
from millpond.transports.server.batching import Gathering
from millpond.transports.server.interface import Visitor
from millpond.transports.server.rate_limit import Bucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.traffic import Traffic


@dataclass(slots=True)
class HttpCounters:
    """What came and went over HTTP since the start. `answers` is by API and status; `gone` clients
    left before they were answered, `crashed` requests failed by a mistake of ours."""

    requests: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    gone: int = 0
    crashed: int = 0
    answers: dict[tuple[str, int], int] = field(default_factory=dict)


class HttpHost(Protocol):
    """The node, as HTTP requests see it; `transports.server.stream_host.StreamHost` says more."""

    http: HttpCounters
    traffic: dict[str, Traffic]

    @property
    def is_draining(self) -> bool:
        """Does the node stop?"""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]: ...
    @property
    def gathering(self) -> Gathering: ...
    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]: ...
    @property
    def detach(self) -> Callable[[bytes, Port], None]: ...

    def next_number(self) -> int:
        """A number that no connection and nobody else has."""

    def entered(self, visitor: Visitor) -> bool:
        """A request came; it counts like a connection. False: there are too many."""

    def greeted(self, visitor: Visitor) -> None: ...
    def left(self, visitor: Visitor) -> None: ...
    def note(self, refusal: Refusal, address: str) -> None: ...
    def shared_bucket(self, asker: Asker) -> Bucket | None: ...
    def admits(self, asker: Asker) -> bool: ...
    def authorize_stream(self, asker: Asker, name: bytes) -> Rights | None: ...

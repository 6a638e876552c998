"""What the HTTP application is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from millpond.actors.messages import Batch, Port, Rights
from millpond.transports.p2p.admission import Principal
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.interface import ServerConnection
from millpond.transports.server.protocol_stats import ProtocolStats
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal


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
    protocol_stats: dict[str, ProtocolStats]

    @property
    def is_draining(self) -> bool:
        """Does the node stop?"""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]: ...
    @property
    def batcher(self) -> CellBatcher: ...
    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]: ...
    @property
    def detach(self) -> Callable[[bytes, Port], None]: ...

    def next_number(self) -> int:
        """A number that no connection and nobody else has."""

    def register(self, visitor: ServerConnection) -> bool:
        """A request came; it counts like a connection. False: there are too many."""

    def handshake_done(self, visitor: ServerConnection) -> None: ...
    def unregister(self, visitor: ServerConnection) -> None: ...
    def record_refusal(self, refusal: Refusal, address: str) -> None: ...
    def shared_bucket(self, asker: Principal) -> TokenBucket | None: ...
    def may_use_streams(self, asker: Principal) -> bool: ...
    def authorize_stream(self, asker: Principal, name: bytes) -> Rights | None: ...

"""What a connection that serves streams is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millpond.actors.messages import Batch, Port, Rights
from millpond.transports.p2p.admission import Principal
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.directory import TopicDirectory
from millpond.transports.server.interface import ConnectionCounters, ServerConnection
from millpond.transports.server.protocol_stats import ProtocolStats
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal


class StreamHost(Protocol):
    """The node, as S3P and RustLog connections see it."""

    counters: ConnectionCounters
    protocol_stats: dict[str, ProtocolStats]
    topics: TopicDirectory
    rustlog_metrics: RustlogMetrics

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the Unix epoch; never steps back."""

    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]:
        """Give a batch to a cell; False: it was taken, but wait for `on_capacity`."""

    @property
    def batcher(self) -> CellBatcher:
        """The same, together with what others give that cell in this pass of the loop."""

    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]:
        """Call back once the cell's mailbox has room."""

    @property
    def detach(self) -> Callable[[bytes, Port], None]:
        """The connection is gone, or waits for nothing of this cell any more."""

    @property
    def arm(self) -> Callable[[ServerConnection, float], None]:
        """Have the visitor woken at a time."""

    @property
    def disarm(self) -> Callable[[ServerConnection], None]:
        """Forget what was armed."""

    def register(self, visitor: ServerConnection) -> bool:
        """A connection was accepted. False: there are too many, turn it away."""

    def handshake_done(self, visitor: ServerConnection) -> None:
        """Its first request was understood."""

    def unregister(self, visitor: ServerConnection) -> None:
        """The connection is gone."""

    def record_refusal(self, refusal: Refusal, address: str) -> None:
        """Somebody at this address was refused something."""

    def shared_bucket(self, asker: Principal) -> TokenBucket | None:
        """What all connections of the asker may ask for together; None: there is no limit."""

    def may_use_streams(self, asker: Principal) -> bool:
        """Might there be a stream that this client may use?"""

    def authorize_stream(self, asker: Principal, name: bytes) -> Rights | None:
        """The asker's rights in a stream or topic; None = none. The empty name: in all of them.

        put: append and create; get: read; list: be told of it; admin: trim, delete, configure.
        """

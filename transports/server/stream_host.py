"""What a connection that serves streams is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from millpond.actors.messages import Batch, Port, Rights
from millpond.transports.p2p.admission import Asker
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.batching import Gathering
from millpond.transports.server.directory import Topics
from millpond.transports.server.interface import Visitor, WireCounters
from millpond.transports.server.rate_limit import Bucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.traffic import Traffic


class StreamHost(Protocol):
    """The node, as S3P and RustLog connections see it."""

    counters: WireCounters
    traffic: dict[str, Traffic]
    topics: Topics
    rustlog_metrics: RustlogMetrics

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the Unix epoch; never steps back."""

    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]:
        """Give a batch to a cell; False: it was taken, but wait for `on_capacity`."""

    @property
    def gathering(self) -> Gathering:
        """The same, together with what others give that cell in this pass of the loop."""

    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]:
        """Call back once the cell's mailbox has room."""

    @property
    def detach(self) -> Callable[[bytes, Port], None]:
        """The connection is gone, or waits for nothing of this cell any more."""

    @property
    def arm(self) -> Callable[[Visitor, float], None]:
        """Have the visitor woken at a time."""

    @property
    def disarm(self) -> Callable[[Visitor], None]:
        """Forget what was armed."""

    def entered(self, visitor: Visitor) -> bool:
        """A connection was accepted. False: there are too many, turn it away."""

    def greeted(self, visitor: Visitor) -> None:
        """Its first request was understood."""

    def left(self, visitor: Visitor) -> None:
        """The connection is gone."""

    def note(self, refusal: Refusal, address: str) -> None:
        """Somebody at this address was refused something."""

    def shared_bucket(self, asker: Asker) -> Bucket | None:
        """What all connections of the asker may ask for together; None: there is no limit."""

    def admits(self, asker: Asker) -> bool:
        """Might there be a stream that this client may use?"""

    def authorize_stream(self, asker: Asker, name: bytes) -> Rights | None:
        """The asker's rights in a stream or topic; None = none. The empty name: in all of them.

        put: append and create; get: read; list: be told of it; admin: trim, delete, configure.
        """

"""Interfaces between connections and the node, one Protocol for each capability of the node.

`NodeServices` is what every connection uses; P2P, RustLog and HTTP connections need a little more,
and have their own interface modules. `ServerConnection` is the other direction: the calls that the
node makes to a connection.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Protocol

import msgspec

from millpond.actors.messages import Attach, Batch, Port, Rights
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.memory_budget import MemoryBudget
from millpond.transports.server.protocol_stats import ProtocolStats
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.tracing import NodeTracing


class DeliveryProof(msgspec.Struct, frozen=True):
    """The proof of a client that it has the delivery token of a mailbox, for one connection.

    It is made of the client's public key and the `nonce` of its HELLO.
    """

    nonce: bytes
    proof: bytes


class Principal(msgspec.Struct, frozen=True):
    """The client of a connection or request, by everything that is known of it.

    `identity` is a public key of 32 bytes that the client proved to hold; `address` is the host of
    the other end; `listener` is the protocol that was dialled: p2p, ws, s3p, rustlog or http;
    `certificate` is the SHA-256 of the client certificate, which our authority signed; `port` is
    the other end's, 0 if it has none; `delivery` goes with an identity.
    """

    token: bytes | None = None
    identity: bytes | None = None
    address: str = ""
    listener: str = "p2p"
    certificate: bytes | None = None
    port: int = 0
    delivery: DeliveryProof | None = None

    def __repr__(self) -> str:
        """Without the token: this may end up in a log."""
        identity = "-" if self.identity is None else self.identity.hex()
        return f"<Principal {identity} from {self.address} at {self.listener}>"


class ConnectionCounters(msgspec.Struct):
    """Failures on connections since the start; `ProtocolStats` counts the requests.

    `challenged` clients were asked to prove their identity, `identified` ones did;
    `challenges_refused` came above the rate. `overloaded` were closed because a mailbox had no room
    for their requests for long. `reasons` counts refused connections and requests by
    `refusals.Refusal`.
    """

    malformed: int = 0
    dropped: int = 0
    refused: int = 0
    aborted: int = 0
    stalled: int = 0
    slowed: int = 0
    overloaded: int = 0
    challenged: int = 0
    challenges_refused: int = 0
    identified: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)


class ConnectionSummary(msgspec.Struct, frozen=True):
    """A connection, as operators see it. `moved_bytes` is what was received and written until now;
    `channel` and `identity` are those of P2P clients."""

    number: int
    listener: str
    peer: str
    opened_at: float
    moved_bytes: int
    channel: bytes | None = None
    identity: bytes | None = None


class ServerConnection(Protocol):
    """A connection, as its node sees it."""

    deadline: float

    @property
    def peer(self) -> str:
        """The address of the other end, as `host:port`."""

    @property
    def address(self) -> str:
        """The host of the other end, without its port."""

    @property
    def summary(self) -> ConnectionSummary | None:
        """The connection, for operators; None: this is a request of HTTP."""

    def wake(self, now: float) -> None:
        """The deadline that was armed has passed."""

    def start_drain(self) -> None:
        """Stop pushing; acks count until the other end closes (PA-36)."""

    def reauthorize(self) -> None:
        """Check rights again: they may have changed."""

    def close(self) -> None:
        """Close now: the drain timeout of the node is over."""


class TracingServices(Protocol):
    """The spans of the node."""

    @property
    def tracing(self) -> NodeTracing | None:
        """Makes the spans; None: there are none. It may change."""


class CellServices(Protocol):
    """The cells of the node (channels, streams), their timers and the clock."""

    @property
    def now(self) -> Callable[[], float]:
        """Seconds since the Unix epoch; never steps back."""

    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]:
        """Give a batch to a cell at a time. False: it was taken, but wait for `on_capacity`."""

    @property
    def batcher(self) -> CellBatcher:
        """Merges what several connections give one cell in one pass of the loop."""

    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]:
        """Call back once the mailbox of a cell has room."""

    @property
    def attach(self) -> Callable[[bytes, Port, Attach, float], bool]:
        """Subscribe a port to a channel, as `submit` does it."""

    @property
    def detach(self) -> Callable[[bytes, Port], None]:
        """Forget a port in a cell: it is closed, or waits for nothing there any more."""

    @property
    def arm(self) -> Callable[[ServerConnection, float], None]:
        """Have `wake` called at a time; an earlier deadline stands (`actors.runtime.timers`)."""

    @property
    def disarm(self) -> Callable[[ServerConnection], None]:
        """Cancel the deadline of a connection."""


class RegistryServices(Protocol):
    """The registry of open connections: limits, counters and statistics."""

    counters: ConnectionCounters
    protocol_stats: dict[str, ProtocolStats]
    """By protocol."""

    @property
    def is_draining(self) -> bool:
        """Is the node stopping?"""

    def next_number(self) -> int:
        """A number that no other connection or request has."""

    def random(self) -> float:
        """At least 0 and below 1, for jitter: many heartbeats must not come at once."""

    def register(self, connection: ServerConnection) -> bool:
        """Count a new connection, or an HTTP request. False: there are too many, refuse it."""

    def admit(self, connection: ServerConnection) -> bool:
        """Count an HTTP request, until `unregister`. False: there are too many, or the node stops;
        it is not counted."""

    def handshake_done(self, connection: ServerConnection) -> None:
        """The handshake of the connection is complete, or it needs none."""

    def count_identity(self, connection: ServerConnection, principal: Principal) -> bool:
        """Count the connection for its proved identity. False: that identity has too many."""

    def unregister(self, connection: ServerConnection) -> None:
        """The connection is closed."""

    @property
    def record_refusal(self) -> Callable[[Refusal, str], None]:
        """Count, and log at intervals, that a client at an address was refused something."""

    def shared_bucket(self, principal: Principal) -> TokenBucket | None:
        """The rate limit that all connections of the principal share; None: there is none."""


class MemoryServices(Protocol):
    """The memory that connections hold."""

    memory: MemoryBudget

    def principal_key(self, address: str, identity: bytes | None = None) -> Hashable:
        """A client by its proved identity or its address, for its share of the memory. None: a
        client on this machine, which has no share of its own."""


class AccessServices(Protocol):
    """The access policy of the node."""

    def authorize(self, principal: Principal, channel: bytes) -> Rights | None:
        """The rights of the principal in a channel; None: access is denied."""

    def may_use_streams(self, principal: Principal) -> bool:
        """Might there be a stream that the principal may use?"""

    def knows(self, principal: Principal) -> bool:
        """True for a principal with some right in some channel or stream."""

    def is_operator(self, principal: Principal) -> bool:
        """True for a principal that may read chats and write in the name of the node. It may take
        some milliseconds to find out."""

    def authorize_stream(self, principal: Principal, name: bytes) -> Rights | None:
        """The rights of the principal in a stream or topic; None: none. The empty name: in all but
        private ones (`private_names`).

        put: append and create; get: read; list: see its name; admin: trim, delete, configure.
        """


class TopicDirectory(Protocol):
    """The topics of the node; a stream with the name of a topic is a topic of one partition."""

    def partitions(self, topic: bytes) -> int | None:
        """The number of partitions of a topic; None: there is no such topic."""

    def topics(self) -> Iterable[tuple[bytes, int]]:
        """Every topic with its number of partitions, ordered by name."""

    def is_created(self, name: bytes) -> bool:
        """Is there a stream of this name, apart from unused partitions of topics?"""


class StreamDirectory(TopicDirectory, Protocol):
    """The names of streams, and the topics."""

    @property
    def is_incomplete(self) -> bool:
        """True: the store lost names that nothing tells of."""

    def early_offsets(self, topic: bytes, partition: int) -> Mapping[bytes, int]:
        """The offsets that groups committed to a partition before it existed."""

    def check_complete(self) -> None:
        """Before names are listed. Raises StorageFailed if some are lost."""

    def names(self, prefix: bytes, after: bytes, limit: int) -> list[bytes]:
        """At most `limit` streams whose names begin with `prefix`, above `after`, in order."""

    def positions(self, names: Iterable[bytes]) -> Iterator[tuple[int, int] | None]:
        """The incarnation and the tail of each stream that is at rest; None: its cell knows."""


class NodeServices(
    CellServices, RegistryServices, AccessServices, MemoryServices, TracingServices, Protocol
):
    """The node, as every connection sees it."""

    @property
    def directory(self) -> StreamDirectory:
        """The streams and topics of the node."""

"""The registry of open connections, and the services of the node that connections call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache, partial
from itertools import count
from random import Random

import anyio

from millpond.actors.errors import NotNegotiated
from millpond.actors.messages import Attach, Durability, Port
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.store.catalog_recovery import PARTITIONS
from millpond.actors.store.partitions.file_pool import file_name
from millpond.node.access.issued_tokens import IssuedAccess
from millpond.node.access.policy import AccessPolicy
from millpond.node.config import Config
from millpond.node.events import EventLog, Field
from millpond.node.ip import is_remote, network_of
from millpond.node.machine_memory import memory_bytes, trimmer
from millpond.node.peers.identity import peer_id, verify
from millpond.node.stream_cells import StreamCells
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.tails.interface import ReplicaSnapshot
from millpond.transports.http.transactions.interface import TransactionCounters
from millpond.transports.http.transactions.locks import WriterLocks
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.challenge import ChallengeRate
from millpond.transports.p2p.handshake import NONCE_BYTES, Signer
from millpond.transports.p2p.interface import AskChannels, AskPeers, PeersCallback
from millpond.transports.rustlog.metrics import Reclaimed, RustlogMetrics
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.interface import (
    ConnectionCounters,
    ConnectionSummary,
    Principal,
    ServerConnection,
)
from millpond.transports.server.memory_budget import MemoryBudget
from millpond.transports.server.protocol_stats import stats_by_protocol
from millpond.transports.server.rate_limit import SharedBuckets, TokenBucket
from millpond.transports.server.refusals import Refusal, RefusalLog
from millpond.transports.server.tracing import NodeTracing, node_hook


class ConnectionRegistry:
    """The open connections and HTTP requests of a node: limits, counters, drain."""

    def __init__(self, config: Config, now: Callable[[], float], run: str = "") -> None:
        self._config = config
        self._now = now
        self.connections: dict[ServerConnection, str | None] = {}
        """Those that are open, each with the address that limits count."""
        self.counters = ConnectionCounters()
        self.protocol_stats = stats_by_protocol()
        self.record_refusal = RefusalLog(self.counters.reasons, now).record_refusal
        self.events = EventLog(run, now)
        self.is_draining = False
        self._numbers = count(1)
        self._by_address: Counter[str] = Counter()
        self._by_identity: Counter[bytes] = Counter()
        self._identities: dict[ServerConnection, bytes] = {}
        self._before_handshake: dict[ServerConnection, None] = {}
        self._announced: dict[ServerConnection, dict[str, Field]] = {}
        """Connections of which an event told that they are there, with its fields."""
        self._buckets = SharedBuckets(config.requests_per_s_per_peer_max)
        self._challenges = ChallengeRate(
            config.p2p_settings.handshakes_per_s_max, config.p2p_settings.handshakes_per_address_max
        )
        self._emptied: anyio.Event | None = None

    def next_number(self) -> int:
        """A number that no other connection or request has."""
        return next(self._numbers)

    def register(self, connection: ServerConnection) -> bool:
        """Count a new connection. False: there are too many, refuse it."""
        counted = _counted(connection.address)
        is_full = self._is_full(counted)
        self.connections[connection] = counted
        if counted is not None:
            self._by_address[counted] += 1
        if not is_full:
            self._before_handshake[connection] = None
            if len(self._before_handshake) > self._config.connections_before_ready_max:
                self._close_oldest_handshake()
        return not is_full

    def admit(self, connection: ServerConnection) -> bool:
        """Count a connection that needs no handshake, an HTTP request. False: there are too many,
        and it is not counted."""
        counted = _counted(connection.address)
        if self._is_full(counted):
            return False
        self.connections[connection] = counted
        if counted is not None:
            self._by_address[counted] += 1
        return True

    def _is_full(self, counted: str | None) -> bool:
        """True if there is no room for one more connection from this address."""
        config = self._config
        if self.is_draining or len(self.connections) >= config.connections_max:
            return True
        return (
            counted is not None and self._by_address[counted] >= config.connections_per_address_max
        )

    def _close_oldest_handshake(self) -> None:
        """The connection that has been silent for longest gives way: a flood of them must not keep
        others out."""
        oldest = next(iter(self._before_handshake))
        del self._before_handshake[oldest]
        self.record_refusal(Refusal.TOO_MANY, oldest.address)
        oldest.close()

    def handshake_done(self, connection: ServerConnection) -> None:
        """The handshake of the connection is complete."""
        self._before_handshake.pop(connection, None)
        summary = connection.summary
        if summary is not None and connection not in self._announced:
            self._announced[connection] = fields = _fields(summary)
            self.events.record("connected", fields)

    def count_identity(self, connection: ServerConnection, principal: Principal) -> bool:
        """Count the connection for its proved identity. False: that identity has too many."""
        identity = principal.identity
        if identity is None:
            return True
        if self._by_identity[identity] >= self._config.connections_per_peer_max:
            return False
        self._by_identity[identity] += 1
        self._identities[connection] = identity
        return True

    def unregister(self, connection: ServerConnection) -> None:
        """The connection is closed."""
        if connection not in self.connections:
            return
        counted = self.connections.pop(connection)
        identity = self._identities.pop(connection, None)
        if identity is not None:
            self._by_identity[identity] -= 1
            if not self._by_identity[identity]:
                del self._by_identity[identity]
        self._before_handshake.pop(connection, None)
        if (fields := self._announced.pop(connection, None)) is not None:
            self._record_end(connection, fields)
        if counted is not None:
            self._by_address[counted] -= 1
            if self._by_address[counted] <= 0:
                del self._by_address[counted]
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def _record_end(self, connection: ServerConnection, fields: dict[str, Field]) -> None:
        summary = connection.summary
        if summary is not None:
            seconds = round(max(0.0, self._now() - summary.opened_at), 3)
            more: dict[str, Field] = {"seconds": seconds, "bytes": summary.moved_bytes}
            self.events.record("disconnected", fields | more)

    def may_prove_plainly(self, address: str) -> bool:
        """May a client at this address prove an identity without TLS?"""
        return self._config.allow_plain_peers or not is_remote(address)

    def may_challenge(self, address: str) -> bool:
        """Is one more HELLO with an identity within the rate?"""
        return self._challenges.take(_counted(address), self._now())

    def shared_bucket(self, principal: Principal) -> TokenBucket | None:
        """The rate limit that all connections of the principal share; None: there is none."""
        if not self._buckets.per_s:
            return None
        return self._buckets.bucket(principal.identity or _counted(principal.address), self._now())

    def summaries(self) -> Iterator[ConnectionSummary]:
        """The open connections, without requests of HTTP."""
        found = (each.summary for each in self.connections)
        return (each for each in found if each is not None)

    def reauthorize(self) -> None:
        """Have all connections check their rights again."""
        for connection in list(self.connections):
            connection.reauthorize()

    async def drain(self) -> None:
        """Refuse new connections, drain the open ones, and wait until they are closed."""
        self.is_draining = True
        self._emptied = anyio.Event()
        for connection in list(self.connections):
            connection.start_drain()
        if self.connections:
            await self._emptied.wait()

    def close_all(self) -> None:
        """Close every connection now."""
        for connection in list(self.connections):
            connection.close()


class Services:
    """The services of a node that its connections and HTTP requests call.

    Implements the `NodeServices` of `transports.server.interface`, and what P2P, RustLog and HTTP
    use besides. Calls lead straight to the scheduler, the registry and the access policy.
    """

    def __init__(
        self,
        config: Config,
        registry: ConnectionRegistry,
        access: AccessPolicy,
        scheduler: Scheduler,
        streams: StreamCells,
        durability: Callable[[bytes], Durability],
        admin: Callable[[int, bytes, Admission], bytes],
        channels: AskChannels,
        *,
        now: Callable[[], float],
        ticks_ns: Callable[[], int],
        rng: Random,
        entropy: Callable[[int], bytes],
    ) -> None:
        # Cells.
        self.now = now
        self.submit = scheduler.submit
        self.batcher = CellBatcher(scheduler.submit, now)
        self.attach: Callable[[bytes, Port, Attach, float], bool] = scheduler.attach
        self.detach: Callable[[bytes, Port], None] = scheduler.detach
        self.on_capacity = scheduler.on_capacity
        self.arm = scheduler.timers.arm
        self.disarm = scheduler.timers.disarm
        self.durability = durability
        # Connections.
        self.registry = registry
        self.counters = registry.counters
        self.protocol_stats = registry.protocol_stats
        self.next_number = registry.next_number
        self.register = registry.register
        self.admit = registry.admit
        self.handshake_done = registry.handshake_done
        self.count_identity = registry.count_identity
        self.unregister = registry.unregister
        self.record_refusal = registry.record_refusal
        self.may_challenge = registry.may_challenge
        self.may_prove_plainly = registry.may_prove_plainly
        self.shared_bucket = registry.shared_bucket
        self.reauthorize = registry.reauthorize
        self.random = rng.random
        # Memory.
        self.memory = MemoryBudget(
            config.memory_settings(memory_bytes()), scheduler.timers.arm, trimmer()
        )
        # Access.
        self.may_use_streams = access.admits_to_streams
        self.knows = access.knows
        self.authorize = access.authorize
        self.authorize_stream = access.authorize_stream
        self.is_stranger = access.is_stranger
        self.is_operator = access.is_operator
        # Streams.
        self.directory = streams.directory
        self.basins = streams.basins
        self.states = streams.states
        self.schedules = streams.schedule_counters
        self.stages = streams.stages
        self.stream_age_s = streams.age_s
        self.tokens = IssuedAccess(streams.tokens, streams.basins.own, access.now)
        access.accept_issued_tokens(self.tokens.grants)
        self.replica_snapshot: Callable[[], ReplicaSnapshot | None] = lambda: None
        self.partition_path = lambda cell: f"{PARTITIONS}/{file_name(cell)}"
        self.transactions = TransactionCounters()
        self.writer_locks = WriterLocks()
        self.subscriptions = streams.subscriptions
        self.stream_scope = access.stream_scope
        self.webhook_keys = streams.subscriptions.keys
        self.is_controlled = lambda: access.is_controlled
        self.maker_credentials = streams.subscriptions.credentials
        # P2P.
        self.settings = config.p2p_settings
        self.admin = admin
        self.channels = channels
        self.peers: AskPeers = _no_outbox
        self.signer: Signer | None = None
        self.certificate_hash: bytes | None = None
        self.verify = verify
        self.nonce = partial(entropy, NONCE_BYTES)
        # RustLog and HTTP.
        trimmed = streams.counters
        self.rustlog_metrics = RustlogMetrics(
            ticks_ns, lambda: Reclaimed(trimmed.trims, trimmed.trimmed_bytes)
        )
        self.http = HttpCounters()

    @property
    def tracing(self) -> NodeTracing | None:
        """Makes the spans of the node, as long as `millpond.tracing` asks for them."""
        return node_hook.active

    def principal_key(self, address: str, identity: bytes | None = None) -> Hashable:
        """A client, for its share of the memory; None: one on this machine, which has none."""
        return identity or _counted(address)

    def watch_attachments(
        self,
        attach: Callable[[bytes, Port, Attach, float], bool],
        detach: Callable[[bytes, Port], None],
    ) -> None:
        """Attach and detach connections by these functions in place of the scheduler's."""
        self.attach, self.detach = attach, detach

    def open_to_peers(self, signer: Signer, peers: AskPeers) -> None:
        """Prove the identity of the node with `signer`, and answer requests about peers."""
        self.signer, self.peers = signer, peers

    def present_certificate(self, certificate_hash: bytes) -> None:
        """Bind handshakes to the TLS certificate with this SHA-256 from now on."""
        self.certificate_hash = certificate_hash

    @property
    def is_draining(self) -> bool:
        """Is the node stopping?"""
        return self.registry.is_draining


def _fields(summary: ConnectionSummary) -> dict[str, Field]:
    """The fields of a connection's events."""
    fields: dict[str, Field] = {
        "connection": summary.number,
        "listener": summary.listener,
        "peer": summary.peer,
    }
    if summary.channel is not None:
        fields["channel"] = summary.channel.decode("utf-8", "backslashreplace")
    if summary.identity is not None:
        fields["identity"] = peer_id(summary.identity)
    return fields


@lru_cache(maxsize=4096)
def _counted(address: str) -> str | None:
    """The address that limits count; None: this machine's, which has no limits."""
    return network_of(address) if is_remote(address) else None


def _no_outbox(
    operation: int,
    body: bytes,
    answer: PeersCallback,
    /,
    client: bytes | None = None,
    channel: bytes = b"",
) -> None:
    answer(NotNegotiated("this node has no outbox"))

"""The node's side of every connection: who may come in, how many, and where they go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

import anyio

from millpond.actors.errors import NotNegotiated
from millpond.actors.messages import Attach, Durability, Port, Rights
from millpond.actors.runtime.scheduler import Scheduler
from millpond.node.access.issued_tokens import IssuedAccess
from millpond.node.access.policy import AccessPolicy
from millpond.node.config import Config
from millpond.node.ip import is_remote, network_of
from millpond.node.peers.identity import verify
from millpond.node.stream_cells import StreamCells
from millpond.node.stream_settings import rustlog_settings, s3p_settings
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.transactions.interface import TransactionCounters
from millpond.transports.io.interface import Session
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.challenge import ChallengeRate
from millpond.transports.p2p.connection import P2PConnection
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import NONCE_BYTES, Signer
from millpond.transports.p2p.interface import AskPeers, PeersCallback
from millpond.transports.rustlog.connection import rustlog_connection
from millpond.transports.rustlog.metrics import Reclaimed, RustlogMetrics
from millpond.transports.s3p.connection import s3p_connection
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.interface import (
    ConnectionCounters,
    Principal,
    ServerConnection,
)
from millpond.transports.server.protocol_stats import stats_by_protocol
from millpond.transports.server.rate_limit import SharedBuckets, TokenBucket
from millpond.transports.server.refusals import Refusal, RefusalLog


class Services:
    """The services of the node that its connections call, and limits of connections."""

    def __init__(
        self,
        config: Config,
        access: AccessPolicy,
        scheduler: Scheduler,
        now: Callable[[], float],
        durability: Callable[[bytes], Durability],
        admin: Callable[[int, bytes, Admission], bytes],
        streams: StreamCells,
        rng: Random,
        entropy: Callable[[int], bytes],
        ticks_ns: Callable[[], int],
    ) -> None:
        self.settings = config.connection
        self.counters = ConnectionCounters()
        self.http = HttpCounters()
        self.protocol_stats = stats_by_protocol()
        self.durability = durability
        self.now = now
        self.submit = scheduler.submit
        self.batcher = CellBatcher(scheduler.submit, now)
        self.attach: Callable[[bytes, Port, Attach, float], bool] = scheduler.attach
        self.detach: Callable[[bytes, Port], None] = scheduler.detach
        self.on_capacity = scheduler.on_capacity
        self.arm = scheduler.timers.arm
        self.disarm = scheduler.timers.disarm
        self.admin = admin
        self.peers: AskPeers = _no_post
        self.directory = streams.directory
        self.basins = streams.basins
        self.states = streams.states
        self.stages = streams.stages
        self.transactions = TransactionCounters()
        self.stream_age_s = streams.age_s
        self.tokens = IssuedAccess(streams.tokens, streams.basins.own, now)
        access.issued = self.tokens.grants
        trimmed = streams.counters
        self.rustlog_metrics = RustlogMetrics(
            ticks_ns, lambda: Reclaimed(trimmed.trims, trimmed.trimmed_bytes)
        )
        self.signer: Signer | None = None
        self.certificate_hash: bytes | None = None
        self.verify = verify
        self.nonce = partial(entropy, NONCE_BYTES)
        self._challenges = ChallengeRate(
            self.settings.handshakes_per_s_max, self.settings.handshakes_per_address_max
        )
        refusals = RefusalLog(self.counters.reasons, now)
        self.record_refusal = refusals.record_refusal
        self._buckets = SharedBuckets(config.requests_per_s_per_peer_max)
        self.is_draining = False
        self.connections: dict[ServerConnection, None] = {}
        self._config = config
        self._s3p = s3p_settings(config)
        self._rustlog = rustlog_settings(config)
        self._access = access
        self._numbers = count(1)
        self._rng = rng
        self._by_address: Counter[str] = Counter()
        self._by_identity: Counter[bytes] = Counter()
        self._identities: dict[ServerConnection, bytes] = {}
        self._before_ready: dict[ServerConnection, None] = {}
        self._emptied: anyio.Event | None = None

    def random(self) -> float:
        return self._rng.random()

    def next_number(self) -> int:
        """A number that no connection and nobody else has."""
        return next(self._numbers)

    def connection(self, framing: Framing) -> P2PConnection:
        """A session for a connection that was just accepted."""
        return P2PConnection(next(self._numbers), self, framing)

    def s3p_connection(self) -> Session:
        """The same, of S3P."""
        return s3p_connection(next(self._numbers), self, self._s3p)

    def rustlog_connection(self) -> Session:
        """The same, of RustLog."""
        return rustlog_connection(next(self._numbers), self, self._rustlog)

    def may_use_streams(self, principal: Principal) -> bool:
        return self._access.admits_to_streams(principal)

    def authorize(self, principal: Principal, channel: bytes) -> Rights | None:
        return self._access.authorize(principal, channel)

    def authorize_stream(self, principal: Principal, name: bytes) -> Rights | None:
        return self._access.authorize_stream(principal, name)

    def reauthorize(self) -> None:
        """Who may do what has changed, perhaps: nobody goes on with rights that are gone."""
        for connection in list(self.connections):
            connection.reauthorize()

    def may_challenge(self, address: str) -> bool:
        return self._challenges.take(_counted(address), self.now())

    def register(self, connection: ServerConnection) -> bool:
        config, counted = self._config, _counted(connection.address)
        is_full = (
            self.is_draining
            or len(self.connections) >= config.connections_max
            or (
                counted is not None
                and self._by_address[counted] >= config.connections_per_address_max
            )
        )
        self.connections[connection] = None
        if not is_full:
            self._before_ready[connection] = None
            if len(self._before_ready) > config.connections_before_ready_max:
                self._give_way()
        if counted is not None:
            self._by_address[counted] += 1
        return not is_full

    def _give_way(self) -> None:
        """Who has been silent for longest makes room: a flood of them must keep nobody out."""
        oldest = next(iter(self._before_ready))
        del self._before_ready[oldest]
        self.record_refusal(Refusal.TOO_MANY, oldest.address)
        oldest.close()

    def handshake_done(self, connection: ServerConnection) -> None:
        self._before_ready.pop(connection, None)

    def count_identity(self, connection: ServerConnection, principal: Principal) -> bool:
        identity = principal.identity
        if identity is None:
            return True
        if self._by_identity[identity] >= self._config.connections_per_peer_max:
            return False
        self._by_identity[identity] += 1
        self._identities[connection] = identity
        return True

    def shared_bucket(self, principal: Principal) -> TokenBucket | None:
        return self._buckets.bucket(principal.identity or _counted(principal.address), self.now())

    def unregister(self, connection: ServerConnection) -> None:
        if connection not in self.connections:
            return
        identity = self._identities.pop(connection, None)
        if identity is not None:
            self._by_identity[identity] -= 1
            if not self._by_identity[identity]:
                del self._by_identity[identity]
        del self.connections[connection]
        self._before_ready.pop(connection, None)
        counted = _counted(connection.address)
        if counted is not None:
            self._by_address[counted] -= 1
            if self._by_address[counted] <= 0:
                del self._by_address[counted]
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    async def drain(self) -> None:
        """Turn newcomers away, say goodbye to all, and wait until they have gone."""
        self.is_draining = True
        self._emptied = anyio.Event()
        for connection in list(self.connections):
            connection.start_drain()
        if self.connections:
            await self._emptied.wait()

    def close_all(self) -> None:
        for connection in list(self.connections):
            connection.close()


def _counted(address: str) -> str | None:
    """As what limits for an address count it; None: this machine's, for which there are none."""
    return network_of(address) if is_remote(address) else None


def _no_post(operation: int, body: bytes, answer: PeersCallback) -> None:
    answer(NotNegotiated("this node has no post"))

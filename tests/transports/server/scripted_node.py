"""A scripted node: it keeps requests of connections until the test answers them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

from millpond.actors.errors import Code, StorageFailed
from millpond.actors.messages import Batch, Detach, Failed, Port, Reply, Rights, StreamRequest
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.batching import CellBatcher
from millpond.transports.server.interface import (
    ConnectionCounters,
    Principal,
    ServerConnection,
    StreamDirectory,
)
from millpond.transports.server.memory_budget import MemoryBudget, MemorySettings
from millpond.transports.server.protocol_stats import stats_by_protocol
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal


class NoTopics:
    """Topics of a node that has none."""

    is_incomplete = False

    def check_complete(self) -> None:
        if self.is_incomplete:
            raise StorageFailed

    def partitions(self, topic: bytes) -> int | None:
        return None

    def topics(self) -> Iterable[tuple[bytes, int]]:
        return ()

    def early_offsets(self, topic: bytes, partition: int) -> Mapping[bytes, int]:
        return {}

    def is_created(self, name: bytes) -> bool:
        return False

    def names(self, prefix: bytes, after: bytes, limit: int) -> list[bytes]:
        return []


class ScriptedNode:
    """`asked` are requests with their cells, in order; `answer` replies to the oldest.

    `rights` are those of everybody by stream or topic, `others` in what it does not name.
    """

    def __init__(self) -> None:
        self.counters = ConnectionCounters()
        self.protocol_stats = stats_by_protocol()
        self.directory: StreamDirectory = NoTopics()
        self.rustlog_metrics = RustlogMetrics(int)
        self.batcher = CellBatcher(self.submit, self.now)
        self.tracing = None
        self.time = 1_700_000_000.0
        self.asked: list[tuple[bytes, StreamRequest]] = []
        self.batches: list[tuple[bytes, int]] = []
        self.detached: list[bytes] = []
        self.resumes: list[Callable[[], None]] = []
        self.has_capacity = self.admits_clients = self.accepts_connections = True
        self.connections: set[ServerConnection] = set()
        self.handshakes = 0
        self.rights: dict[bytes, Rights | None] = {}
        self.others = Rights.ALL
        self.bucket: TokenBucket | None = None
        self.principals: list[Principal] = []
        self.refusals: list[Refusal] = []
        self.memory = MemoryBudget(MemorySettings(), lambda budget, when: None)
        self.port: Port
        """Of the last request."""

    def now(self) -> float:
        return self.time

    def principal_key(self, address: str, identity: bytes | None = None) -> Hashable:
        return identity or address

    def submit(self, cell: bytes, batch: Batch, now: float) -> bool:
        assert batch.port is not None
        self.port = batch.port
        self.batches.append((cell, len(batch.messages)))
        for each in batch.messages:
            assert isinstance(each, StreamRequest)
            self.asked.append((cell, each))
        return self.has_capacity

    def on_capacity(self, cell: bytes, resume: Callable[[], None]) -> None:
        self.resumes.append(resume)

    def detach(self, cell: bytes, port: Port) -> None:
        self.detached.append(cell)
        port.send([Failed(Detach(), Code.QUARANTINED)])

    def arm(self, connection: ServerConnection, when: float) -> None:
        connection.deadline = min(when, connection.deadline)

    def disarm(self, connection: ServerConnection) -> None:
        connection.deadline = float("inf")

    def register(self, connection: ServerConnection) -> bool:
        self.connections.add(connection)
        return self.accepts_connections

    def handshake_done(self, connection: ServerConnection) -> None:
        self.handshakes += 1

    def unregister(self, connection: ServerConnection) -> None:
        self.connections.remove(connection)

    def may_use_streams(self, principal: Principal) -> bool:
        self.principals.append(principal)
        return self.admits_clients

    def knows(self, principal: Principal) -> bool:
        return self.admits_clients

    def authorize_stream(self, principal: Principal, name: bytes) -> Rights | None:
        return self.rights.get(name, self.others)

    def shared_bucket(self, principal: Principal) -> TokenBucket | None:
        return self.bucket

    def record_refusal(self, refusal: Refusal, address: str) -> None:
        self.refusals.append(refusal)

    def answer(self, *replies: Reply) -> None:
        """As a cell does: everything that is ready, then one flush."""
        self.port.send(replies)
        self.port.flush()

    def free_mailbox(self) -> None:
        resumes, self.resumes = self.resumes, []
        self.has_capacity = True
        for resume in resumes:
            resume()

    def pass_time(self, connection: ServerConnection, seconds: float) -> None:
        """Let time pass, with the deadlines on the way."""
        end = self.time + seconds
        while connection.deadline <= end:
            self.time = connection.deadline
            connection.deadline = float("inf")
            connection.wake(self.time)
        self.time = end

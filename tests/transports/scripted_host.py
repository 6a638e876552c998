"""A node that answers as the test says: what connections ask is kept until then."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed, Leave, Port, Reply, Rights, StreamRequest
from millpond.transports.p2p.admission import Asker
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.batching import Gathering
from millpond.transports.server.directory import Topics
from millpond.transports.server.interface import Visitor, WireCounters
from millpond.transports.server.rate_limit import Bucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.traffic import traffic


class NoTopics:
    """Topics of a node that has none."""

    def partitions(self, topic: bytes) -> int | None:
        return None

    def topics(self) -> Iterable[tuple[bytes, int]]:
        return ()

    def is_created(self, name: bytes) -> bool:
        return False


class ScriptedHost:
    """`asked` are requests with their cells, in order; `answer` replies to the oldest.

    `rights` are those of everybody by stream or topic, `others` in what it does not name.
    """

    def __init__(self) -> None:
        self.counters = WireCounters()
        self.traffic = traffic()
        self.topics: Topics = NoTopics()
        self.rustlog_metrics = RustlogMetrics(int)
        self.gathering = Gathering(self.submit, self.now)
        self.time = 1_700_000_000.0
        self.asked: list[tuple[bytes, StreamRequest]] = []
        self.batches: list[tuple[bytes, int]] = []
        self.detached: list[bytes] = []
        self.resumes: list[Callable[[], None]] = []
        self.has_room = self.is_admitting = self.is_spacious = True
        self.visitors: set[Visitor] = set()
        self.greetings = 0
        self.rights: dict[bytes, Rights | None] = {}
        self.others = Rights.ALL
        self.bucket: Bucket | None = None
        self.askers: list[Asker] = []
        self.refusals: list[Refusal] = []
        self._port: Port

    def now(self) -> float:
        return self.time

    def submit(self, cell: bytes, batch: Batch, now: float) -> bool:
        assert batch.port is not None
        self._port = batch.port
        self.batches.append((cell, len(batch.messages)))
        for each in batch.messages:
            assert isinstance(each, StreamRequest)
            self.asked.append((cell, each))
        return self.has_room

    def on_capacity(self, cell: bytes, resume: Callable[[], None]) -> None:
        self.resumes.append(resume)

    def detach(self, cell: bytes, port: Port) -> None:
        self.detached.append(cell)
        port.send([Failed(Leave(), Code.QUARANTINED)])

    def arm(self, visitor: Visitor, when: float) -> None:
        visitor.deadline = min(when, visitor.deadline)

    def disarm(self, visitor: Visitor) -> None:
        visitor.deadline = float("inf")

    def entered(self, visitor: Visitor) -> bool:
        self.visitors.add(visitor)
        return self.is_spacious

    def greeted(self, visitor: Visitor) -> None:
        self.greetings += 1

    def left(self, visitor: Visitor) -> None:
        self.visitors.remove(visitor)

    def admits(self, asker: Asker) -> bool:
        self.askers.append(asker)
        return self.is_admitting

    def authorize_stream(self, asker: Asker, name: bytes) -> Rights | None:
        return self.rights.get(name, self.others)

    def shared_bucket(self, asker: Asker) -> Bucket | None:
        return self.bucket

    def note(self, refusal: Refusal, address: str) -> None:
        self.refusals.append(refusal)

    def answer(self, *replies: Reply) -> None:
        """As a cell does: everything that is ready, then one flush."""
        self._port.send(replies)
        self._port.flush()

    def make_room(self) -> None:
        resumes, self.resumes = self.resumes, []
        self.has_room = True
        for resume in resumes:
            resume()

    def pass_time(self, visitor: Visitor, seconds: float) -> None:
        """Let time pass, with the deadlines on the way."""
        end = self.time + seconds
        while visitor.deadline <= end:
            self.time = visitor.deadline
            visitor.deadline = float("inf")
            visitor.wake(self.time)
        self.time = end

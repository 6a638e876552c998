"""Behaviours for tests of the runtime, and a scheduler that runs them on a clock of the test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from random import Random

from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    Batch,
    CellMessage,
    Get,
    GetAck,
    Mode,
    Port,
    Put,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import Change, Snapshot, StoredMessage
from millpond.actors.store.interface import Commit, Store
from millpond.actors.store.memory import MemoryStore
from tests.actors.recording_port import RecordingPort

START_S = 1_763_683_200.0


class Echo:
    """Answers a Get with its id, keeps what is Put, and does to an Ack what the test says."""

    unanswered = ()

    def __init__(
        self,
        runtime: RuntimeHarness,
        name: bytes,
        snapshot: Snapshot,
        attachments: dict[Port, Attach],
    ):
        self.runtime = runtime
        self.name = name
        self.kept = [row.key for row in snapshot.rows]
        self.attachments = list(attachments)
        self.deadline = runtime.deadlines.get(name, inf)
        self.woken: list[float] = []

    @property
    def is_empty(self) -> bool:
        return not self.kept

    @property
    def can_passivate(self) -> bool:
        return True

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            self.runtime.handled.append((self.name, message))
            match message:
                case Put(key=key, data=data):
                    self.kept.append(key)
                    effects.changes.append(StoredMessage(key, key, 60, now + 60, data))
                case Get(id=message_id) if batch.port is not None:
                    effects.batch_replies.append(GetAck(message_id, b""))
                case Attach():
                    effects.batch_replies.append(Attached(Mode.PAIR, 1))
                case Ack(id=message_id):
                    effects.posts += tuple(self.runtime.on_ack(self.name, message_id))
                case _:
                    pass
        return effects

    def wake(self, now: float) -> Effects:
        if now >= self.deadline:
            self.woken.append(now)
            self.deadline = self.runtime.deadlines[self.name] = inf
        self.runtime.on_wake(self.name, now)
        return Effects()


class RuntimeHarness:
    """The scheduler under test. `handled` is every message that any cell took, in order."""

    def __init__(self, *, store: Store | None = None, seed: int = 1, **settings: object) -> None:
        self.now = START_S
        self.handled: list[tuple[bytes, CellMessage]] = []
        self.spawned: list[Echo] = []
        self.deadlines: dict[bytes, float] = {}
        self.on_ack: Callable[[bytes, int], list[tuple[bytes, CellMessage]]] = crash_on_ack
        self.on_wake: Callable[[bytes, float], None] = lambda name, now: None
        self.store = store or MemoryStore()
        self.scheduler = Scheduler(
            self.store,
            self._spawn,
            lambda: self.now,
            Random(seed),
            SchedulerSettings(**settings),  # type: ignore[arg-type]
        )

    def _spawn(self, name: bytes, snapshot: Snapshot, attachments: dict[Port, Attach]) -> Echo:
        echo = Echo(self, name, snapshot, attachments)
        self.spawned.append(echo)
        return echo

    def submit(
        self, name: bytes, port: RecordingPort | None, *mail: CellMessage, size: int = 0
    ) -> bool:
        return self.scheduler.submit(name, Batch(port, list(mail), size), self.now)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        while self.scheduler.turn(self.now):
            pass

    def ids(self, name: bytes) -> list[int]:
        """The Gets that a cell received."""
        return [each.id for cell, each in self.handled if cell == name and isinstance(each, Get)]


def crash_on_ack(name: bytes, message_id: int) -> list[tuple[bytes, CellMessage]]:
    raise RuntimeError(f"{name!r} cannot handle {message_id}")


class LateStore(MemoryStore):
    """Applies changes at once, and promises them when the test says.

    With `shares`, what is written until the last commit is done has that commit, as in one pass.
    """

    def __init__(self, *, shares: bool = False) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self._shares = shares

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit:  # type: ignore[override]
        super().write(name, changes)
        if not self._shares or not self.commits or self.commits[-1].is_done:
            self.commits.append(Commit())
        return self.commits[-1]

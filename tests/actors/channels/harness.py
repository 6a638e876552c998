"""A store, a scheduler and channels on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelContext, ChannelInfo
from millpond.actors.channels.settings import ChannelSettings, DeliverySettings, NodeLimits
from millpond.actors.ids import IdSource
from millpond.actors.jobs.results import JobResults
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    Batch,
    CellMessage,
    Credit,
    Get,
    List,
    Mode,
    Msg,
    Nack,
    NackReason,
    Port,
    Put,
    PutAck,
    Reply,
    Touch,
)
from millpond.actors.runtime.cell import Behaviour, CellSnapshot, Loading
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import Snapshot
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams.names import results_channel_of
from tests.actors.recording_port import RecordingPort

START_S = 1_763_683_200.0
NAME = b"orders"
TURNS_MAX = 20_000


class ChannelHarness:
    """Channels named at will, all with the same settings; `dead` are those of `!dead` channels."""

    def __init__(
        self,
        settings: ChannelSettings | None = None,
        *,
        dead: ChannelSettings | None = None,
        limits: NodeLimits | None = None,
        runtime: SchedulerSettings | None = None,
        store: MemoryStore | None = None,
        seed: int = 1,
    ) -> None:
        self.now = START_S
        self.settings = settings or ChannelSettings()
        self.dead = dead or ChannelSettings()
        self.store = store or MemoryStore()
        rng = Random(seed)
        self.shared = ChannelContext(
            IdSource(5),
            rng,
            self.store.usage,
            limits or NodeLimits(),
            health=self.store.health,
            now=lambda: self.now,
        )
        self.crash_on_spawn: Callable[[bytes], bool] = lambda name: False
        self.scheduler = Scheduler(
            self.store,
            self._spawn_any,
            lambda: self.now,
            rng,
            runtime or SchedulerSettings(),
            self._load_any,
        )
        self._ports = 0

    def restarted(self) -> ChannelHarness:
        """Another node with the same store, a second later; nobody is connected to it yet."""
        again = ChannelHarness(self.settings, dead=self.dead, store=self.store)
        again.now = self.now + 1
        again._ports = self._ports
        return again

    def _load_any(self, cell: bytes) -> Loading:
        is_log = results_channel_of(cell) is not None
        return self.store.log_snapshot(cell) if is_log else self.store.load(cell)

    def _spawn_any(
        self, cell: bytes, kept: CellSnapshot, attachments: dict[Port, Attach]
    ) -> Behaviour:
        if isinstance(kept, Snapshot):
            return self._spawn(cell, kept, attachments)
        channel = results_channel_of(cell)
        assert channel is not None
        return JobResults(channel, kept)

    def _spawn(self, name: bytes, snapshot: Snapshot, attachments: dict[Port, Attach]) -> Channel:
        if self.crash_on_spawn(name):
            raise RuntimeError("this channel cannot be built")
        settings = self.dead if name.endswith(b"!dead") else self.settings
        return Channel(name, snapshot, attachments, settings, self.shared)

    def port(self) -> RecordingPort:
        self._ports += 1
        return RecordingPort(self._ports, self.now)

    def join(self, name: bytes = NAME, **join: Any) -> Peer:
        """A connection that asks for pushes unless told otherwise, and never falls silent."""
        peer = Peer(self, name, self.port(), join.get("identity"))
        self.scheduler.attach(name, peer.port, Attach(**{"keep_alive_s": 1e9, **join}), self.now)
        self.after_send()
        match peer.port.take():
            case [Attached() as joined, *pushes]:
                peer.joined = joined
                peer.port.written += pushes
        return peer

    def producer(self, name: bytes = NAME, **join: Any) -> Peer:
        return self.join(name, push=False, **join)

    def advance(self, seconds: float) -> None:
        """Let time pass; cells are woken when they are due."""
        end = self.now + seconds
        for _ in range(TURNS_MAX):
            if self.scheduler.is_idle:
                due = self.scheduler.timers.next_at
                if due > end:
                    break
                self.now = due
            self.scheduler.turn(self.now)
        else:
            raise AssertionError("the scheduler never comes to rest")
        self.now = end

    def run_due(self) -> None:
        self.advance(0)

    def after_send(self) -> None:
        """A hook after each batch of a connection, for a harness with a store that commits late."""

    def post(self, message: CellMessage, name: bytes = NAME) -> None:
        """Send a message as another cell does."""
        self.scheduler.submit(name, Batch(None, [message]), self.now)

    def crash(self, name: bytes = NAME) -> None:
        """Make a channel crash: no cell ever sends another one a Credit."""
        self.post(Credit(1), name)

    def info(self, name: bytes = NAME) -> ChannelInfo:
        channel = self.scheduler.view(name)
        assert isinstance(channel, Channel)
        return channel.info

    def kept(self, name: bytes = NAME) -> list[bytes]:
        """The data of the messages that the store has of a channel."""
        return [row.data for row in self.store.load(name).rows]


class Peer:
    """A connection to a channel, with its requests."""

    joined: Attached

    def __init__(
        self,
        harness: ChannelHarness,
        name: bytes,
        port: RecordingPort,
        identity: bytes | None = None,
    ) -> None:
        self.harness = harness
        self.name = name
        self.port = port
        self.identity = identity
        self._key = port.number * 1_000_000

    def send(self, *messages: CellMessage) -> None:
        """One read of the connection."""
        self.harness.scheduler.submit(self.name, Batch(self.port, list(messages)), self.harness.now)
        self.harness.after_send()

    def request(self, *messages: CellMessage) -> list[Reply]:
        """The replies without pushes, which stay for `pushed`."""
        self.send(*messages)
        taken = self.port.take()
        self.port.written = [each for each in taken if isinstance(each, Msg)]
        return [each for each in taken if not isinstance(each, Msg)]

    def put(self, data: bytes = b"hi", *, key: int | None = None, ttl: int = 3600) -> PutAck:
        if key is None:
            self._key += 1
            key = self._key
        (reply,) = self.request(Put(key, ttl, data))
        assert isinstance(reply, PutAck), reply
        return reply

    def pushed(self) -> list[Msg]:
        return self.port.pushed()

    def pushed_ids(self) -> list[int]:
        return [each.id for each in self.pushed()]

    def ack(self, *ids: int) -> None:
        assert self.request(*map(Ack, ids)) == []

    def nack(
        self, message_id: int, reason: NackReason = NackReason.LATER, ms: int | None = None
    ) -> None:
        assert self.request(Nack(message_id, reason, ms)) == []

    def touch(self, message_id: int, ms: int) -> Reply:
        (reply,) = self.request(Touch(message_id, ms))
        return reply

    def credit(self, count: int) -> None:
        assert self.request(Credit(count)) == []

    def get(self, message_id: int) -> Reply:
        (reply,) = self.request(Get(message_id))
        return reply

    def list(self, start: int = 0, end: int = 0, limit: int = 0) -> list[int]:
        (reply,) = self.request(List(limit, start, end))
        return reply.ids  # type: ignore[union-attr]

    def leave(self) -> None:
        self.harness.scheduler.detach(self.name, self.port)
        self.port.take()


def queue(**delivery: Any) -> ChannelSettings:
    return ChannelSettings(mode=Mode.QUEUE, delivery=DeliverySettings(**delivery))


def fanout(**delivery: Any) -> ChannelSettings:
    return ChannelSettings(mode=Mode.FANOUT, delivery=DeliverySettings(**delivery))


def pair(**delivery: Any) -> ChannelSettings:
    return ChannelSettings(mode=Mode.PAIR, delivery=DeliverySettings(**delivery))

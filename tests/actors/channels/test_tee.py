"""The tee of a channel, on a clock that the test moves: order, refusals, crashes, what waits."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.channels.tee import GIVE_UP_AFTER_S, RETRY_S_MAX, SLICE_MESSAGES
from millpond.actors.messages import Ack, Attach, Batch, CellMessage, Mode, Msg, Port, Put
from millpond.actors.runtime.cell import Behaviour, CellSnapshot, Loading
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import LogSnapshot, Snapshot
from millpond.actors.store.interface import Deferred, Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.names import stream_cell, stream_of
from millpond.actors.streams.settings import StreamContext, StreamLimits
from millpond.actors.streams.stream import Stream
from tests.actors.channels.harness import NAME, ChannelHarness
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import SlowMemory, bodies_of, read_of

ALL = b"all"
CELL = stream_cell(ALL)
OTHER = b"other"
TEED = ChannelSettings(mode=Mode.PAIR, tee=ALL)


class Mill(ChannelHarness):
    """Channels, and the streams that they feed, on one store."""

    def __init__(self, settings: ChannelSettings = TEED, **options: Any) -> None:
        super().__init__(settings, **options)
        self.limits = StreamLimits()
        self.directory = Directory()
        self.loads: dict[bytes, Deferred[LogSnapshot | Fault]] = {}
        """Streams that take their time to load."""
        self.streams = StreamContext(
            self.store,
            lambda cell, message: self.post(message, cell),
            self.directory,
            self.store.usage,
            self.store.health,
        )
        self.scheduler = Scheduler(
            self.store, self._build, lambda: self.now, Random(1), SchedulerSettings(), self._load
        )

    def spoken(self) -> None:
        """Stream and channel say the rest to each other."""
        self.settle()

    def _load(self, cell: bytes) -> Loading:
        if cell in self.loads:
            return self.loads[cell]
        return self.store.load(cell) if stream_of(cell) is None else self.store.log_snapshot(cell)

    def _build(self, cell: bytes, kept: CellSnapshot, attachments: dict[Port, Attach]) -> Behaviour:
        if isinstance(kept, Snapshot):
            return self._spawn(cell, kept, attachments)
        if self.crash_on_spawn(cell):
            raise RuntimeError("this stream cannot be built")
        name = stream_of(cell)
        assert name is not None
        return Stream(name, kept, self.limits, self.streams)

    def again(self, **options: Any) -> Mill:
        """Another node with the same store, a second later."""
        mill = Mill(options.pop("settings", self.settings), store=self.store, **options)
        mill.now = self.now + 1
        mill._ports = self._ports
        return mill

    def ask(self, message: CellMessage, name: bytes = ALL) -> Any:
        port = RecordingPort(10_000, self.now)
        self.scheduler.submit(stream_cell(name), Batch(port, [message]), self.now)
        self.settle()
        (reply,) = port.take()
        return reply

    def bodies(self, name: bytes = ALL) -> list[bytes]:
        reply = self.ask(read_of(0), name)
        return bodies_of(reply) if isinstance(reply, m.Records) else []

    @property
    def missed(self) -> int:
        return self.shared.counters.tee_missed


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def put_all(mill: Mill, bodies: list[bytes], name: bytes = NAME, **options: Any) -> list[int]:
    producer = mill.producer(name)
    return [producer.put(body, **options).id for body in bodies]


class TestOrder:
    def test_what_was_kept_before_comes_first_in_slices(self) -> None:
        count = 3 * SLICE_MESSAGES + 7
        mill = Mill(ChannelSettings(mode=Mode.PAIR))
        put_all(mill, numbered(count))
        mill = mill.again(settings=TEED)
        put_all(mill, numbered(5, count))
        assert mill.bodies() == numbered(count + 5)
        assert mill.shared.counters.teed == count + 5

    def test_a_channel_that_is_built_anew_pours_nothing_again(self) -> None:
        mill = Mill()
        put_all(mill, numbered(10))
        for _ in range(3):
            mill.crash()
            mill.advance(120)
        assert mill.bodies() == numbered(10)
        put_all(mill, numbered(5, 10))
        assert mill.bodies() == numbered(15)

    def test_messages_that_leave_at_once_are_there(self) -> None:
        mill = Mill()
        consumer, producer = mill.join(), mill.producer()
        for body in numbered(50):
            producer.put(body)
            consumer.ack(*consumer.pushed_ids())
        assert mill.kept() == [] and mill.bodies() == numbered(50)

    def test_names_with_an_exclamation_mark_are_not_teed(self) -> None:
        mill = Mill()
        put_all(mill, [b"letter"], NAME + b"!dead")
        assert mill.bodies() == [] and not mill.directory.is_created(ALL)

    def test_ids_that_come_again_after_a_restart_are_new_messages(self) -> None:
        """A channel in memory that feeds a stream on the disk, and a clock that stepped back."""
        settings = msgspec.structs.replace(TEED, is_kept=False)
        mill = Mill(settings)
        ids = put_all(mill, numbered(5))
        mill.join().ack(*ids)
        mill.advance(1000)
        assert mill.kept() == []
        again = mill.again(seed=2)
        again.now = mill.now - 3600
        assert max(put_all(again, numbered(3, 5))) < min(ids)
        assert again.bodies() == numbered(8)


class TestRefusals:
    def test_a_full_stream_gets_the_rest_once_there_is_room(self) -> None:
        mill = Mill()
        put_all(mill, numbered(3))
        mill.limits = StreamLimits(bytes_max=0)
        mill.scheduler.cells[CELL].behaviour = None
        put_all(mill, numbered(5, 3))
        assert mill.bodies() == numbered(3)
        assert mill.kept() == numbered(8) and mill.missed == 0
        mill.limits = StreamLimits()
        mill.scheduler.cells[CELL].behaviour = None
        mill.advance(RETRY_S_MAX + 1)
        assert mill.bodies() == numbered(8)

    def test_who_acknowledges_meanwhile_is_not_held_up_and_the_stream_misses_it(self) -> None:
        mill = Mill()
        mill.limits = StreamLimits(bytes_max=0)
        producer, consumer = mill.producer(), mill.join()
        for body in numbered(6):
            producer.put(body)
        pushed = consumer.pushed_ids()
        consumer.ack(*pushed[:2], pushed[4])
        mill.settle()
        assert mill.kept() == [b"2", b"3", b"5"] and mill.missed == 3
        mill.limits = StreamLimits()
        mill.scheduler.cells[CELL].behaviour = None
        mill.advance(RETRY_S_MAX + 1)
        assert mill.bodies() == [b"2", b"3", b"5"]

    def test_a_closed_stream_is_asked_ever_more_seldom(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        mill = Mill()
        mill.ask(m.Create(0))
        mill.limits = StreamLimits(bytes_max=0)
        mill.scheduler.cells[CELL].behaviour = None
        put_all(mill, numbered(4), ttl=86_400)
        mill.advance(3600)
        assert 60 <= mill.shared.counters.tee_refusals <= 70
        assert 55 <= len(caplog.records) <= 62
        assert "code=BUFFER_FULL" in caplog.text

    def test_a_topic_of_the_name_takes_nothing(self) -> None:
        mill = Mill()
        mill.directory.sync_topics({ALL: 3}, {})
        put_all(mill, numbered(2))
        mill.settle()
        assert mill.kept() == numbered(2)
        assert mill.shared.counters.tee_refusals == 1

    def test_one_that_is_deleted_is_made_anew_and_gets_what_is_still_there(self) -> None:
        mill = Mill()
        consumer, producer = mill.join(), mill.producer()
        producer.put(b"gone")
        consumer.ack(*consumer.pushed_ids())
        put_all(mill, [b"here"])
        mill.ask(m.Delete(0))
        put_all(mill, [b"new"])
        mill.advance(RETRY_S_MAX)
        assert mill.bodies() == [b"here", b"new"]


class TestWaiting:
    """What has left the channel stays in the store until the stream has it."""

    def _stuck(self) -> tuple[Mill, list[int]]:
        mill = Mill()
        mill.loads[CELL] = Deferred()
        producer, consumer = mill.producer(), mill.join()
        for body in numbered(5):
            producer.put(body)
        pushed = consumer.pushed_ids()
        consumer.ack(*pushed[:4])
        mill.settle()
        return mill, pushed

    def test_a_node_that_dies_meanwhile_loses_nothing(self) -> None:
        mill, _ = self._stuck()
        assert mill.kept() == numbered(5)
        again = mill.again()
        again.join()
        assert again.bodies() == numbered(5)

    def test_it_is_gone_for_everybody_all_the_same(self) -> None:
        mill, ids = self._stuck()
        assert mill.producer().list() == ids[4:]
        assert mill.info().messages == 1

    def test_the_store_hears_of_it_when_the_stream_has_it(self) -> None:
        mill, _ = self._stuck()
        mill.loads.pop(CELL).finish(mill.store.log_snapshot(CELL))
        mill.settle()
        assert mill.kept() == [b"4"] and mill.bodies() == numbered(5)

    def test_a_stream_that_cannot_be_read_is_not_waited_for_for_ever(self) -> None:
        mill, _ = self._stuck()
        mill.loads[CELL].finish(Fault.DAMAGED)
        mill.advance(GIVE_UP_AFTER_S - 10)
        assert mill.kept() == numbered(5)
        mill.advance(GIVE_UP_AFTER_S + RETRY_S_MAX)
        assert mill.kept() == [b"4"] and mill.missed == 4

    def test_a_key_that_is_forgotten_meanwhile_leaves_nothing_behind(self) -> None:
        mill, _ = self._stuck()
        mill.advance(90_000)
        mill.loads.pop(CELL).finish(mill.store.log_snapshot(CELL))
        mill.advance(90_000)
        assert mill.bodies() == numbered(5) and mill.missed == 0
        usage = mill.store.usage
        assert (usage.messages, usage.bytes, usage.keys) == (0, 0, 0)

    def test_what_waits_counts_against_the_limits_of_the_channel(self) -> None:
        mill = Mill(msgspec.structs.replace(TEED, messages_max=10))
        mill.loads[CELL] = Deferred()
        producer, consumer = mill.producer(), mill.join()
        for body in numbered(10):
            producer.put(body)
            consumer.ack(*consumer.pushed_ids())
        (refusal,) = producer.ask(Put(1, 3600, b"more"))
        assert refusal.code.name == "BUFFER_FULL"
        mill.loads.pop(CELL).finish(mill.store.log_snapshot(CELL))
        mill.settle()
        producer.put(b"10")
        assert mill.bodies() == numbered(11)

    def test_expired_messages_are_appended_before_they_go(self) -> None:
        mill = Mill(ChannelSettings(mode=Mode.PAIR))
        put_all(mill, numbered(3), ttl=10)
        mill = mill.again(settings=TEED)
        mill.now += 60
        mill.producer()
        mill.settle()
        assert mill.bodies() == numbered(3) and mill.kept() == []


class TestCommits:
    def _slow(self) -> tuple[Mill, SlowMemory]:
        mill = Mill(store=(store := SlowMemory()))
        store.is_slow = True
        return mill, store

    def test_nothing_is_poured_before_it_is_kept(self) -> None:
        mill, store = self._slow()
        mill.producer().say(Put(1, 3600, b"late"))
        assert not mill.directory.is_created(ALL)
        store.finish()
        mill.settle()
        assert mill.directory.is_created(ALL)

    def test_what_is_not_kept_is_not_poured(self) -> None:
        mill, store = self._slow()
        store.is_doomed = True
        mill.producer().say(Put(1, 3600, b"lost"))
        store.finish(Fault.NOT_STORED)
        mill.advance(RETRY_S_MAX)
        assert not mill.directory.is_created(ALL)

    def test_what_the_stream_could_not_keep_comes_again_once(self) -> None:
        mill, store = self._slow()
        producer, consumer = mill.producer(), mill.join()
        producer.say(Put(1, 3600, b"a"), Put(2, 3600, b"b"))
        store.is_doomed = True
        store.finish()  # the stream is told to append, which fails
        consumer.say(*map(Ack, consumer.pushed_ids()))
        mill.settle()
        assert mill.kept() == [b"a", b"b"]
        store.is_doomed = store.is_slow = False
        store.finish(Fault.NOT_STORED)
        mill.advance(RETRY_S_MAX)
        assert mill.bodies() == [b"a", b"b"] and mill.kept() == [] and mill.missed == 0

    @pytest.mark.parametrize("mode", list(Mode))
    def test_ps_13_what_was_acked_stays_away_though_the_channel_is_built_anew(
        self, mode: Mode
    ) -> None:
        """A put is refused, and the channel forgets what it did; not what it was told."""
        mill = Mill(ChannelSettings(mode=mode, tee=ALL), store=(store := SlowMemory()))
        mill.loads[CELL] = Deferred()
        producer, consumer = mill.producer(), mill.join(identity=b"i" * 32)
        ids = [producer.put(body).id for body in numbered(4)]
        consumer.ack(*consumer.pushed_ids()[:2])
        store.is_doomed = store.is_slow = True
        producer.say(Put(7, 3600, b"refused"))
        consumer.ack(ids[2])  # behind it
        consumer.say(Ack(ids[3]), Put(8, 3600, b"refused as well"))
        store.is_doomed = store.is_slow = False
        store.finish(Fault.NOT_STORED)
        mill.settle()
        assert mill.producer().list() == ids[3:]
        again = [each.id for each in consumer.port.take() if isinstance(each, Msg)]
        assert again == ids[3:]
        mill.loads.pop(CELL).finish(mill.store.log_snapshot(CELL))
        mill.settle()
        assert mill.bodies() == numbered(4) and mill.kept() == [b"3"]

"""The tee of a channel, on a clock that the test moves: order, refusals, crashes, what waits."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.channels.tee import GIVE_UP_AFTER_S, RETRY_S_MAX, SLICE_MESSAGES
from millpond.actors.messages import (
    Ack,
    Attach,
    Batch,
    CellMessage,
    Mode,
    Msg,
    NackReason,
    Port,
    Put,
)
from millpond.actors.runtime.cell import Behaviour, CellSnapshot, Loading
from millpond.actors.runtime.scheduler import Scheduler, SchedulerSettings
from millpond.actors.store.changes import WINDOW_S_MAX, LogSnapshot, Snapshot
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
DEAD = NAME + b"!dead"
TEED = ChannelSettings(mode=Mode.PAIR, tee=ALL)


class TeeHarness(ChannelHarness):
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

    def after_send(self) -> None:
        """Let stream and channel exchange what is left."""
        self.run_due()

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

    def again(self, **options: Any) -> TeeHarness:
        """Another node with the same store, a second later."""
        tee_harness = TeeHarness(
            options.pop("settings", self.settings), store=self.store, **options
        )
        tee_harness.now = self.now + 1
        tee_harness._ports = self._ports
        return tee_harness

    def request(self, message: CellMessage, name: bytes = ALL) -> Any:
        port = RecordingPort(10_000, self.now)
        self.scheduler.submit(stream_cell(name), Batch(port, [message]), self.now)
        self.run_due()
        (reply,) = port.take()
        return reply

    def bodies(self, name: bytes = ALL) -> list[bytes]:
        reply = self.request(read_of(0), name)
        return bodies_of(reply) if isinstance(reply, m.Records) else []

    @property
    def missed(self) -> int:
        return self.shared.counters.tee_missed


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def put_all(
    tee_harness: TeeHarness, bodies: list[bytes], name: bytes = NAME, **options: Any
) -> list[int]:
    producer = tee_harness.producer(name)
    return [producer.put(body, **options).id for body in bodies]


class TestOrder:
    def test_stored_messages_come_first_in_slices(self) -> None:
        count = 3 * SLICE_MESSAGES + 7
        tee_harness = TeeHarness(ChannelSettings(mode=Mode.PAIR))
        put_all(tee_harness, numbered(count))
        tee_harness = tee_harness.again(settings=TEED)
        put_all(tee_harness, numbered(5, count))
        assert tee_harness.bodies() == numbered(count + 5)
        assert tee_harness.shared.counters.teed == count + 5

    def test_a_channel_that_is_built_anew_pours_nothing_again(self) -> None:
        tee_harness = TeeHarness()
        put_all(tee_harness, numbered(10))
        for _ in range(3):
            tee_harness.crash()
            tee_harness.advance(120)
        assert tee_harness.bodies() == numbered(10)
        put_all(tee_harness, numbered(5, 10))
        assert tee_harness.bodies() == numbered(15)

    def test_messages_that_leave_at_once_are_there(self) -> None:
        tee_harness = TeeHarness()
        consumer, producer = tee_harness.join(), tee_harness.producer()
        for body in numbered(50):
            producer.put(body)
            consumer.ack(*consumer.pushed_ids())
        assert tee_harness.kept() == [] and tee_harness.bodies() == numbered(50)

    def test_names_with_an_exclamation_mark_are_not_teed(self) -> None:
        tee_harness = TeeHarness()
        put_all(tee_harness, [b"letter"], NAME + b"!dead")
        assert tee_harness.bodies() == [] and not tee_harness.directory.is_created(ALL)

    def test_ids_that_come_again_after_a_restart_are_new_messages(self) -> None:
        """A channel in memory that feeds a stream on the disk, and a clock that stepped back."""
        settings = msgspec.structs.replace(TEED, is_kept=False)
        tee_harness = TeeHarness(settings)
        ids = put_all(tee_harness, numbered(5))
        tee_harness.join().ack(*ids)
        tee_harness.advance(1000)
        assert tee_harness.kept() == []
        again = tee_harness.again(seed=2)
        again.now = tee_harness.now - 3600
        assert max(put_all(again, numbered(3, 5))) < min(ids)
        assert again.bodies() == numbered(8)


class TestRefusals:
    def test_a_full_stream_gets_the_rest_once_there_is_room(self) -> None:
        tee_harness = TeeHarness()
        put_all(tee_harness, numbered(3))
        tee_harness.limits = StreamLimits(bytes_max=0)
        tee_harness.scheduler.cells[CELL].behaviour = None
        put_all(tee_harness, numbered(5, 3))
        assert tee_harness.bodies() == numbered(3)
        assert tee_harness.kept() == numbered(8) and tee_harness.missed == 0
        tee_harness.limits = StreamLimits()
        tee_harness.scheduler.cells[CELL].behaviour = None
        tee_harness.advance(RETRY_S_MAX + 1)
        assert tee_harness.bodies() == numbered(8)

    def test_an_ack_meanwhile_is_not_delayed_and_the_stream_misses_the_message(self) -> None:
        tee_harness = TeeHarness()
        tee_harness.limits = StreamLimits(bytes_max=0)
        producer, consumer = tee_harness.producer(), tee_harness.join()
        for body in numbered(6):
            producer.put(body)
        pushed = consumer.pushed_ids()
        consumer.ack(*pushed[:2], pushed[4])
        tee_harness.run_due()
        assert tee_harness.kept() == [b"2", b"3", b"5"] and tee_harness.missed == 3
        tee_harness.limits = StreamLimits()
        tee_harness.scheduler.cells[CELL].behaviour = None
        tee_harness.advance(RETRY_S_MAX + 1)
        assert tee_harness.bodies() == [b"2", b"3", b"5"]

    def test_a_closed_stream_is_asked_ever_more_seldom(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        tee_harness = TeeHarness()
        tee_harness.request(m.Create(0))
        tee_harness.limits = StreamLimits(bytes_max=0)
        tee_harness.scheduler.cells[CELL].behaviour = None
        put_all(tee_harness, numbered(4), ttl=86_400)
        tee_harness.advance(3600)
        assert 60 <= tee_harness.shared.counters.tee_refusals <= 70
        assert 55 <= len(caplog.records) <= 62
        assert "code=BUFFER_FULL" in caplog.text

    def test_a_topic_of_the_name_takes_nothing(self) -> None:
        tee_harness = TeeHarness()
        tee_harness.directory.sync_topics({ALL: 3}, {})
        put_all(tee_harness, numbered(2))
        tee_harness.run_due()
        assert tee_harness.kept() == numbered(2)
        assert tee_harness.shared.counters.tee_refusals == 1

    def test_a_deleted_stream_is_created_anew_and_gets_the_messages_left(self) -> None:
        tee_harness = TeeHarness()
        consumer, producer = tee_harness.join(), tee_harness.producer()
        producer.put(b"gone")
        consumer.ack(*consumer.pushed_ids())
        put_all(tee_harness, [b"here"])
        tee_harness.request(m.Delete(0))
        put_all(tee_harness, [b"new"])
        tee_harness.advance(RETRY_S_MAX)
        assert tee_harness.bodies() == [b"here", b"new"]


class TestWaiting:
    """Messages that left the channel stay in the store until the stream has them."""

    def _stuck(self) -> tuple[TeeHarness, list[int]]:
        tee_harness = TeeHarness()
        tee_harness.loads[CELL] = Deferred()
        producer, consumer = tee_harness.producer(), tee_harness.join()
        for body in numbered(5):
            producer.put(body)
        pushed = consumer.pushed_ids()
        consumer.ack(*pushed[:4])
        tee_harness.run_due()
        return tee_harness, pushed

    def test_a_node_that_dies_meanwhile_loses_nothing(self) -> None:
        tee_harness, _ = self._stuck()
        assert tee_harness.kept() == numbered(5)
        again = tee_harness.again()
        again.join()
        assert again.bodies() == numbered(5)

    def test_it_is_gone_for_everybody_all_the_same(self) -> None:
        tee_harness, ids = self._stuck()
        assert tee_harness.producer().list() == ids[4:]
        assert tee_harness.info().messages == 1

    def test_the_store_hears_of_it_when_the_stream_has_it(self) -> None:
        tee_harness, _ = self._stuck()
        tee_harness.loads.pop(CELL).finish(tee_harness.store.log_snapshot(CELL))
        tee_harness.run_due()
        assert tee_harness.kept() == [b"4"] and tee_harness.bodies() == numbered(5)

    def test_a_stream_that_cannot_be_read_is_not_waited_for_for_ever(self) -> None:
        tee_harness, _ = self._stuck()
        tee_harness.loads[CELL].finish(Fault.DAMAGED)
        tee_harness.advance(GIVE_UP_AFTER_S - 10)
        assert tee_harness.kept() == numbered(5)
        tee_harness.advance(GIVE_UP_AFTER_S + RETRY_S_MAX)
        assert tee_harness.kept() == [b"4"] and tee_harness.missed == 4

    def test_a_key_that_is_forgotten_meanwhile_leaves_nothing_behind(self) -> None:
        tee_harness, _ = self._stuck()
        tee_harness.advance(90_000)
        tee_harness.loads.pop(CELL).finish(tee_harness.store.log_snapshot(CELL))
        tee_harness.advance(90_000)
        assert tee_harness.bodies() == numbered(5) and tee_harness.missed == 0
        usage = tee_harness.store.usage
        assert (usage.messages, usage.bytes, usage.keys) == (0, 0, 0)

    @pytest.mark.parametrize("is_told_again", [False, True])
    def test_a_dead_letter_is_there_once_however_long_a_node_is_off_that_died_meanwhile(
        self, is_told_again: bool
    ) -> None:
        """The store still has the message that died: it would die again, days later."""
        tee_harness = TeeHarness(ChannelSettings(mode=Mode.QUEUE, tee=ALL))
        tee_harness.loads[CELL] = Deferred()
        tee_harness.producer().put(b"bad")
        worker = tee_harness.join()
        worker.nack(*worker.pushed_ids(), NackReason.REJECT)
        reader = tee_harness.join(DEAD)
        reader.ack(*reader.pushed_ids())
        if is_told_again:
            tee_harness.crash(DEAD)
            tee_harness.advance(5)
        assert (tee_harness.kept(), tee_harness.kept(DEAD)) == ([b"bad"], [])
        again = tee_harness.again()
        again.now += 2 * WINDOW_S_MAX
        reader, worker = again.join(DEAD), again.join()
        again.advance(10)
        worker.nack(*worker.pushed_ids(), NackReason.REJECT) if worker.port.written else None
        again.advance(10)
        assert (reader.pushed(), again.kept(), again.bodies()) == ([], [], [b"bad"])
        for each in (reader, worker):
            each.leave()
        again.advance(2 * WINDOW_S_MAX)
        assert again.store.usage.keys == 0

    def test_withheld_messages_count_against_the_limits_of_the_channel(self) -> None:
        tee_harness = TeeHarness(msgspec.structs.replace(TEED, messages_max=10))
        tee_harness.loads[CELL] = Deferred()
        producer, consumer = tee_harness.producer(), tee_harness.join()
        for body in numbered(10):
            producer.put(body)
            consumer.ack(*consumer.pushed_ids())
        (refusal,) = producer.request(Put(1, 3600, b"more"))
        assert refusal.code.name == "BUFFER_FULL"
        tee_harness.loads.pop(CELL).finish(tee_harness.store.log_snapshot(CELL))
        tee_harness.run_due()
        producer.put(b"10")
        assert tee_harness.bodies() == numbered(11)

    def test_expired_messages_are_appended_before_they_go(self) -> None:
        tee_harness = TeeHarness(ChannelSettings(mode=Mode.PAIR))
        put_all(tee_harness, numbered(3), ttl=10)
        tee_harness = tee_harness.again(settings=TEED)
        tee_harness.now += 60
        tee_harness.producer()
        tee_harness.run_due()
        assert tee_harness.bodies() == numbered(3) and tee_harness.kept() == []


class TestCommits:
    def _slow(self) -> tuple[TeeHarness, SlowMemory]:
        tee_harness = TeeHarness(store=(store := SlowMemory()))
        store.is_slow = True
        return tee_harness, store

    def test_nothing_is_poured_before_it_is_kept(self) -> None:
        tee_harness, store = self._slow()
        tee_harness.producer().send(Put(1, 3600, b"late"))
        assert not tee_harness.directory.is_created(ALL)
        store.finish()
        tee_harness.run_due()
        assert tee_harness.directory.is_created(ALL)

    def test_a_message_that_is_not_stored_is_not_appended(self) -> None:
        tee_harness, store = self._slow()
        store.is_doomed = True
        tee_harness.producer().send(Put(1, 3600, b"lost"))
        store.finish(Fault.NOT_STORED)
        tee_harness.advance(RETRY_S_MAX)
        assert not tee_harness.directory.is_created(ALL)

    def test_messages_that_the_stream_could_not_store_come_again_once(self) -> None:
        tee_harness, store = self._slow()
        producer, consumer = tee_harness.producer(), tee_harness.join()
        producer.send(Put(1, 3600, b"a"), Put(2, 3600, b"b"))
        store.is_doomed = True
        store.finish()  # the stream is told to append, which fails
        consumer.send(*map(Ack, consumer.pushed_ids()))
        tee_harness.run_due()
        assert tee_harness.kept() == [b"a", b"b"]
        store.is_doomed = store.is_slow = False
        store.finish(Fault.NOT_STORED)
        tee_harness.advance(RETRY_S_MAX)
        assert (
            tee_harness.bodies() == [b"a", b"b"]
            and tee_harness.kept() == []
            and tee_harness.missed == 0
        )

    @pytest.mark.parametrize("mode", list(Mode))
    def test_ps_13_acked_messages_stay_removed_when_the_channel_is_built_anew(
        self, mode: Mode
    ) -> None:
        """A put is refused, and the channel forgets what it did; not what it was told."""
        tee_harness = TeeHarness(ChannelSettings(mode=mode, tee=ALL), store=(store := SlowMemory()))
        tee_harness.loads[CELL] = Deferred()
        producer, consumer = tee_harness.producer(), tee_harness.join(identity=b"i" * 32)
        ids = [producer.put(body).id for body in numbered(4)]
        consumer.ack(*consumer.pushed_ids()[:2])
        store.is_doomed = store.is_slow = True
        producer.send(Put(7, 3600, b"refused"))
        consumer.ack(ids[2])  # behind it
        consumer.send(Ack(ids[3]), Put(8, 3600, b"refused as well"))
        store.is_doomed = store.is_slow = False
        store.finish(Fault.NOT_STORED)
        tee_harness.run_due()
        assert tee_harness.producer().list() == ids[3:]
        again = [each.id for each in consumer.port.take() if isinstance(each, Msg)]
        assert again == ids[3:]
        tee_harness.loads.pop(CELL).finish(tee_harness.store.log_snapshot(CELL))
        tee_harness.run_due()
        assert tee_harness.bodies() == numbered(4) and tee_harness.kept() == [b"3"]

    def test_a_dead_letter_is_no_move_any_more_where_its_channel_was_built_anew(self) -> None:
        """That channel tells so when the stream has the message, as if no write had failed."""
        settings = ChannelSettings(mode=Mode.QUEUE, tee=ALL)
        tee_harness = TeeHarness(settings, store=(store := SlowMemory()))
        tee_harness.loads[CELL] = Deferred()
        producer, worker, _ = tee_harness.producer(), tee_harness.join(), tee_harness.join(DEAD)
        bad = producer.put(b"bad").id
        worker.nack(bad, NackReason.REJECT)
        dead_letters = tee_harness.scheduler.view(DEAD)
        assert isinstance(dead_letters, Channel) and dead_letters.keys.moved == [bad]
        store.is_doomed = store.is_slow = True
        producer.send(Put(7, 3600, b"refused"))
        store.is_doomed = store.is_slow = False
        store.finish(Fault.NOT_STORED)
        tee_harness.run_due()
        assert dead_letters.keys.moved == [bad] and tee_harness.kept() == [b"bad"]
        tee_harness.loads.pop(CELL).finish(tee_harness.store.log_snapshot(CELL))
        tee_harness.run_due()
        assert dead_letters.keys.moved == [] and tee_harness.kept() == []
        assert tee_harness.scheduler.view(DEAD) is dead_letters, "it tells when it is built anew"
        assert tee_harness.kept(DEAD) == [b"bad"] and tee_harness.bodies() == [b"bad"]

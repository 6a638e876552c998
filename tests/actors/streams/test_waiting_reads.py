"""Reads that wait: who wakes them, who does not, and that nobody hangs (3g, S3P-39, S3A-08)."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from gc import collect
from pathlib import Path
from random import Random
from weakref import ref

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Detach, Drain, Failed
from millpond.actors.runtime.scheduler import LOAD_RETRY_S, Scheduler, SchedulerSettings
from millpond.actors.store.changes import LogSnapshot, Position
from millpond.actors.store.interface import Deferred, Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import (
    NAME,
    START_MS,
    WAIT_S,
    StreamHarness,
    at_timestamp,
    bodies_of,
    number_of,
    read_of,
    streams_in,
    waiting,
)

U64_MAX = 2**64 - 1


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        opened.create()
        yield opened


def answer(port: RecordingPort) -> m.Records:
    (reply,) = port.take()
    assert isinstance(reply, m.Records)
    return reply


class TestWakingUp:
    def test_s3p_39_an_append_wakes_all_at_once(self, streams: StreamHarness) -> None:
        ports = [
            waiting(streams),
            waiting(streams, Position(0, 0)),
            waiting(streams, at_timestamp(START_MS)),
            waiting(streams, count=1),
        ]
        streams.append(b"a", b"b")
        assert [bodies_of(answer(port)) for port in ports] == [[b"a", b"b"]] * 3 + [[b"a"]]
        streams.append(b"c")
        assert all(port.take() == [] for port in ports)

    def test_s3p_40_what_is_there_is_given_at_once(self, streams: StreamHarness) -> None:
        streams.append(b"a")
        assert streams.bodies(0, wait_until=streams.now + WAIT_S) == [b"a"]

    def test_s3a_08_appends_below_do_not_end_the_wait(self, streams: StreamHarness) -> None:
        port = waiting(streams, Position(START_MS + 5000, 1))
        later = waiting(streams, 3)
        for at in range(5):
            streams.append(b"%d" % at, ms=START_MS + at * 1000)
            streams.advance(1)
        assert port.take() == []
        assert bodies_of(answer(later)) == [b"3"]
        streams.append(b"5", b"6", b"7", ms=START_MS + 5000)
        assert bodies_of(answer(port)) == [b"6", b"7"]

    def test_s3a_08_the_deadline_stays_that_of_the_request(self, streams: StreamHarness) -> None:
        port = waiting(streams, Position(U64_MAX, 0), wait_s=10)
        for _ in range(9):
            streams.append(b"x")
            streams.advance(1)
        assert port.take() == []
        streams.advance(1)
        assert list(answer(port).spans) == []

    def test_s3p_39_nothing_at_the_end(self, streams: StreamHarness) -> None:
        streams.append(b"a")
        port = waiting(streams, 1, wait_s=0.25)
        streams.advance(0.2)
        assert port.take() == []
        streams.advance(0.05)
        empty = answer(port)
        assert (list(empty.spans), empty.next, empty.tail) == ([], 1, 1)

    def test_what_a_view_cannot_show_does_not_wake(self, streams: StreamHarness) -> None:
        port = waiting(streams, record_filter=m.RecordFilter(empty=False))
        other = waiting(streams, Position(0, 0), record_filter=m.RecordFilter(empty=False))
        streams.append(b"", b"")
        streams.append(b"")
        assert port.take() == other.take() == []
        streams.append(b"", b"a")
        assert bodies_of(answer(port)) == bodies_of(answer(other)) == [b"a"]

    def test_s3a_27_a_deletion_answers_with_nothing(self, streams: StreamHarness) -> None:
        port = waiting(streams)
        streams.one(m.Delete(0), m.Done)
        assert list(answer(port).spans) == []

    def test_who_means_one_stream_alone_hears_at_once_that_it_is_gone(
        self, streams: StreamHarness
    ) -> None:
        begun = streams.describe().incarnation
        port = waiting(streams, incarnation=begun)
        streams.one(m.Delete(0), m.Done)
        (failed,) = port.take()
        assert isinstance(failed, m.StreamFailed) and failed.code is Code.UNKNOWN_STREAM
        streams.create()
        streams.append(b"a")
        again = streams.refused(read_of(0, incarnation=begun, wait_until=streams.now + WAIT_S))
        assert again.code is Code.UNKNOWN_STREAM
        assert streams.bodies(0, incarnation=streams.describe().incarnation) == [b"a"]

    def test_s3a_28_a_trim_does_not_wake(self, streams: StreamHarness) -> None:
        streams.append(b"a")
        port = waiting(streams, 1)
        streams.one(m.Trim(0, 1), m.Done)
        assert port.take() == []
        streams.append(b"b")
        assert bodies_of(answer(port)) == [b"b"]

    def test_one_batch_may_wait_and_append(self, streams: StreamHarness) -> None:
        port = streams.port()
        wait = read_of(1, number=0, wait_until=streams.now + WAIT_S)
        streams.say(port, m.Append(1, [b"a"]), wait, m.Append(2, [b"b"]))
        streams.settle()
        replies = {each.number: each for each in port.take()}  # type: ignore[union-attr]
        assert bodies_of(replies[0]) == [b"b"]  # type: ignore[arg-type]
        assert sorted(replies) == [0, 1, 2]

    def test_an_empty_partition_of_a_topic_can_be_waited_for(self, streams: StreamHarness) -> None:
        assert isinstance(streams.catalog(m.CreateTopic(0, b"t", 3)), m.Done)
        port = streams.port()
        streams.say(port, read_of(wait_until=streams.now + WAIT_S), name=b"t/1")
        streams.append(b"x", name=b"t/1")
        assert bodies_of(answer(port)) == [b"x"]


class TestLeaving:
    def test_s3p_49_who_left_gets_nothing(self, streams: StreamHarness) -> None:
        port, stays = waiting(streams), waiting(streams)
        streams.scheduler.detach(stream_cell(NAME), port)
        streams.append(b"a")
        assert port.take() == []
        assert bodies_of(answer(stays)) == [b"a"]
        assert streams.describe().info.waiting == 0

    def test_one_read_of_several_is_cancelled(self, streams: StreamHarness) -> None:
        port = streams.port()
        until = streams.now + WAIT_S
        streams.say(port, read_of(number=1, wait_until=until), read_of(number=2, wait_until=until))
        streams.say(port, m.CancelRead(1), m.CancelRead(7))
        streams.append(b"a")
        assert answer(port).number == 2

    def test_pa_36_a_drain_answers_who_waits_and_who_comes_later(
        self, streams: StreamHarness
    ) -> None:
        port = waiting(streams)
        streams.scheduler.drain()
        assert list(answer(port).spans) == []
        streams.say(port, read_of(wait_until=streams.now + WAIT_S))
        streams.settle()
        assert list(answer(port).spans) == []
        streams.append(b"kept all the same")


class TestMany:
    def test_ten_thousand_wait_cheaply(self) -> None:
        """Waiting reads make appends that wake none no dearer; woken reads share records."""
        with streams_in(None) as streams:
            streams.create()
            idle = min(self._seconds_for_appends(streams) for _ in range(3))
            far = [waiting(streams, Position(U64_MAX, 0)) for _ in range(10_000)]
            crowded = min(self._seconds_for_appends(streams) for _ in range(3))
            assert crowded < 10 * idle + 0.01
            near = [waiting(streams, streams.describe().info.tail) for _ in range(1000)]
            streams.append(b"x")
            answers = [answer(port) for port in near]
            assert all(each.spans is answers[0].spans for each in answers)
            for port in far:
                streams.scheduler.detach(stream_cell(NAME), port)
            assert streams.describe().info.waiting == 0

    def _seconds_for_appends(self, streams: StreamHarness) -> float:
        port = streams.port()
        began = time.perf_counter()
        for at in range(200):
            streams.say(port, m.Append(at, [b"x"]))
        return time.perf_counter() - began

    def test_all_of_ten_thousand_are_answered(self) -> None:
        with streams_in(None) as streams:
            streams.create()
            ports = [waiting(streams, Position(0, 0), wait_s=10 + at % 7) for at in range(10_000)]
            streams.append(b"x")
            assert all(bodies_of(answer(port)) == [b"x"] for port in ports)
            again = [waiting(streams, 1, wait_s=10 + at % 7) for at in range(1000)]
            streams.advance(17)
            assert all(list(answer(port).spans) == [] for port in again)


class TestPassivation:
    def test_who_waits_keeps_the_stream_in_memory(self, streams: StreamHarness) -> None:
        streams.append(b"a")
        port = waiting(streams, 1, wait_s=1000)
        streams.advance(900)
        assert streams.scheduler.view(stream_cell(NAME)) is not None
        streams.append(b"b")
        assert bodies_of(answer(port)) == [b"b"]
        streams.advance(100)
        assert streams.scheduler.view(stream_cell(NAME)) is None
        assert streams.append(b"c").first == 2
        assert streams.bodies() == [b"a", b"b", b"c"]

    def test_a_stream_that_is_not_there_is_forgotten(self, streams: StreamHarness) -> None:
        streams.refused(read_of(), b"other")
        assert stream_cell(b"other") not in streams.scheduler.cells


class TestCrashes:
    @pytest.fixture(autouse=True)
    def _quiet(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.CRITICAL)

    def test_nobody_hangs_when_the_behaviour_crashes(self, streams: StreamHarness) -> None:
        streams.append(b"a")
        ports = [waiting(streams, 1), waiting(streams, Position(U64_MAX, 0))]
        streams.crash_on.add(m.CommitOffset)
        crasher = streams.port()
        both = read_of(1, number=0, wait_until=streams.now + WAIT_S)
        streams.say(crasher, both, m.CommitOffset(1, b"g", 1))
        for port, numbers in ((ports[0], [0]), (ports[1], [0]), (crasher, [0, 1])):
            refusals = port.take()
            assert [each.request.number for each in refusals] == numbers  # type: ignore[union-attr]
            assert {each.code for each in refusals} == {Code.OUTCOME_UNKNOWN}  # type: ignore[union-attr]
        streams.advance(20)
        assert streams.bodies() == [b"a"]
        assert streams.append(b"b").first == 1

    def test_who_was_answered_by_what_crashed_hears_of_it(self, streams: StreamHarness) -> None:
        """The append woke them, and it may never have happened."""
        port = waiting(streams)
        streams.crash_on.add(m.Append)
        streams.say(streams.port(), m.Append(0, [b"a"]))
        (refused,) = port.take()
        assert isinstance(refused, Failed) and refused.code is Code.OUTCOME_UNKNOWN
        streams.crash_on.clear()
        streams.advance(20)
        assert streams.append(b"b").first == 0
        assert streams.bodies() == [b"b"]

    def test_a_store_that_raises_is_a_crash_like_any_other(
        self, streams: StreamHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        port = waiting(streams)
        with monkeypatch.context() as patch:
            patch.setattr(streams.store, "write", lambda name, changes: 1 / 0)
            (refused,) = streams.ask(m.Append(0, [b"a"]))
        (told,) = port.take()
        assert isinstance(refused, Failed) and isinstance(told, m.StreamFailed)
        assert refused.code is told.code is Code.OUTCOME_UNKNOWN
        streams.advance(20)
        assert streams.append(b"b").first == 0

    def test_what_the_store_looks_for_may_come_too_late(self, tmp_path: Path) -> None:
        """The stream failed meanwhile, or was deleted: each read is answered once."""
        with streams_in(tmp_path / "data") as streams:
            streams.create()
            for at in range(300):
                streams.append(b"%d" % at * 20)
            port = streams.port()
            streams.say(port, read_of(number=1, count=1))
            assert port.take() == [], "it is in a file"
            streams.crash_on.add(m.CommitOffset)
            streams.say(streams.port(), m.CommitOffset(0, b"g", 1))
            (refused,) = port.take()
            assert isinstance(refused, Failed) and refused.code is Code.OUTCOME_UNKNOWN
            streams.advance(20)
            assert port.take() == []
            streams.say(port, read_of(number=2, count=1), m.Trim(3, Position(START_MS, 5)))
            streams.say(port, m.Delete(4))
            streams.advance(20)
            found, refused, done = sorted(port.take(), key=number_of)
            assert isinstance(found, m.Records) and not found.spans
            assert isinstance(refused, m.StreamFailed)
            assert refused.code is Code.UNKNOWN_STREAM
            assert isinstance(done, m.Done)

    def test_quarantine_refuses_who_waits(self, streams: StreamHarness) -> None:
        streams.crash_on.add(m.CommitOffset)
        for _ in range(5):
            streams.ask(m.CommitOffset(0, b"g", 1))
            streams.advance(2)
        port = waiting(streams)
        streams.ask(m.CommitOffset(0, b"g", 1))
        (refused,) = port.take()
        assert isinstance(refused, Failed) and refused.code is Code.OUTCOME_UNKNOWN
        assert streams.scheduler.counters.quarantines == 1
        (refused,) = streams.ask(read_of(wait_until=streams.now + WAIT_S))
        assert isinstance(refused, Failed) and refused.code is Code.QUARANTINED


class TestCommits:
    def test_s3a_34_nothing_is_shown_before_it_is_kept(self, slow: StreamHarness) -> None:
        tail, reader, writer = waiting(slow), slow.port(), slow.port()
        slow.say(writer, m.Append(0, [b"a"]))
        slow.say(reader, read_of(number=1))
        slow.say(reader, m.Describe(2))
        slow.settle()
        assert tail.take() == reader.take() == writer.take() == []
        slow.store.finish()
        assert bodies_of(answer(tail)) == [b"a"]
        records, described = reader.take()
        assert bodies_of(records) == [b"a"] and described.info.tail == 1  # type: ignore
        assert isinstance(writer.take()[0], m.Appended)

    def test_a_failed_commit_refuses_each_request_once(self, slow: StreamHarness) -> None:
        writer = slow.port()
        later = read_of(3, number=1, wait_until=slow.now + WAIT_S)
        slow.say(writer, m.Append(0, [b"a"]), later)
        slow.say(writer, m.Append(2, [b"b"]))
        slow.say(writer, m.Append(3, [b"c", b"d"]), read_of(number=4))
        slow.settle()
        slow.store.finish(Fault.NOT_STORED)
        replies = writer.take()
        told = [
            each.request.number if isinstance(each, Failed) else each.number  # type: ignore
            for each in replies
        ]
        assert sorted(told) == [0, 1, 2, 3, 4]
        assert {each.code for each in replies} == {Code.STORAGE_FAILED}  # type: ignore

    def test_who_waits_when_a_commit_fails_waits_on(self, slow: StreamHarness) -> None:
        """S3P-39: for what is kept, or to the deadline; but not who was cancelled or left since."""
        woken, asleep, late = waiting(slow), waiting(slow, 5), waiting(slow, wait_s=10)
        cancelled, left = waiting(slow), waiting(slow)
        slow.store.is_doomed = True
        slow.say(slow.port(), m.Append(0, [b"a"]))
        slow.say(cancelled, m.CancelRead(0))
        slow.scheduler.submit(stream_cell(NAME), Batch(left, [Detach()]), slow.now)
        slow.settle()
        slow.store.finish(Fault.NOT_STORED)
        slow.store.is_slow = slow.store.is_doomed = False
        for port in (woken, asleep, late, cancelled, left):
            assert port.take() == []
        assert slow.describe().info.waiting == 3
        slow.advance(10)
        assert list(answer(late).spans) == []
        assert slow.append(b"b").first == 0
        assert bodies_of(answer(woken)) == [b"b"]
        assert asleep.take() == cancelled.take() == left.take() == []

    def test_who_left_before_the_commit_failed_harms_nobody(self, slow: StreamHarness) -> None:
        port = waiting(slow)
        slow.say(slow.port(), m.Append(0, [b"a"]))
        slow.scheduler.submit(stream_cell(NAME), Batch(port, [Detach()]), slow.now)
        slow.store.finish(Fault.NOT_STORED)
        assert len(port.take()) <= 1


def test_a_drain_without_anybody_is_nothing() -> None:
    with streams_in(None, runtime=SchedulerSettings(passivate_after_s=0)) as streams:
        streams.create()
        streams.post(stream_cell(NAME), Drain())
        streams.append(b"a")
        assert streams.bodies() == [b"a"]


def test_s3p_40_who_waits_no_longer_gets_what_there_is(streams: StreamHarness) -> None:
    port = waiting(streams)
    streams.say(port, m.FinishRead(7), m.FinishRead(0), m.FinishRead(0))
    streams.settle()
    (nothing,) = port.take()
    assert isinstance(nothing, m.Records) and not nothing.spans
    streams.append(b"x")
    assert port.take() == []
    streams.say(port, read_of(0, wait_until=streams.now + WAIT_S), m.FinishRead(0))
    streams.settle()
    assert bodies_of(*port.take()) == [b"x"]


def test_s3p_40_what_the_store_still_looks_for_is_given_to_who_waits_no_longer(
    tmp_path: Path,
) -> None:
    with streams_in(tmp_path / "data") as streams:
        streams.create()
        for each in range(40):
            streams.append(bytes(500) + b"%d" % each)
            streams.advance(1)
        streams.advance(30)
        port, late = streams.port(), streams.port()
        streams.say(port, read_of(0, count=1, wait_until=streams.now + WAIT_S), m.FinishRead(0))
        assert not port.written, "the store has to look into a file"
        streams.settle()
        assert bodies_of(*port.take()) == [bytes(500) + b"0"]
        streams.append(b"")
        view = m.RecordFilter(empty=False)
        streams.say(
            late, read_of(40, record_filter=view, wait_until=streams.now + WAIT_S), m.FinishRead(0)
        )
        streams.settle()
        (nothing,) = late.take()
        assert isinstance(nothing, m.Records) and not nothing.spans


def test_a_rest_that_ends_before_its_deadline_is_seen_ends_its_refusals(
    slow: StreamHarness,
) -> None:
    """Else what the cell has to put into its mailbox would be refused long after."""
    cell, loads = stream_cell(NAME), list[Deferred[LogSnapshot | Fault]]()

    def load(name: bytes) -> Deferred[LogSnapshot | Fault]:
        loads.append(Deferred())
        return loads[-1]

    with streams_in(None, store=slow.store) as streams:
        streams.scheduler = Scheduler(
            streams.store, streams._spawn, lambda: streams.now, Random(1), SchedulerSettings(), load
        )
        port = streams.port()
        streams.say(port, m.Describe(0))
        loads.pop().finish(Fault.UNREADABLE)
        assert isinstance(port.take()[0], Failed)
        streams.clock.now += LOAD_RETRY_S
        streams.say(port, m.Describe(1))
        streams.scheduler.turn(streams.now)
        loads.pop().finish(LogSnapshot(metadata={b"created": bytes([0x91, 0])}))
        streams.settle()
        assert isinstance(port.take()[0], m.StreamDescription)
        for number in range(5):
            batch = Batch(port, [m.Append(number, [b"x"])], 600_000)
            streams.scheduler.submit(cell, batch, streams.now)
        for _ in range(5):
            slow.store.finish()
            streams.settle()
        assert [type(each) for each in port.take()] == [m.Appended] * 5


def test_streams_let_go_of_connections_that_left(streams: StreamHarness) -> None:
    """Long before the time is over for which they wanted to wait."""
    stays = waiting(streams, 10**6, wait_s=10.0)
    ports = [waiting(streams, at % 2 * 100) for at in range(300)]
    gone = [ref(port) for port in ports]
    for port in ports:
        streams.scheduler.detach(stream_cell(NAME), port)
    del port, ports
    streams.append(b"x")
    collect()
    assert sum(each() is not None for each in gone) < 100
    assert not stays.take()

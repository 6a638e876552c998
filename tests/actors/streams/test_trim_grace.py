"""Trims by command records: followers get what was committed, new reads have a grace (S2X-70 to
S2X-74)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.store.changes import Change
from millpond.actors.store.interface import Commit, Fault
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.actors.streams.settings import StreamLimits
from millpond.actors.streams.trim_grace import STEPS, TrimGrace
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import (
    NAME,
    SlowMemory,
    StreamHarness,
    bodies_of,
    read_of,
    streams_in,
    waiting,
)

GRACE_S = StreamLimits().trim_grace_s
ALL = (2**53 - 1).to_bytes(8)
GENERATION = [b"d0", b"d1", b"d2", ALL, b"end-1"]
COMMANDS: list[m.Headers] = [[], [], [], [(b"", b"trim")], [(b"", b"fence")]]


@pytest.fixture(params=["memory", "disk"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "data"


@pytest.fixture
def streams(folder: Path | None) -> Iterator[StreamHarness]:
    with streams_in(folder) as opened:
        opened.create()
        yield opened


def end_generation(number: int = 0, **conditions: object) -> m.Append:
    """Three records, a trim of them, a new fence: one append of S2's resumable streams."""
    return m.Append(number, GENERATION, headers=COMMANDS, **conditions)  # type: ignore[arg-type]


def trim(point: int, number: int = 0) -> m.Append:
    return m.Append(number, [point.to_bytes(8)], headers=[[(b"", b"trim")]])


def found(port: RecordingPort) -> list[bytes]:
    (reply,) = port.take()
    assert isinstance(reply, m.Records), reply
    return bodies_of(reply)


class TestFollowers:
    @pytest.mark.parametrize("grace_s", [0.0, GRACE_S])
    def test_s2x_70_who_waits_at_the_tail_gets_the_append_whole(
        self, folder: Path | None, grace_s: float
    ) -> None:
        with streams_in(folder, limits=StreamLimits(trim_grace_s=grace_s)) as streams:
            streams.create()
            streams.append(b"before")
            ports = [waiting(streams, 1), waiting(streams, 1, count=1000, from_start=True)]
            assert streams.one(end_generation(), m.Appended).first == 1
            assert [found(port) for port in ports] == [GENERATION] * 2
            streams.advance(grace_s)
            info = streams.describe().info
            assert (info.trim_point, info.tail, info.fence) == (5, 6, b"end-1")
            assert streams.bodies() == [b"end-1"]

    def test_s2x_71_nor_does_a_trim_of_the_same_batch(self, streams: StreamHarness) -> None:
        """Of another client, immediate, behind the append."""
        port, writer = waiting(streams), streams.port()
        streams.say(writer, m.Append(0, [b"a", b"b"]), m.Trim(1, 2), m.Append(2, [b"c"]))
        streams.settle()
        assert found(port) == [b"a", b"b", b"c"]
        assert streams.bodies() == [b"c"]

    def test_s2x_71_many_generations_of_one_batch(self, streams: StreamHarness) -> None:
        port, writer = waiting(streams), streams.port()
        streams.say(writer, *map(end_generation, range(20)))
        streams.settle()
        assert found(port) == GENERATION * 20

    def test_s2x_72_a_follower_that_is_behind_reads_the_rest(self, streams: StreamHarness) -> None:
        """In pieces, as long as the grace lasts."""
        port, writer = waiting(streams, count=4), streams.port()
        streams.say(writer, *map(end_generation, range(3)))
        streams.settle()
        got = found(port)
        while len(got) < 15:
            streams.advance(GRACE_S / 6)
            got += streams.bodies(len(got), count=4)
        assert got == GENERATION * 3


class TestGrace:
    def test_s2x_72_73_it_is_measured_from_the_commit(self, streams: StreamHarness) -> None:
        streams.append(b"before")
        streams.one(end_generation(), m.Appended)
        for _ in range(2):
            assert streams.bodies() == [b"before", *GENERATION]
            assert streams.describe().info.tail == 6
            streams.advance(GRACE_S / 2 - 0.1)
        streams.clock.now += 0.3
        assert streams.bodies() == [b"end-1"], "with the first read after it, swept or not"
        streams.append(b"next")
        refused = streams.refused(read_of(0, from_start=True))
        assert (refused.code, refused.trim_point) == (Code.TRIMMED, 5)

    def test_s2x_73_nobody_has_to_use_the_stream(self, streams: StreamHarness) -> None:
        streams.append(bytes(10_000))
        streams.one(trim(1), m.Appended)
        streams.advance(GRACE_S + 120)
        assert streams.scheduler.view(stream_cell(NAME)) is None, "passivated"
        assert streams.store.usage.log_bytes < 1000

    def test_s2x_73_a_restart_ends_it(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data") as streams:
            streams.create()
            streams.one(end_generation(), m.Appended)
            streams.restart()
            assert streams.bodies() == [b"end-1"]
            streams.restart()
            info = streams.describe().info
            assert (info.trim_point, info.tail, info.fence) == (4, 5, b"end-1")
            streams.one(trim(99), m.Appended)
            streams.one(m.Delete(0), m.Done)
            streams.create()
            streams.append(b"new")
            streams.restart()
            assert streams.bodies() == [b"new"], "a trim does not outlive its stream"
            streams.advance(2 * GRACE_S)
            assert streams.bodies() == [b"new"]

    def test_s2x_73_a_clock_set_back_makes_it_no_longer(self, streams: StreamHarness) -> None:
        streams.one(end_generation(), m.Appended)
        streams.clock.now -= 86_400
        assert streams.bodies() == GENERATION
        streams.advance(GRACE_S)
        assert streams.bodies() == [b"end-1"]

    def test_a_trim_by_request_is_immediate(self, streams: StreamHarness) -> None:
        streams.one(end_generation(), m.Appended)
        streams.one(m.Trim(0, 2), m.Done)
        assert streams.bodies() == GENERATION[2:]
        streams.one(m.Trim(0, 5), m.Done)
        assert streams.bodies() == []
        streams.append(b"next")
        streams.advance(GRACE_S)
        assert streams.bodies() == [b"next"]

    def test_each_trim_has_its_own(self, streams: StreamHarness) -> None:
        streams.append(*(b"%d" % at for at in range(10)))
        for point in (2, 6, 4):
            streams.one(trim(point), m.Appended)
            streams.advance(GRACE_S / 4)
        for point in (2, 6, 6):
            streams.advance(GRACE_S / 4)
            assert streams.describe().info.trim_point == point

    def test_the_highest_of_them_counts_after_a_restart(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data") as streams:
            streams.create()
            streams.append(*(b"%d" % at for at in range(10)))
            streams.one(trim(2), m.Appended)
            streams.advance(GRACE_S / 2)
            streams.one(trim(6), m.Appended)
            streams.advance(GRACE_S / 2)
            assert streams.describe().info.trim_point == 2
            streams.restart()
            assert streams.bodies()[0] == b"6"

    def test_an_append_that_was_not_stored_trims_nothing(self) -> None:
        memory = SlowMemory()
        with streams_in(None, store=memory) as streams:
            streams.create()
            streams.append(b"a")
            memory.is_slow = memory.is_doomed = True
            port = streams.port()
            streams.say(port, trim(1))
            streams.settle()
            memory.finish(Fault.NOT_STORED)
            memory.is_slow = memory.is_doomed = False
            streams.advance(2 * GRACE_S)
            assert streams.bodies() == [b"a"]

    def test_a_stream_is_empty_only_after_it(self, streams: StreamHarness) -> None:
        streams.create(b"brief", options=m.StreamOptions(empty_s=5))
        streams.one(trim(2**53 - 1), m.Appended, b"brief")
        streams.one(m.Trim(0, 2**53), m.Done, b"brief")
        streams.append(b"x", name=b"brief")
        streams.one(trim(2**53 - 1), m.Appended, b"brief")
        streams.advance(GRACE_S + 4)
        assert streams.describe(b"brief").info.tail == 3
        streams.advance(2)
        assert streams.refused(m.Describe(0), b"brief").code is Code.UNKNOWN_STREAM

    def test_s2x_74_conditions_are_those_before_the_append(self, streams: StreamHarness) -> None:
        streams.append(b"me", headers=[[(b"", b"fence")]])
        streams.one(end_generation(fencing_token=b"me", match_sequence=1), m.Appended)
        assert streams.refused(end_generation(fencing_token=b"me")).code is Code.FENCED
        assert streams.one(end_generation(fencing_token=b"end-1"), m.Appended).first == 6


class TestManyTrims:
    def test_their_number_has_a_limit(self) -> None:
        grace, now, point = TrimGrace(GRACE_S), 0.0, 0
        waits: dict[int, float] = {}
        while now < 5 * GRACE_S:
            now, point = now + 0.01, point + 1
            done = grace.take_due(now)
            for each in [each for each in waits if each <= done]:
                assert GRACE_S <= now - waits.pop(each) + 1e-6 <= GRACE_S * (1 + 2 / STEPS)
            grace.add(point, now)
            waits[point] = now
            assert len(grace) <= 2 * STEPS + 2
        assert len(waits) < 1.1 * GRACE_S / 0.01
        assert grace.take_due(now + 2 * GRACE_S) == point and not grace


class FullMemory(MemoryStore):
    """Refuses everything while it is not writable, as a store does whose disk is full."""

    refused = 0

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:  # type: ignore[override]
        if self.health.is_writable:
            super().write(name, changes)
            return None
        self.refused += 1
        commit = Commit()
        commit.finish(Fault.NOT_STORED)
        return commit


class TestFullDisk:
    @pytest.mark.parametrize("trigger", ["grace", "age", "empty"])
    def test_what_is_due_waits_until_the_store_is_writable(self, trigger: str) -> None:
        """Not in a loop without a pause."""
        memory = FullMemory()
        limits = StreamLimits(is_durable=True)
        with streams_in(None, store=memory, limits=limits) as streams:
            options = m.StreamOptions(empty_s=5) if trigger == "empty" else None
            streams.create(age_s=5 if trigger == "age" else None, options=options)
            if trigger != "empty":
                streams.append(bytes(900))
                streams.append(bytes(900))
            if trigger == "grace":
                streams.one(trim(2), m.Appended)
            memory.health.is_writable = False
            streams.advance(60)
            assert memory.refused < 100
            memory.health.is_writable = True
            streams.advance(20)
            if trigger == "empty":
                assert streams.refused(m.Describe(0)).code is Code.UNKNOWN_STREAM
            else:
                assert streams.describe().info.trim_point == 2

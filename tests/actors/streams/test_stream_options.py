"""Options of S2 streams: timestamps, chained appends, deletion when empty (A.6)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Detach, Failed
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.store.interface import Fault
from millpond.actors.streams import messages as m
from millpond.actors.streams.messages import StreamOptions, Timestamping
from tests.actors.streams.harness import NAME, StreamHarness, streams_in

EMPTY_S = 60


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def created(streams: StreamHarness, **options: Any) -> None:
    streams.create(options=StreamOptions(**options))


def stamps(streams: StreamHarness) -> list[int]:
    found: list[int] = []
    for span in streams.read().spans:
        found += span.timestamps or [span.timestamp] * len(span.bodies)
    return found


class TestTimestamps:
    def test_the_clients_own_where_it_gives_one(self, streams: StreamHarness) -> None:
        created(streams)
        now = streams.now_ms
        streams.append(b"a", b"b", timestamps=[5, None])
        assert stamps(streams) == [5, now]

    def test_capped_at_arrival(self, streams: StreamHarness) -> None:
        created(streams, is_capped=True)
        now = streams.now_ms
        streams.append(b"a", b"b", timestamps=[now - 7, now + 10**6])
        assert stamps(streams) == [now - 7, now]

    def test_not_capped(self, streams: StreamHarness) -> None:
        created(streams)
        streams.append(b"a", timestamps=[2**64 - 1])
        assert stamps(streams) == [2**64 - 1]

    def test_never_falling(self, streams: StreamHarness) -> None:
        created(streams)
        streams.append(b"a", b"b", timestamps=[9, 3])
        streams.append(b"c", timestamps=[1])
        assert stamps(streams) == [9, 9, 9]

    def test_required(self, streams: StreamHarness) -> None:
        created(streams, timestamping=Timestamping.REQUIRED)
        assert streams.refused(m.Append(0, [b"a"])).code is Code.MALFORMED
        half = m.Append(0, [b"a", b"b"], timestamps=[1, None])
        assert streams.refused(half).code is Code.MALFORMED
        assert streams.describe().info.tail == 0
        streams.append(b"a", timestamps=[4])
        assert stamps(streams) == [4]

    def test_arrival_whatever_is_given(self, streams: StreamHarness) -> None:
        created(streams, timestamping=Timestamping.ARRIVAL)
        now = streams.now_ms
        streams.append(b"a", timestamps=[4])
        streams.append(b"b")
        assert stamps(streams) == [now, now]


class TestSettings:
    def test_options_stay_where_somebody_else_configures(self, streams: StreamHarness) -> None:
        created(streams, labels={"s2": b"x"}, empty_s=9)
        streams.one(m.Configure(0, m.Settings(age_s=77)), m.Done)
        settings = streams.describe().settings
        assert settings == m.Settings(77, options=StreamOptions(labels={"s2": b"x"}, empty_s=9))

    def test_options_are_kept(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data") as streams:
            created(streams, timestamping=Timestamping.ARRIVAL, is_capped=True, labels={"k": b"v"})
            before = streams.describe()
            streams.restart()
            assert streams.describe() == before
            now = streams.now_ms
            streams.append(b"a", timestamps=[4])
            assert stamps(streams) == [now]


class TestChains:
    def test_after_a_refused_append_nothing_of_that_session_is_done(
        self, streams: StreamHarness
    ) -> None:
        streams.create()
        one, other = streams.port(), streams.port()
        streams.say(
            one,
            m.SessionAppend(1, [b"a"]),
            m.SessionAppend(2, [b"b"], match_sequence=9),
            m.SessionAppend(3, [b"c"]),
        )
        streams.say(other, m.SessionAppend(1, [b"d"]))
        streams.settle()
        streams.say(one, m.SessionAppend(4, [b"e"]))
        streams.settle()
        first, *failed = one.take()
        assert isinstance(first, m.Appended)
        codes = [each.code for each in failed if isinstance(each, m.StreamFailed)]
        assert codes == [Code.SEQUENCE_MISMATCH] * 3
        assert streams.bodies() == [b"a", b"d"]

    def test_a_session_that_left_is_forgotten(self, streams: StreamHarness) -> None:
        streams.create()
        port = streams.port()
        streams.say(port, m.SessionAppend(1, [b"a"], match_sequence=9), Detach())
        streams.say(port, m.SessionAppend(2, [b"b"]))
        streams.settle()
        assert streams.bodies() == [b"b"]

    def test_a_stream_that_is_not_there(self, streams: StreamHarness) -> None:
        port = streams.port()
        streams.say(port, m.SessionAppend(1, [b"a"]))
        streams.settle()
        (failed,) = port.take()
        assert isinstance(failed, m.StreamFailed)
        assert failed.code is Code.UNKNOWN_STREAM

    def test_a_stream_made_anew_is_none_that_a_session_has_begun(
        self, streams: StreamHarness
    ) -> None:
        """Also within one millisecond, and when nothing of the first one is in memory any more."""
        streams.create()
        begun = streams.describe().incarnation
        port = streams.port()
        streams.say(port, m.SessionAppend(1, [b"a"], incarnation=begun))
        streams.ask(m.Delete(0), m.Create(1))
        assert streams.describe().incarnation != begun
        streams.say(port, m.SessionAppend(2, [b"b"], incarnation=begun))
        streams.say(streams.port(), m.SessionAppend(1, [b"c"], incarnation=begun))
        streams.settle()
        _, failed = port.take()
        assert isinstance(failed, m.StreamFailed) and failed.code is Code.UNKNOWN_STREAM
        assert streams.bodies() == []

    def test_nothing_is_done_behind_an_append_whose_commit_failed(
        self, slow: StreamHarness
    ) -> None:
        """Also where the stream that knew of it was given up, and built anew from what is kept."""
        port, other = slow.port(), slow.port()
        slow.say(port, m.SessionAppend(1, [b"a"]))
        slow.store.finish()
        slow.store.is_doomed = True
        slow.say(port, m.SessionAppend(2, [b"b"], previous=1))
        slow.say(other, m.SessionAppend(1, [b"x"]))
        slow.store.finish(Fault.NOT_STORED)
        slow.store.is_slow = slow.store.is_doomed = False
        slow.settle()
        slow.say(port, m.SessionAppend(3, [b"c"], previous=2))
        slow.say(port, m.SessionAppend(4, [b"d"], previous=3))
        slow.say(other, m.SessionAppend(2, [b"y"], previous=1))
        slow.settle()
        first, *failed = port.take()
        assert isinstance(first, m.Appended)
        assert [type(each) for each in failed] == [Failed, m.StreamFailed, m.StreamFailed]
        assert slow.bodies() == [b"a"]

    def test_nor_behind_one_of_which_nobody_knows_what_became(self, streams: StreamHarness) -> None:
        streams.create()
        port = streams.port()
        streams.crash_on = {m.Describe}
        streams.say(port, m.SessionAppend(1, [b"a"]), m.Describe(2))
        streams.say(port, m.SessionAppend(3, [b"b"], previous=1))
        streams.advance(1)
        assert [type(each) for each in port.take()] == [Failed, Failed, m.StreamFailed]
        assert streams.bodies() == []

    def test_who_heard_of_all_its_appends_goes_on_in_a_stream_that_is_built_anew(
        self, streams: StreamHarness
    ) -> None:
        streams.create()
        port = streams.port()
        streams.say(port, m.SessionAppend(1, [b"a"]))
        streams.advance(1)
        streams.crash_on = {m.Describe}
        streams.say(streams.port(), m.Describe(0))
        streams.say(port, m.SessionAppend(2, [b"b"]), m.SessionAppend(3, [b"c"], previous=2))
        streams.advance(1)
        assert streams.bodies() == [b"a", b"b", b"c"]

    def test_an_incarnation_is_kept(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data") as streams:
            streams.create()
            begun = streams.describe().incarnation
            streams.one(m.Configure(0, m.Settings(age_s=9)), m.Done)
            streams.restart()
            assert streams.describe().incarnation == begun != 0


class TestEmptyStreams:
    def is_there(self, streams: StreamHarness) -> bool:
        return NAME in streams.directory.streams

    def test_a_stream_nobody_wrote_to_goes(self, streams: StreamHarness) -> None:
        created(streams, empty_s=EMPTY_S)
        streams.advance(EMPTY_S - 1)
        assert self.is_there(streams)
        streams.advance(2)
        assert not self.is_there(streams)
        assert streams.refused(m.Describe(0)).code is Code.UNKNOWN_STREAM
        streams.create()

    def test_a_stream_with_records_stays_until_it_was_empty_for_so_long(
        self, streams: StreamHarness
    ) -> None:
        created(streams, empty_s=EMPTY_S)
        streams.append(b"a")
        streams.advance(10 * EMPTY_S)
        assert self.is_there(streams)
        streams.one(m.Trim(0, 1), m.Done)
        streams.advance(EMPTY_S - 1)
        assert self.is_there(streams)
        streams.append(b"b")
        streams.advance(2 * EMPTY_S)
        assert self.is_there(streams)
        streams.one(m.Trim(0, 2), m.Done)
        streams.advance(EMPTY_S + 1)
        assert not self.is_there(streams)

    def test_age_empties_it_too(self, streams: StreamHarness) -> None:
        streams.create(age_s=100, options=StreamOptions(empty_s=EMPTY_S))
        streams.append(b"a")
        streams.advance(100 + EMPTY_S - 5)
        assert self.is_there(streams)
        streams.advance(10)
        assert not self.is_there(streams)

    def test_a_restart_does_not_begin_anew(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data") as streams:
            created(streams, empty_s=EMPTY_S)
            streams.append(b"a")
            streams.one(m.Trim(0, 1), m.Done)
            streams.advance(EMPTY_S - 5)
            streams.restart()
            streams.describe()
            streams.advance(3)
            assert self.is_there(streams)
            streams.advance(3)
            assert not self.is_there(streams)

    def test_settings_that_come_later_count_from_then(self, streams: StreamHarness) -> None:
        streams.create()
        streams.append(b"a")
        streams.one(m.Trim(0, 1), m.Done)
        streams.advance(10 * EMPTY_S)
        streams.one(m.Configure(0, m.Settings(options=StreamOptions(empty_s=EMPTY_S))), m.Done)
        streams.advance(EMPTY_S - 1)
        assert self.is_there(streams)
        streams.advance(2)
        assert not self.is_there(streams)

    def test_who_waits_is_answered(self, streams: StreamHarness) -> None:
        created(streams, empty_s=EMPTY_S)
        port = streams.port()
        read = m.Read(7, Seek(SeekBy.SEQUENCE, 0), 10, 1000, streams.now + 1000)
        streams.say(port, read)
        streams.advance(EMPTY_S + 1)
        (answer,) = port.take()
        assert isinstance(answer, m.Records)
        assert not answer.spans


def test_a_change_of_settings_that_are_others_by_now_is_refused(streams: StreamHarness) -> None:
    created(streams, empty_s=5)
    before = streams.describe().settings
    streams.one(m.Configure(0, m.Settings(age_s=7), before), m.Done)
    late = streams.refused(m.Configure(0, m.Settings(age_s=8), before))
    assert late.code is Code.SEQUENCE_MISMATCH
    assert streams.describe().settings.age_s == 7

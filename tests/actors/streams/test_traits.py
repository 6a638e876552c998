"""What S2 asks of a stream besides: whose timestamps, chained appends, going when empty (A.6)."""

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
from tests.actors.streams.lake import NAME, Lake, lake_in

EMPTY_S = 60


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


def created(lake: Lake, **traits: Any) -> None:
    lake.create(traits=StreamOptions(**traits))


def stamps(lake: Lake) -> list[int]:
    found: list[int] = []
    for span in lake.read().spans:
        found += span.timestamps or [span.timestamp] * len(span.bodies)
    return found


class TestTimestamps:
    def test_the_clients_own_where_it_gives_one(self, lake: Lake) -> None:
        created(lake)
        now = lake.now_ms
        lake.append(b"a", b"b", timestamps=[5, None])
        assert stamps(lake) == [5, now]

    def test_capped_at_arrival(self, lake: Lake) -> None:
        created(lake, is_capped=True)
        now = lake.now_ms
        lake.append(b"a", b"b", timestamps=[now - 7, now + 10**6])
        assert stamps(lake) == [now - 7, now]

    def test_not_capped(self, lake: Lake) -> None:
        created(lake)
        lake.append(b"a", timestamps=[2**64 - 1])
        assert stamps(lake) == [2**64 - 1]

    def test_never_falling(self, lake: Lake) -> None:
        created(lake)
        lake.append(b"a", b"b", timestamps=[9, 3])
        lake.append(b"c", timestamps=[1])
        assert stamps(lake) == [9, 9, 9]

    def test_required(self, lake: Lake) -> None:
        created(lake, timestamping=Timestamping.REQUIRED)
        assert lake.refused(m.Append(0, [b"a"])).code is Code.MALFORMED
        half = m.Append(0, [b"a", b"b"], timestamps=[1, None])
        assert lake.refused(half).code is Code.MALFORMED
        assert lake.describe().info.tail == 0
        lake.append(b"a", timestamps=[4])
        assert stamps(lake) == [4]

    def test_arrival_whatever_is_given(self, lake: Lake) -> None:
        created(lake, timestamping=Timestamping.ARRIVAL)
        now = lake.now_ms
        lake.append(b"a", timestamps=[4])
        lake.append(b"b")
        assert stamps(lake) == [now, now]


class TestSettings:
    def test_traits_stay_where_somebody_else_configures(self, lake: Lake) -> None:
        created(lake, labels={"s2": b"x"}, empty_s=9)
        lake.one(m.Configure(0, m.Settings(age_s=77)), m.Done)
        settings = lake.describe().settings
        assert settings == m.Settings(77, traits=StreamOptions(labels={"s2": b"x"}, empty_s=9))

    def test_traits_are_kept(self, tmp_path: Path) -> None:
        with lake_in(tmp_path / "data") as lake:
            created(lake, timestamping=Timestamping.ARRIVAL, is_capped=True, labels={"k": b"v"})
            before = lake.describe()
            lake.restart()
            assert lake.describe() == before
            now = lake.now_ms
            lake.append(b"a", timestamps=[4])
            assert stamps(lake) == [now]


class TestChains:
    def test_after_a_refused_append_nothing_of_that_session_is_done(self, lake: Lake) -> None:
        lake.create()
        one, other = lake.port(), lake.port()
        lake.say(
            one,
            m.SessionAppend(1, [b"a"]),
            m.SessionAppend(2, [b"b"], match_sequence=9),
            m.SessionAppend(3, [b"c"]),
        )
        lake.say(other, m.SessionAppend(1, [b"d"]))
        lake.settle()
        lake.say(one, m.SessionAppend(4, [b"e"]))
        lake.settle()
        first, *failed = one.take()
        assert isinstance(first, m.Appended)
        codes = [each.code for each in failed if isinstance(each, m.StreamFailed)]
        assert codes == [Code.SEQUENCE_MISMATCH] * 3
        assert lake.bodies() == [b"a", b"d"]

    def test_a_session_that_left_is_forgotten(self, lake: Lake) -> None:
        lake.create()
        port = lake.port()
        lake.say(port, m.SessionAppend(1, [b"a"], match_sequence=9), Detach())
        lake.say(port, m.SessionAppend(2, [b"b"]))
        lake.settle()
        assert lake.bodies() == [b"b"]

    def test_a_stream_that_is_not_there(self, lake: Lake) -> None:
        port = lake.port()
        lake.say(port, m.SessionAppend(1, [b"a"]))
        lake.settle()
        (failed,) = port.take()
        assert isinstance(failed, m.StreamFailed)
        assert failed.code is Code.UNKNOWN_STREAM

    def test_a_stream_made_anew_is_none_that_a_session_has_begun(self, lake: Lake) -> None:
        """Also within one millisecond, and when nothing of the first one is in memory any more."""
        lake.create()
        begun = lake.describe().incarnation
        port = lake.port()
        lake.say(port, m.SessionAppend(1, [b"a"], incarnation=begun))
        lake.ask(m.Delete(0), m.Create(1))
        assert lake.describe().incarnation != begun
        lake.say(port, m.SessionAppend(2, [b"b"], incarnation=begun))
        lake.say(lake.port(), m.SessionAppend(1, [b"c"], incarnation=begun))
        lake.settle()
        _, failed = port.take()
        assert isinstance(failed, m.StreamFailed) and failed.code is Code.UNKNOWN_STREAM
        assert lake.bodies() == []

    def test_nothing_is_done_behind_an_append_whose_commit_failed(self, slow: Lake) -> None:
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

    def test_nor_behind_one_of_which_nobody_knows_what_became(self, lake: Lake) -> None:
        lake.create()
        port = lake.port()
        lake.crash_on = {m.Describe}
        lake.say(port, m.SessionAppend(1, [b"a"]), m.Describe(2))
        lake.say(port, m.SessionAppend(3, [b"b"], previous=1))
        lake.advance(1)
        assert [type(each) for each in port.take()] == [Failed, Failed, m.StreamFailed]
        assert lake.bodies() == []

    def test_who_heard_of_all_its_appends_goes_on_in_a_stream_that_is_built_anew(
        self, lake: Lake
    ) -> None:
        lake.create()
        port = lake.port()
        lake.say(port, m.SessionAppend(1, [b"a"]))
        lake.advance(1)
        lake.crash_on = {m.Describe}
        lake.say(lake.port(), m.Describe(0))
        lake.say(port, m.SessionAppend(2, [b"b"]), m.SessionAppend(3, [b"c"], previous=2))
        lake.advance(1)
        assert lake.bodies() == [b"a", b"b", b"c"]

    def test_an_incarnation_is_kept(self, tmp_path: Path) -> None:
        with lake_in(tmp_path / "data") as lake:
            lake.create()
            begun = lake.describe().incarnation
            lake.one(m.Configure(0, m.Settings(age_s=9)), m.Done)
            lake.restart()
            assert lake.describe().incarnation == begun != 0


class TestEmptyStreams:
    def is_there(self, lake: Lake) -> bool:
        return NAME in lake.directory.streams

    def test_a_stream_nobody_wrote_to_goes(self, lake: Lake) -> None:
        created(lake, empty_s=EMPTY_S)
        lake.advance(EMPTY_S - 1)
        assert self.is_there(lake)
        lake.advance(2)
        assert not self.is_there(lake)
        assert lake.refused(m.Describe(0)).code is Code.UNKNOWN_STREAM
        lake.create()

    def test_a_stream_with_records_stays_until_it_was_empty_for_so_long(self, lake: Lake) -> None:
        created(lake, empty_s=EMPTY_S)
        lake.append(b"a")
        lake.advance(10 * EMPTY_S)
        assert self.is_there(lake)
        lake.one(m.Trim(0, 1), m.Done)
        lake.advance(EMPTY_S - 1)
        assert self.is_there(lake)
        lake.append(b"b")
        lake.advance(2 * EMPTY_S)
        assert self.is_there(lake)
        lake.one(m.Trim(0, 2), m.Done)
        lake.advance(EMPTY_S + 1)
        assert not self.is_there(lake)

    def test_age_empties_it_too(self, lake: Lake) -> None:
        lake.create(age_s=100, traits=StreamOptions(empty_s=EMPTY_S))
        lake.append(b"a")
        lake.advance(100 + EMPTY_S - 5)
        assert self.is_there(lake)
        lake.advance(10)
        assert not self.is_there(lake)

    def test_a_restart_does_not_begin_anew(self, tmp_path: Path) -> None:
        with lake_in(tmp_path / "data") as lake:
            created(lake, empty_s=EMPTY_S)
            lake.append(b"a")
            lake.one(m.Trim(0, 1), m.Done)
            lake.advance(EMPTY_S - 5)
            lake.restart()
            lake.describe()
            lake.advance(3)
            assert self.is_there(lake)
            lake.advance(3)
            assert not self.is_there(lake)

    def test_settings_that_come_later_count_from_then(self, lake: Lake) -> None:
        lake.create()
        lake.append(b"a")
        lake.one(m.Trim(0, 1), m.Done)
        lake.advance(10 * EMPTY_S)
        lake.one(m.Configure(0, m.Settings(traits=StreamOptions(empty_s=EMPTY_S))), m.Done)
        lake.advance(EMPTY_S - 1)
        assert self.is_there(lake)
        lake.advance(2)
        assert not self.is_there(lake)

    def test_who_waits_is_answered(self, lake: Lake) -> None:
        created(lake, empty_s=EMPTY_S)
        port = lake.port()
        read = m.Read(7, Seek(SeekBy.SEQUENCE, 0), 10, 1000, lake.now + 1000)
        lake.say(port, read)
        lake.advance(EMPTY_S + 1)
        (answer,) = port.take()
        assert isinstance(answer, m.Records)
        assert not answer.spans


def test_a_change_of_settings_that_are_others_by_now_is_refused(lake: Lake) -> None:
    created(lake, empty_s=5)
    before = lake.describe().settings
    lake.one(m.Configure(0, m.Settings(age_s=7), before), m.Done)
    late = lake.refused(m.Configure(0, m.Settings(age_s=8), before))
    assert late.code is Code.SEQUENCE_MISMATCH
    assert lake.describe().settings.age_s == 7

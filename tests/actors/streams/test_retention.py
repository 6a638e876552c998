"""What is too old or too much goes by itself, and is not shown before it is gone (RLA-29)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond.actors.errors import Code
from millpond.actors.store.changes import Position
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.actors.streams.settings import StreamLimits
from tests.actors.streams.lake import NAME, START_MS, Lake, at_timestamp, lake_in, read_of

AGE_S = 100


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


class TestAge:
    def test_records_go_when_their_time_is_over(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        for at in range(10):
            lake.append(b"%d" % at)
            lake.advance(10)
        assert lake.bodies() == [b"%d" % at for at in range(1, 10)]
        lake.advance(45)
        assert lake.describe().info.trim_point == 5
        assert lake.bodies() == [b"%d" % at for at in range(5, 10)]
        lake.advance(1000)
        info = lake.describe().info
        assert (info.trim_point, info.tail, info.bytes_kept) == (
            10,
            10,
            0,
        )
        assert lake.append(b"x").first == 10

    @pytest.mark.parametrize("start", [0, Position(0, 0), at_timestamp(0)])
    def test_reads_do_not_wait_for_the_broom(self, lake: Lake, start: object) -> None:
        """Nobody wakes the stream here, and it shows nothing too old all the same."""
        lake.create(age_s=AGE_S)
        for at in range(300):
            lake.append(b"%d" % at * 20)
            lake.clock.now += 1
            lake.work()
        shown = lake.bodies(start)  # type: ignore[arg-type]
        assert shown == [b"%d" % at * 20 for at in range(201, 300)]

    def test_within_one_append(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        lake.append(*(b"%d" % at for at in range(5)), timestamps=[START_MS + n for n in range(5)])
        lake.advance(AGE_S + 0.0025)
        assert lake.bodies() == [b"3", b"4"]
        lake.advance(1)
        assert lake.describe().info.trim_point == 5

    def test_rla_29_what_is_below_is_refused(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        lake.append(b"a")
        lake.advance(50)
        lake.append(b"b")
        lake.advance(60)
        refused = lake.refused(read_of(0, from_start=True))
        assert (refused.code, refused.trim_point) == (Code.TRIMMED, 1)

    def test_a_wait_goes_on_when_all_is_too_old(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        lake.append(b"a")
        lake.clock.now += AGE_S + 1
        port = lake.port()
        lake.say(port, read_of(wait_until=lake.now + 10))
        lake.settle()
        assert port.take() == []
        lake.append(b"b")
        (found,) = port.take()
        assert [body for span in found.spans for body in span.bodies] == [b"b"]  # type: ignore

    def test_a_stream_that_nobody_uses_is_swept_as_well(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        lake.append(b"a" * 1000)
        lake.advance(AGE_S - 1)
        assert lake.scheduler.view(stream_cell(NAME)) is None, "passivated"
        assert lake.store.usage.log_bytes > 1000
        lake.advance(2)
        assert lake.store.usage.log_bytes == 0

    def test_the_nodes_age_and_the_streams_own(self) -> None:
        with lake_in(None, limits=StreamLimits(age_s=AGE_S)) as lake:
            lake.create()
            lake.create(b"longer", age_s=10 * AGE_S)
            lake.append(b"a")
            lake.append(b"a", name=b"longer")
            lake.advance(2 * AGE_S)
            assert (lake.bodies(), lake.bodies(name=b"longer")) == ([], [b"a"])
            lake.one(m.Configure(0, m.Settings(age_s=AGE_S)), m.Done, b"longer")
            assert lake.bodies(name=b"longer") == []

    def test_many_are_swept_in_slices(self, lake: Lake) -> None:
        lake.create(age_s=AGE_S)
        for _ in range(40):
            lake.append(bytes(100_000))
            lake.advance(1)
        lake.advance(AGE_S)
        assert lake.describe().info.bytes_kept == 0


class TestSize:
    def test_the_oldest_go(self, lake: Lake) -> None:
        lake.create(bytes_max=100_000)
        for at in range(1000):
            lake.append(b"%04d" % at * 100)
            lake.settle()
            assert lake.describe().info.bytes_kept <= 100_500
        kept = lake.bodies()
        assert kept == [b"%04d" % at * 100 for at in range(1000 - len(kept), 1000)]
        assert 200 < len(kept) <= 250

    def test_the_last_append_stays_whatever_it_weighs(self, lake: Lake) -> None:
        lake.create(bytes_max=100)
        lake.append(b"a" * 1000)
        lake.append(b"b" * 1000)
        lake.advance(60)
        assert lake.bodies() == [b"b" * 1000]

    def test_it_is_no_quota(self) -> None:
        limits = StreamLimits(keep_bytes=1000, bytes_max=1000)
        with lake_in(None, limits=limits) as lake:
            lake.create()
            for _ in range(10):
                lake.append(bytes(900))
            assert len(lake.bodies()) == 1

"""Records beyond the limits of age and size are removed, and hidden before that (RLA-29)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from millpond.actors.errors import Code
from millpond.actors.store.changes import Chunk, Position
from millpond.actors.streams import messages as m
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.metadata import AGES_MAX
from millpond.actors.streams.names import stream_cell
from millpond.actors.streams.settings import StreamLimits
from tests.actors.streams.harness import (
    NAME,
    START_MS,
    StreamHarness,
    at_timestamp,
    read_of,
    streams_in,
)

AGE_S = 100


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


class TestAge:
    def test_records_go_when_their_time_is_over(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        for at in range(10):
            streams.append(b"%d" % at)
            streams.advance(10)
        assert streams.bodies() == [b"%d" % at for at in range(1, 10)]
        streams.advance(45)
        assert streams.describe().info.trim_point == 5
        assert streams.bodies() == [b"%d" % at for at in range(5, 10)]
        streams.advance(1000)
        info = streams.describe().info
        assert (info.trim_point, info.tail, info.bytes_kept) == (
            10,
            10,
            0,
        )
        assert streams.append(b"x").first == 10

    @pytest.mark.parametrize("start", [0, Position(0, 0), at_timestamp(0)])
    def test_reads_do_not_wait_for_the_broom(self, streams: StreamHarness, start: object) -> None:
        """Nobody wakes the stream here, and it shows nothing too old all the same."""
        streams.create(age_s=AGE_S)
        for at in range(300):
            streams.append(b"%d" % at * 20)
            streams.clock.now += 1
            streams.work()
        shown = streams.bodies(start)  # type: ignore[arg-type]
        assert shown == [b"%d" % at * 20 for at in range(201, 300)]

    def test_within_one_append(self, streams: StreamHarness) -> None:
        """All records of an append arrive at once, whatever their timestamps are."""
        streams.create(age_s=AGE_S)
        streams.append(
            *(b"%d" % at for at in range(5)), timestamps=[START_MS + n for n in range(5)]
        )
        streams.advance(AGE_S - 0.001)
        assert len(streams.bodies()) == 5
        streams.advance(0.002)
        assert streams.bodies() == []
        streams.advance(1)
        assert streams.describe().info.trim_point == 5

    def test_rla_29_what_is_below_is_refused(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        streams.advance(50)
        streams.append(b"b")
        streams.advance(60)
        refused = streams.refused(read_of(0, from_start=True))
        assert (refused.code, refused.trim_point) == (Code.TRIMMED, 1)

    def test_a_wait_goes_on_when_all_is_too_old(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        streams.clock.now += AGE_S + 1
        port = streams.port()
        streams.say(port, read_of(wait_until=streams.now + 10))
        streams.settle()
        assert port.take() == []
        streams.append(b"b")
        (found,) = port.take()
        assert [body for span in found.spans for body in span.bodies] == [b"b"]  # type: ignore

    def test_a_stream_that_nobody_uses_is_swept_as_well(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a" * 1000)
        streams.advance(AGE_S - 1)
        assert streams.scheduler.view(stream_cell(NAME)) is None, "passivated"
        assert streams.store.usage.log_bytes > 1000
        streams.advance(2)
        assert streams.store.usage.log_bytes == 0

    def test_the_nodes_age_and_the_streams_own(self) -> None:
        with streams_in(None, limits=StreamLimits(age_s=AGE_S)) as streams:
            streams.create()
            streams.create(b"longer", age_s=10 * AGE_S)
            streams.append(b"a")
            streams.append(b"a", name=b"longer")
            streams.advance(2 * AGE_S)
            assert (streams.bodies(), streams.bodies(name=b"longer")) == ([], [b"a"])
            streams.one(m.Configure(0, m.Settings(age_s=AGE_S)), m.Done, b"longer")
            assert streams.bodies(name=b"longer") == [b"a"]
            streams.one(m.Configure(0, m.Settings(age_s=AGE_S), None, True), m.Done, b"longer")
            assert streams.bodies(name=b"longer") == []

    def test_many_are_swept_in_slices(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        for _ in range(40):
            streams.append(bytes(100_000))
            streams.advance(1)
        streams.advance(AGE_S)
        assert streams.describe().info.bytes_kept == 0


STAMPS = [1234, START_MS - 8 * 86_400_000, START_MS, START_MS + 10**9, 2**63]


class TestArrival:
    """S2X-60 to S2X-62: age counts from the arrival, whatever clients say of their records."""

    @pytest.mark.parametrize("stamp", STAMPS)
    @pytest.mark.parametrize("given", ["timestamp", "id", "both"])
    def test_a_record_is_there_for_the_age_and_no_longer(
        self, streams: StreamHarness, stamp: int, given: str
    ) -> None:
        streams.create(age_s=AGE_S)
        fields: dict[str, object] = {}
        if given != "id":
            fields["timestamps"] = [stamp, None]
        if given != "timestamp":
            fields["ms"] = stamp
        streams.append(b"a", b"b", **fields)
        streams.advance(AGE_S / 2)
        streams.append(b"c")
        if streams.folder is not None:
            streams.restart()
        streams.advance(AGE_S / 2 - 1)
        assert streams.bodies() == [b"a", b"b", b"c"]
        streams.advance(2)
        assert streams.bodies() == [b"c"]
        assert streams.bodies(at_timestamp(0)) == [b"c"]
        assert streams.bodies(Position(0, 0)) == [b"c"]
        streams.advance(AGE_S)
        info = streams.describe().info
        assert (info.trim_point, info.tail, info.bytes_kept) == (3, 3, 0)

    def test_behind_records_of_the_future(self, streams: StreamHarness) -> None:
        """Their timestamp and the time of their id are those of the latest one; they age by their
        own arrival, whoever appends them."""
        streams.create(age_s=AGE_S, content_type=b"text/plain")
        far = START_MS * 2
        streams.append(b"a", timestamps=[far], ms=far)
        append = m.WriterAppend(0, [b"b"], writer=b"w", batch=1)
        streams.one(append, m.WriterStatus)
        streams.one(d.DurableAppend(0, [b"c"], b"text/plain"), d.DurableAppended)
        streams.advance(AGE_S - 1)
        assert streams.bodies() == [b"a", b"b", b"c"]
        streams.advance(3)
        assert streams.describe().info.trim_point == 3

    def test_a_clock_set_back_hides_nothing(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        streams.clock.now -= AGE_S / 2
        streams.append(b"b")
        streams.advance(AGE_S)
        assert streams.bodies() == [b"a", b"b"]
        streams.advance(AGE_S / 2 + 1)
        assert streams.bodies() == []

    def test_of_an_older_folder(self, tmp_path: Path) -> None:
        """Chunks that do not say when they arrived."""
        data = msgspec.msgpack.encode([[b"old"], None, None, None])
        with streams_in(tmp_path / "data") as streams:
            streams.create(age_s=AGE_S)
            for first, stamp in enumerate((1234, 2**62)):
                position = Position(START_MS, first)
                chunk = Chunk(first, 1, stamp, stamp, position, position, data)
                streams.store.write(stream_cell(NAME), [chunk])
                streams.settle()
            streams.restart()
            streams.advance(AGE_S - 1)
            assert streams.bodies() == [b"old", b"old"]
            streams.advance(3)
            assert streams.bodies() == []
            assert streams.describe().info.trim_point == 2

    def test_a_long_absence_is_read_over(self, streams: StreamHarness) -> None:
        """Much that is too old, and a read of one record before any of it is swept."""
        streams.create(age_s=AGE_S)
        for at in range(2000):
            streams.append(b"%d" % at, timestamps=[at])
        streams.advance(AGE_S - 1)
        streams.append(b"young", timestamps=[7])
        streams.clock.now += 2
        assert streams.bodies(count=1) == [b"young"]


def configure(streams: StreamHarness, age_s: int | None) -> None:
    streams.one(m.Configure(0, m.Settings(age_s=age_s)), m.Done)


def restarted(streams: StreamHarness) -> None:
    if streams.folder is not None:
        streams.restart()


class TestAgeThatChanges:
    """S2X-61: a record has the age that was set when it was appended."""

    def test_a_longer_age_keeps_nothing_that_was_there(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        configure(streams, 3 * AGE_S)
        streams.append(b"b")
        restarted(streams)
        streams.advance(AGE_S - 1)
        assert streams.bodies() == [b"a", b"b"]
        streams.advance(2)
        assert streams.bodies() == [b"b"]
        assert streams.bodies(at_timestamp(0)) == [b"b"]
        assert streams.describe().info.trim_point == 1
        streams.advance(2 * AGE_S)
        assert streams.describe().info.trim_point == 2

    def test_a_shorter_age_takes_nothing_that_was_there(self, streams: StreamHarness) -> None:
        """And a record goes in its turn, not before an earlier one."""
        streams.create(age_s=3 * AGE_S)
        streams.append(b"a")
        streams.advance(AGE_S)
        configure(streams, AGE_S)
        streams.append(b"b")
        restarted(streams)
        streams.advance(2 * AGE_S - 1)
        assert streams.bodies() == [b"a", b"b"]
        assert streams.bodies(1) == [b"b"]
        streams.advance(2)
        assert streams.bodies() == []
        streams.append(b"c")
        streams.advance(AGE_S + 1)
        assert streams.bodies() == []
        assert streams.describe().info.trim_point == 3

    def test_none_for_a_time(self, streams: StreamHarness) -> None:
        """Records that were appended while there was no age stay until they are trimmed."""
        streams.create()
        streams.append(b"a")
        configure(streams, AGE_S)
        streams.append(b"b")
        restarted(streams)
        streams.advance(10 * AGE_S)
        assert streams.bodies() == [b"a", b"b"]
        streams.one(m.Trim(0, 1), m.Done)
        assert streams.bodies() == []
        streams.advance(2)
        assert streams.describe().info.trim_point == 2

    def test_records_of_an_age_that_is_over_are_trimmed_where_there_is_none_now(
        self, streams: StreamHarness
    ) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        configure(streams, 0)
        streams.append(b"b")
        restarted(streams)
        streams.advance(AGE_S + 2)
        assert streams.bodies() == [b"b"]
        streams.advance(100 * AGE_S)
        assert (streams.bodies(), streams.describe().info.trim_point) == ([b"b"], 1)

    def test_the_age_of_the_node_is_that_of_its_records(self, tmp_path: Path) -> None:
        with streams_in(tmp_path / "data", limits=StreamLimits(age_s=AGE_S)) as streams:
            streams.create()
            streams.append(b"a")
            configure(streams, 0)
            streams.append(b"b")
            restarted(streams)
            streams.advance(AGE_S + 2)
            assert streams.bodies() == [b"b"]

    def test_one_that_is_changed_often_is_never_shorter(self, streams: StreamHarness) -> None:
        """The stream remembers some changes, and counts the longest age of older ones."""
        ages = [AGE_S, 2 * AGE_S, *range(3 * AGE_S, 3 * AGE_S + 2 * AGES_MAX), AGE_S]
        streams.create(age_s=ages[0])
        for before, after in pairwise(ages):
            streams.append(b"%d" % before)
            configure(streams, after)
        count = len(ages) - 1
        restarted(streams)
        streams.advance(3 * AGE_S - 1)
        assert len(streams.bodies()) >= count - 2
        streams.advance(2 * AGES_MAX + 2)
        assert streams.describe().info.trim_point == count

    def test_settings_without_another_age_are_no_change(self, streams: StreamHarness) -> None:
        streams.create(age_s=AGE_S)
        streams.append(b"a")
        streams.one(m.Configure(0, m.Settings(age_s=AGE_S, bytes_max=5)), m.Done)
        streams.advance(AGE_S + 1)
        assert streams.bodies() == []

    def test_a_stream_of_the_same_name_knows_nothing_of_it(self, streams: StreamHarness) -> None:
        streams.create(age_s=3 * AGE_S)
        streams.append(b"a")
        configure(streams, AGE_S)
        streams.one(m.Delete(0), m.Done)
        streams.create(age_s=AGE_S)
        streams.append(b"b")
        restarted(streams)
        streams.advance(AGE_S + 1)
        assert streams.bodies() == []


class TestSize:
    def test_the_oldest_go(self, streams: StreamHarness) -> None:
        streams.create(bytes_max=100_000)
        for at in range(1000):
            streams.append(b"%04d" % at * 100)
            streams.settle()
            assert streams.describe().info.bytes_kept <= 100_500
        kept = streams.bodies()
        assert kept == [b"%04d" % at * 100 for at in range(1000 - len(kept), 1000)]
        assert 200 < len(kept) <= 250

    def test_the_last_append_stays_whatever_it_weighs(self, streams: StreamHarness) -> None:
        streams.create(bytes_max=100)
        streams.append(b"a" * 1000)
        streams.append(b"b" * 1000)
        streams.advance(60)
        assert streams.bodies() == [b"b" * 1000]

    def test_it_is_no_quota(self) -> None:
        limits = StreamLimits(keep_bytes=1000, bytes_max=1000)
        with streams_in(None, limits=limits) as streams:
            streams.create()
            for _ in range(10):
                streams.append(bytes(900))
            assert len(streams.bodies()) == 1

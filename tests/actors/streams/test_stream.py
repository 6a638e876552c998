"""A stream as those who use it see it, in memory and on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from millpond.actors.errors import Code
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Position
from millpond.actors.store.interface import Seek
from millpond.actors.streams import messages as m
from millpond.actors.streams.settings import StreamLimits
from tests.actors.streams.harness import (
    NAME,
    START_MS,
    StreamHarness,
    at_timestamp,
    bodies_of,
    read_of,
    rows_of,
    streams_in,
)

U64_MAX = 2**64 - 1
GRACE_S = StreamLimits().trim_grace_s


@pytest.fixture(params=["memory", "disk"])
def streams(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StreamHarness]:
    with streams_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


class TestBeingThere:
    def test_s3p_19_20_a_stream_is_created_once(self, streams: StreamHarness) -> None:
        streams.create()
        assert streams.refused(m.Create(0)).code is Code.STREAM_EXISTS
        assert streams.directory.names() == [NAME]

    @pytest.mark.parametrize(
        "request_",
        [
            m.Append(0, [b"a"]),
            read_of(),
            m.Trim(0, 1),
            m.Trim(0, Position(1, 1)),
            m.Delete(0),
            m.Describe(0),
            m.CommitOffset(0, b"g", 1),
            m.GetGroupOffset(0, b"g"),
            m.Configure(0, m.Settings()),
        ],
    )
    def test_s3p_22_nothing_can_be_asked_of_a_stream_that_is_not_there(
        self, streams: StreamHarness, request_: m.Read
    ) -> None:
        assert streams.refused(request_).code is Code.UNKNOWN_STREAM
        assert streams.directory.names() == []

    def test_s3p_42_s3a_14_a_deleted_stream_begins_anew(self, streams: StreamHarness) -> None:
        streams.create()
        streams.append(b"old", ms=START_MS + 10**9)
        streams.one(m.CommitOffset(0, b"g", 1), m.Done)
        streams.one(m.Delete(0), m.Done)
        assert streams.refused(m.Delete(0)).code is Code.UNKNOWN_STREAM
        assert streams.directory.names() == []
        streams.create()
        assert streams.bodies() == []
        assert streams.append(b"new").first == 0
        assert streams.bodies() == [b"new"]
        assert streams.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset is None
        assert streams.read().spans[0].id == Position(START_MS, 0)

    def test_all_in_one_batch(self, streams: StreamHarness) -> None:
        """Requests see what came before them, and nothing of a former life."""
        streams.create()
        streams.append(b"former")
        replies = streams.ask(
            m.Append(0, [b"more"]),
            read_of(number=1),
            m.Delete(2),
            read_of(number=3),
            m.Create(4),
            read_of(number=5),
            m.Append(6, [b"a", b"b"]),
            m.Append(7, [b"c"]),
            read_of(number=8),
            m.Trim(9, 1),
            read_of(number=10),
            m.Append(11, [b"d"]),
            read_of(1, number=12),
        )
        found = [bodies_of(each) for each in replies if isinstance(each, m.Records)]
        assert found == [
            [b"former", b"more"],
            [],
            [b"a", b"b", b"c"],
            [b"b", b"c"],
            [b"b", b"c", b"d"],
        ]
        assert streams.bodies() == [b"b", b"c", b"d"]


class TestAppending:
    def test_sequences_are_dense_and_ids_go_up(self, streams: StreamHarness) -> None:
        """S3P-21, S3P-29, S3P-30, S3A-15: one ms for all of an append, the last id is answered."""
        streams.create()
        first = streams.append(b"a", b"b")
        assert (first.first, first.count, first.id) == (0, 2, Position(START_MS, 1))
        second = streams.append(b"c")
        assert (second.first, second.id) == (2, Position(START_MS, 2))
        streams.advance(5)
        assert streams.append(b"d").id == Position(START_MS + 5000, 0)
        assert [row[0] for row in rows_of(streams.read())] == [0, 1, 2, 3]

    def test_s3p_28_ids_of_the_client(self, streams: StreamHarness) -> None:
        streams.create()
        assert streams.append(b"a", ms=50).id == Position(50, 0)
        assert streams.append(b"b", ms=50).id == Position(50, 1)
        assert streams.append(b"c", b"d", ms=60).id == Position(60, 1)
        refused = streams.refused(m.Append(0, [b"e"], ms=59))
        assert (refused.code, refused.last_id) == (Code.NON_MONOTONIC_ID, Position(60, 1))
        assert streams.bodies() == [b"a", b"b", b"c", b"d"]

    def test_s3p_29_s3a_12_a_clock_behind_the_last_id_goes_on_with_it(
        self, streams: StreamHarness
    ) -> None:
        streams.create()
        streams.append(b"a", ms=START_MS + 1000)
        assert streams.append(b"b").id == Position(START_MS + 1000, 1)

    def test_s3a_11_the_largest_ms(self, streams: StreamHarness) -> None:
        streams.create()
        assert streams.append(b"a", ms=U64_MAX).id == Position(U64_MAX, 0)
        assert streams.append(b"b").id == Position(U64_MAX, 1)
        assert [row[2] for row in rows_of(streams.read())] == [
            Position(U64_MAX, 0),
            Position(U64_MAX, 1),
        ]

    def test_timestamps_never_fall_and_ids_do_not_move_them(self, streams: StreamHarness) -> None:
        """RLA-30; architecture: an S3P ID never changes a timestamp."""
        streams.create()
        streams.append(b"a", ms=5)
        streams.append(b"b", b"c", timestamps=[START_MS + 50, None])
        streams.append(b"d")
        given = [row[1] for row in rows_of(streams.read())]
        assert given == [START_MS, START_MS + 50, START_MS + 50, START_MS + 50]

    def test_headers_come_back(self, streams: StreamHarness) -> None:
        streams.create()
        headers = [[(b"a", b"1"), (b"a", b"2")], []]
        streams.append(b"x", b"y", headers=headers)
        streams.append(b"z")
        spans = streams.read().spans
        assert [span.headers for span in spans] == [headers, None]

    def test_conditions(self, streams: StreamHarness) -> None:
        """docs/reference/s2.md: the token first, then the sequence; nothing is stored."""
        streams.create()
        fence = m.Append(0, [b"me"], headers=[[(b"", b"fence")]])
        assert streams.one(fence, m.Appended).first == 0
        assert streams.describe().info.fence == b"me"
        both = m.Append(0, [b"a"], fencing_token=b"you", match_sequence=9)
        refused = streams.refused(both)
        assert (refused.code, refused.fencing_token) == (Code.FENCED, b"me")
        refused = streams.refused(m.Append(0, [b"a"], fencing_token=b"me", match_sequence=9))
        assert (refused.code, refused.tail) == (Code.SEQUENCE_MISMATCH, 1)
        assert streams.append(b"a", fencing_token=b"me", match_sequence=1).first == 1
        assert streams.append(b"without a token").first == 2
        streams.append(b"", headers=[[(b"", b"fence")]])
        assert streams.append(b"b", fencing_token=b"").first == 4

    def test_trim_commands(self, streams: StreamHarness) -> None:
        """docs/reference/s2.md: at most up to the command's own sequence, which stays."""
        streams.create()
        streams.append(b"a", b"b", b"c")
        point = (2).to_bytes(8)
        streams.append(b"d", point, b"e", headers=[[], [(b"", b"trim")], []])
        streams.advance(GRACE_S)
        assert streams.describe().info.trim_point == 2
        assert streams.bodies() == [b"c", b"d", point, b"e"]
        streams.append((99).to_bytes(8), headers=[[(b"", b"trim")]])
        streams.advance(GRACE_S)
        info = streams.describe().info
        assert (info.trim_point, info.tail) == (7, 7)

    @pytest.mark.parametrize(
        "bad",
        [
            m.Append(0, []),
            m.Append(0, [b"a"], headers=[]),
            m.Append(0, [b"a"], timestamps=[1, 2]),
            m.Append(0, [b"a"], headers=[[(b"", b"dance")]]),
            m.Append(0, [b"seven.."], headers=[[(b"", b"trim")]]),
            m.Append(0, [b"x" * 37], headers=[[(b"", b"fence")]]),
            m.Append(0, [b"a"], headers=[[(b"", b"fence"), (b"a", b"b")]]),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, streams: StreamHarness, bad: m.Append) -> None:
        streams.create()
        assert streams.refused(bad).code is Code.MALFORMED
        assert streams.describe().info.tail == 0


class TestReading:
    def test_from_anywhere(self, streams: StreamHarness) -> None:
        """S3P-33, S3P-35: inclusive."""
        streams.create()
        for at in range(40):
            streams.append(b"%d" % at, b"+%d" % at)
            streams.advance(1)
        everything = [row[3] for row in rows_of(streams.read())]
        for sequence, timestamp, position, _ in list(rows_of(streams.read())):
            assert streams.bodies(sequence) == everything[sequence:]
            assert streams.bodies(position) == everything[sequence:]
            found = streams.bodies(at_timestamp(timestamp))
            assert found == everything[sequence // 2 * 2 :]
        assert streams.bodies(Position(0, 0)) == everything
        assert streams.bodies(Position(START_MS + 3000, 2)) == everything[8:]

    def test_so_many_and_so_much(self, streams: StreamHarness) -> None:
        """S3P-33, S3A-29, RL-24: at least one record, whatever its size."""
        streams.create()
        for at in range(30):
            streams.append(b"%02d" % at * 50, b"x%d" % at)
        assert len(streams.bodies(7, count=5)) == 5
        assert streams.read(7, count=5).next == 12
        assert streams.bodies(6, bytes_max=1) == [b"03" * 50]
        assert streams.bodies(6, bytes_max=0) == [b"03" * 50]
        assert streams.bodies(6, bytes_max=102) == [b"03" * 50, b"x3"]
        collected: list[bytes] = []
        at = 0
        while len(collected) < 60:
            part = streams.read(at, count=7, bytes_max=300)
            assert 0 < sum(map(len, bodies_of(part))) <= 300
            collected += bodies_of(part)
            at = part.next
        assert collected == streams.bodies()

    def test_nothing_there(self, streams: StreamHarness) -> None:
        """S3P-32, RL-21, RLA-03."""
        streams.create()
        streams.append(b"a", b"b")
        for start in (2, 99):
            empty = streams.read(start)
            assert (list(empty.spans), empty.next, empty.tail) == ([], start, 2)
        assert streams.bodies(Position(U64_MAX, U64_MAX)) == []
        assert streams.bodies(at_timestamp(U64_MAX)) == []

    def test_what_a_view_cannot_show_is_skipped(self, streams: StreamHarness) -> None:
        streams.create()
        streams.append(b"", b"a", b"", b"", b"long", b"b")
        streams.append(b"me", b"c", headers=[[(b"", b"fence")], [(b"k", b"v")]])
        streams.append(b"", b"")
        view = m.RecordFilter(empty=False, commands=False, body_bytes_max=3)
        shown = streams.read(record_filter=view)
        assert [row[::3] for row in rows_of(shown)] == [(1, b"a"), (5, b"b"), (7, b"c")]
        assert shown.next == 10
        assert streams.counters.skipped == 7
        assert streams.bodies(2, record_filter=view, count=1) == [b"b"]
        last = streams.read(8, record_filter=view)
        assert (list(last.spans), last.next) == ([], 8)
        assert len(streams.bodies()) == 10

    def test_a_view_finds_what_lies_behind_much_that_it_cannot_show(
        self, streams: StreamHarness
    ) -> None:
        streams.create()
        for _ in range(50):
            streams.append(b"", headers=[[(b"k", b"v" * 200)]])
        streams.append(b"seen")
        view = m.RecordFilter(empty=False)
        assert streams.bodies(record_filter=view, bytes_max=10, count=1) == [b"seen"]


class TestTrimming:
    def test_s3p_41_by_sequence_and_by_id(self, streams: StreamHarness) -> None:
        streams.create()
        for at in range(10):
            streams.append(b"%d" % at)
            streams.advance(1)
        streams.one(m.Trim(0, 3), m.Done)
        assert streams.bodies() == [b"%d" % at for at in range(3, 10)]
        streams.one(m.Trim(0, Position(START_MS + 6000, 0)), m.Done)
        assert streams.bodies() == [b"6", b"7", b"8", b"9"]
        streams.one(m.Trim(0, Position(START_MS + 6000, 1)), m.Done)
        assert streams.bodies(Position(0, 0)) == [b"7", b"8", b"9"]
        streams.one(m.Trim(0, Position(0, 0)), m.Done)
        streams.one(m.Trim(0, 0), m.Done)
        assert streams.describe().info.trim_point == 7
        assert streams.read(2).spans[0].first == 7

    def test_within_one_append(self, streams: StreamHarness) -> None:
        streams.create()
        streams.append(*(b"%d" % at for at in range(10)))
        streams.one(m.Trim(0, Position(START_MS, 4)), m.Done)
        assert streams.bodies() == [b"%d" % at for at in range(4, 10)]
        assert streams.bodies(at_timestamp(0)) == [b"%d" % at for at in range(4, 10)]

    def test_rl_22_who_asks_for_what_is_trimmed_may_want_to_know(
        self, streams: StreamHarness
    ) -> None:
        streams.create()
        streams.append(b"a", b"b", b"c")
        streams.one(m.Trim(0, 2), m.Done)
        refused = streams.refused(read_of(1, from_start=True))
        assert (refused.code, refused.trim_point, refused.tail) == (Code.TRIMMED, 2, 3)
        assert streams.bodies(2, from_start=True) == [b"c"]

    def test_s3a_13_an_emptied_stream_goes_on(self, streams: StreamHarness) -> None:
        """S3P-30: the last id and the sequence outlive the records, also over restarts."""
        streams.create()
        streams.append(b"a", b"b", ms=START_MS + 10**6)
        streams.one(m.Trim(0, Position(U64_MAX, U64_MAX)), m.Done)
        assert streams.bodies() == []
        info = streams.describe().info
        assert (info.trim_point, info.tail, info.bytes_kept) == (
            2,
            2,
            0,
        )
        if streams.folder is not None:
            streams.restart()
        assert streams.refused(m.Append(0, [b"c"], ms=START_MS)).code is Code.NON_MONOTONIC_ID
        appended = streams.append(b"c")
        assert (appended.first, appended.id) == (2, Position(START_MS + 10**6, 2))
        assert streams.bodies() == [b"c"]


class TestGroups:
    def test_rl_27_28_commits(self, streams: StreamHarness) -> None:
        streams.create()
        assert streams.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset is None
        for offset in (0, 7, 3, U64_MAX):
            streams.one(m.CommitOffset(0, b"g", offset), m.Done)
            assert streams.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset == offset
        assert streams.one(m.GetGroupOffset(0, b"h"), m.GroupOffset).offset is None
        assert streams.describe().info.groups == {b"g": U64_MAX}

    def test_groups_are_bounded(self, tmp_path: Path) -> None:
        with streams_in(None, limits=StreamLimits(groups_max=2, node_groups_max=3)) as streams:
            streams.create()
            streams.create(b"other")
            for group in (b"a", b"b"):
                streams.one(m.CommitOffset(0, group, 1), m.Done)
            assert streams.refused(m.CommitOffset(0, b"c", 1)).code is Code.GROUPS_FULL
            streams.one(m.CommitOffset(0, b"a", 2), m.Done)
            streams.one(m.CommitOffset(0, b"a", 1), m.Done, b"other")
            assert streams.refused(m.CommitOffset(0, b"b", 1), b"other").code is Code.GROUPS_FULL
            streams.one(m.Delete(0), m.Done)
            streams.one(m.CommitOffset(0, b"b", 1), m.Done, b"other")
            long_name = streams.refused(m.CommitOffset(0, b"x" * 257, 1), b"other")
            assert long_name.code is Code.MALFORMED


class TestQuotas:
    def test_rla_33_a_full_stream_refuses(self) -> None:
        with streams_in(None, limits=StreamLimits(bytes_max=1000)) as streams:
            streams.create()
            streams.append(bytes(600))
            assert streams.refused(m.Append(0, [bytes(500)])).code is Code.BUFFER_FULL
            replies = streams.ask(*(m.Append(at, [bytes(150)]) for at in range(4)))
            assert [isinstance(each, m.Appended) for each in replies] == [True, True, False, False]
            streams.one(m.Trim(0, 1), m.Done)
            streams.append(bytes(500))

    def test_all_streams_together(self, tmp_path: Path) -> None:
        with streams_in(tmp_path, limits=StreamLimits(node_bytes_max=1000)) as streams:
            streams.create()
            streams.create(b"other")
            streams.append(bytes(600))
            refused = streams.refused(m.Append(0, [bytes(500)]), b"other")
            assert refused.code is Code.BUFFER_FULL
            streams.one(m.Delete(0), m.Done)
            assert streams.store.usage.log_bytes == 0
            streams.append(bytes(500), name=b"other")
            streams.restart()
            assert 500 < streams.store.usage.log_bytes < 600

    def test_a_store_that_takes_nothing(self, tmp_path: Path) -> None:
        limits = StreamLimits(is_durable=True)
        with streams_in(tmp_path, limits=limits) as streams:
            streams.create()
            streams.append(b"a")
            streams.store.health.is_writable = False
            assert streams.refused(m.Append(0, [b"b"])).code is Code.STORAGE_FAILED
            assert streams.bodies() == [b"a"]
            streams.store.health.is_writable = True
            assert streams.append(b"b").first == 1


def test_a_seek_may_say_more_than_one_thing(streams: StreamHarness) -> None:
    """From a sequence on, and of that what is young enough."""
    streams.create()
    for at in range(20):
        streams.append(b"%d" % at)
        streams.advance(1)
    seek = Seek(SeekBy.TIMESTAMP, sequence=12, timestamp=START_MS + 5000)
    assert streams.bodies(seek) == [b"%d" % at for at in range(12, 20)]
    seek = Seek(SeekBy.TIMESTAMP, sequence=5, timestamp=START_MS + 12_000)
    assert streams.bodies(seek) == [b"%d" % at for at in range(12, 20)]


def test_a_read_by_chunk_ends_with_one(streams: StreamHarness) -> None:
    streams.create()
    for first in range(0, 40, 10):
        streams.append(*[b"%05d" % n for n in range(first, first + 10)])
    assert len(streams.bodies(bytes_max=30)) == 6
    found = streams.read(bytes_max=30, by_chunk=True)
    assert (len(bodies_of(found)), found.next) == (10, 10)
    assert len(streams.bodies(count=5, bytes_max=30, by_chunk=True)) == 5


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    with streams_in(tmp_path) as streams:
        streams.create(age_s=10**6, content_type=b"text/plain")
        for at in range(300):
            streams.append(b"%d" % at * 30)
            streams.advance(1)
        streams.one(m.Trim(0, 100), m.Done)
        streams.one(m.CommitOffset(0, b"g", 42), m.Done)
        streams.append(b"me", headers=[[(b"", b"fence")]])
        before, rows = streams.describe(), list(rows_of(streams.read()))
        streams.restart()
        # The bytes freed by a trim within the stream are estimated until the file was read.
        assert 0.8 < streams.describe().info.bytes_kept / before.info.bytes_kept < 1.2
        after = streams.describe().info
        assert msgspec.structs.replace(after, bytes_kept=before.info.bytes_kept) == before.info
        assert list(rows_of(streams.read())) == rows
        assert streams.directory.names() == [NAME]
        assert before.settings == m.Settings(10**6, None, b"text/plain")
        streams.one(m.Delete(0), m.Done)
        streams.restart()
        assert streams.directory.names() == []
        assert streams.refused(read_of()).code is Code.UNKNOWN_STREAM


def test_a_stream_deleted_in_the_batch_that_fills_it_leaves_no_weight(
    streams: StreamHarness,
) -> None:
    streams.create()
    streams.append(b"kept")
    before = streams.store.usage.log_bytes
    for _ in range(3):
        append = [m.Append(each, [bytes(1000)], ms=each) for each in (1, 2)]
        streams.ask(m.Create(0), *append, m.Delete(3), m.Create(4), name=b"short")
        assert streams.store.usage.log_bytes == before
        streams.ask(m.Delete(0), name=b"short")

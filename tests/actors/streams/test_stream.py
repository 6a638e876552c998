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
from tests.actors.streams.lake import (
    NAME,
    START_MS,
    Lake,
    at_timestamp,
    bodies_of,
    lake_in,
    read_of,
    rows_of,
)

U64_MAX = 2**64 - 1


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lake]:
    with lake_in(None if request.param == "memory" else tmp_path / "data") as opened:
        yield opened


class TestBeingThere:
    def test_s3p_19_20_a_stream_is_created_once(self, lake: Lake) -> None:
        lake.create()
        assert lake.refused(m.Create(0)).code is Code.STREAM_EXISTS
        assert lake.directory.names() == [NAME]

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
        self, lake: Lake, request_: m.Read
    ) -> None:
        assert lake.refused(request_).code is Code.UNKNOWN_STREAM
        assert lake.directory.names() == []

    def test_s3p_42_s3a_14_a_deleted_stream_begins_anew(self, lake: Lake) -> None:
        lake.create()
        lake.append(b"old", ms=START_MS + 10**9)
        lake.one(m.CommitOffset(0, b"g", 1), m.Done)
        lake.one(m.Delete(0), m.Done)
        assert lake.refused(m.Delete(0)).code is Code.UNKNOWN_STREAM
        assert lake.directory.names() == []
        lake.create()
        assert lake.bodies() == []
        assert lake.append(b"new").first == 0
        assert lake.bodies() == [b"new"]
        assert lake.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset is None
        assert lake.read().spans[0].id == Position(START_MS, 0)

    def test_all_in_one_batch(self, lake: Lake) -> None:
        """Requests see what came before them, and nothing of a former life."""
        lake.create()
        lake.append(b"former")
        replies = lake.ask(
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
        assert lake.bodies() == [b"b", b"c", b"d"]


class TestAppending:
    def test_sequences_are_dense_and_ids_go_up(self, lake: Lake) -> None:
        """S3P-21, S3P-29, S3P-30, S3A-15: one ms for all of an append, the last id is answered."""
        lake.create()
        first = lake.append(b"a", b"b")
        assert (first.first, first.count, first.id) == (0, 2, Position(START_MS, 1))
        second = lake.append(b"c")
        assert (second.first, second.id) == (2, Position(START_MS, 2))
        lake.advance(5)
        assert lake.append(b"d").id == Position(START_MS + 5000, 0)
        assert [row[0] for row in rows_of(lake.read())] == [0, 1, 2, 3]

    def test_s3p_28_ids_of_the_client(self, lake: Lake) -> None:
        lake.create()
        assert lake.append(b"a", ms=50).id == Position(50, 0)
        assert lake.append(b"b", ms=50).id == Position(50, 1)
        assert lake.append(b"c", b"d", ms=60).id == Position(60, 1)
        refused = lake.refused(m.Append(0, [b"e"], ms=59))
        assert (refused.code, refused.last_id) == (Code.NON_MONOTONIC_ID, Position(60, 1))
        assert lake.bodies() == [b"a", b"b", b"c", b"d"]

    def test_s3p_29_s3a_12_a_clock_behind_the_last_id_goes_on_with_it(self, lake: Lake) -> None:
        lake.create()
        lake.append(b"a", ms=START_MS + 1000)
        assert lake.append(b"b").id == Position(START_MS + 1000, 1)

    def test_s3a_11_the_largest_ms(self, lake: Lake) -> None:
        lake.create()
        assert lake.append(b"a", ms=U64_MAX).id == Position(U64_MAX, 0)
        assert lake.append(b"b").id == Position(U64_MAX, 1)
        assert [row[2] for row in rows_of(lake.read())] == [
            Position(U64_MAX, 0),
            Position(U64_MAX, 1),
        ]

    def test_timestamps_never_fall_and_ids_do_not_move_them(self, lake: Lake) -> None:
        """RLA-30; architecture: an S3P ID never changes a timestamp."""
        lake.create()
        lake.append(b"a", ms=5)
        lake.append(b"b", b"c", timestamps=[START_MS + 50, None])
        lake.append(b"d")
        given = [row[1] for row in rows_of(lake.read())]
        assert given == [START_MS, START_MS + 50, START_MS + 50, START_MS + 50]

    def test_headers_come_back(self, lake: Lake) -> None:
        lake.create()
        headers = [[(b"a", b"1"), (b"a", b"2")], []]
        lake.append(b"x", b"y", headers=headers)
        lake.append(b"z")
        spans = lake.read().spans
        assert [span.headers for span in spans] == [headers, None]

    def test_conditions(self, lake: Lake) -> None:
        """http.md A.6: the token first, then the sequence; nothing is stored."""
        lake.create()
        fence = m.Append(0, [b"me"], headers=[[(b"", b"fence")]])
        assert lake.one(fence, m.Appended).first == 0
        assert lake.describe().info.fence == b"me"
        both = m.Append(0, [b"a"], fencing_token=b"you", match_sequence=9)
        refused = lake.refused(both)
        assert (refused.code, refused.fencing_token) == (Code.FENCED, b"me")
        refused = lake.refused(m.Append(0, [b"a"], fencing_token=b"me", match_sequence=9))
        assert (refused.code, refused.tail) == (Code.SEQUENCE_MISMATCH, 1)
        assert lake.append(b"a", fencing_token=b"me", match_sequence=1).first == 1
        assert lake.append(b"without a token").first == 2
        lake.append(b"", headers=[[(b"", b"fence")]])
        assert lake.append(b"b", fencing_token=b"").first == 4

    def test_trim_commands(self, lake: Lake) -> None:
        """http.md A.6: at most up to the command's own sequence, which stays."""
        lake.create()
        lake.append(b"a", b"b", b"c")
        point = (2).to_bytes(8)
        lake.append(b"d", point, b"e", headers=[[], [(b"", b"trim")], []])
        assert lake.describe().info.trim_point == 2
        assert lake.bodies() == [b"c", b"d", point, b"e"]
        lake.append((99).to_bytes(8), headers=[[(b"", b"trim")]])
        info = lake.describe().info
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
    def test_what_makes_no_sense_is_refused(self, lake: Lake, bad: m.Append) -> None:
        lake.create()
        assert lake.refused(bad).code is Code.MALFORMED
        assert lake.describe().info.tail == 0


class TestReading:
    def test_from_anywhere(self, lake: Lake) -> None:
        """S3P-33, S3P-35: inclusive."""
        lake.create()
        for at in range(40):
            lake.append(b"%d" % at, b"+%d" % at)
            lake.advance(1)
        everything = [row[3] for row in rows_of(lake.read())]
        for sequence, timestamp, position, _ in list(rows_of(lake.read())):
            assert lake.bodies(sequence) == everything[sequence:]
            assert lake.bodies(position) == everything[sequence:]
            found = lake.bodies(at_timestamp(timestamp))
            assert found == everything[sequence // 2 * 2 :]
        assert lake.bodies(Position(0, 0)) == everything
        assert lake.bodies(Position(START_MS + 3000, 2)) == everything[8:]

    def test_so_many_and_so_much(self, lake: Lake) -> None:
        """S3P-33, S3A-29, RL-24: at least one record, whatever it weighs."""
        lake.create()
        for at in range(30):
            lake.append(b"%02d" % at * 50, b"x%d" % at)
        assert len(lake.bodies(7, count=5)) == 5
        assert lake.read(7, count=5).next == 12
        assert lake.bodies(6, bytes_max=1) == [b"03" * 50]
        assert lake.bodies(6, bytes_max=0) == [b"03" * 50]
        assert lake.bodies(6, bytes_max=102) == [b"03" * 50, b"x3"]
        collected: list[bytes] = []
        at = 0
        while len(collected) < 60:
            part = lake.read(at, count=7, bytes_max=300)
            assert 0 < sum(map(len, bodies_of(part))) <= 300
            collected += bodies_of(part)
            at = part.next
        assert collected == lake.bodies()

    def test_nothing_there(self, lake: Lake) -> None:
        """S3P-32, RL-21, RLA-03."""
        lake.create()
        lake.append(b"a", b"b")
        for start in (2, 99):
            empty = lake.read(start)
            assert (list(empty.spans), empty.next, empty.tail) == ([], start, 2)
        assert lake.bodies(Position(U64_MAX, U64_MAX)) == []
        assert lake.bodies(at_timestamp(U64_MAX)) == []

    def test_what_a_view_cannot_show_is_skipped(self, lake: Lake) -> None:
        lake.create()
        lake.append(b"", b"a", b"", b"", b"long", b"b")
        lake.append(b"me", b"c", headers=[[(b"", b"fence")], [(b"k", b"v")]])
        lake.append(b"", b"")
        view = m.RecordFilter(empty=False, commands=False, body_bytes_max=3)
        shown = lake.read(record_filter=view)
        assert [row[::3] for row in rows_of(shown)] == [(1, b"a"), (5, b"b"), (7, b"c")]
        assert shown.next == 10
        assert lake.counters.skipped == 7
        assert lake.bodies(2, record_filter=view, count=1) == [b"b"]
        last = lake.read(8, record_filter=view)
        assert (list(last.spans), last.next) == ([], 8)
        assert len(lake.bodies()) == 10

    def test_a_view_finds_what_lies_behind_much_that_it_cannot_show(self, lake: Lake) -> None:
        lake.create()
        for _ in range(50):
            lake.append(b"", headers=[[(b"k", b"v" * 200)]])
        lake.append(b"seen")
        view = m.RecordFilter(empty=False)
        assert lake.bodies(record_filter=view, bytes_max=10, count=1) == [b"seen"]


class TestTrimming:
    def test_s3p_41_by_sequence_and_by_id(self, lake: Lake) -> None:
        lake.create()
        for at in range(10):
            lake.append(b"%d" % at)
            lake.advance(1)
        lake.one(m.Trim(0, 3), m.Done)
        assert lake.bodies() == [b"%d" % at for at in range(3, 10)]
        lake.one(m.Trim(0, Position(START_MS + 6000, 0)), m.Done)
        assert lake.bodies() == [b"6", b"7", b"8", b"9"]
        lake.one(m.Trim(0, Position(START_MS + 6000, 1)), m.Done)
        assert lake.bodies(Position(0, 0)) == [b"7", b"8", b"9"]
        lake.one(m.Trim(0, Position(0, 0)), m.Done)
        lake.one(m.Trim(0, 0), m.Done)
        assert lake.describe().info.trim_point == 7
        assert lake.read(2).spans[0].first == 7

    def test_within_one_append(self, lake: Lake) -> None:
        lake.create()
        lake.append(*(b"%d" % at for at in range(10)))
        lake.one(m.Trim(0, Position(START_MS, 4)), m.Done)
        assert lake.bodies() == [b"%d" % at for at in range(4, 10)]
        assert lake.bodies(at_timestamp(0)) == [b"%d" % at for at in range(4, 10)]

    def test_rl_22_who_asks_for_what_is_trimmed_may_want_to_know(self, lake: Lake) -> None:
        lake.create()
        lake.append(b"a", b"b", b"c")
        lake.one(m.Trim(0, 2), m.Done)
        refused = lake.refused(read_of(1, from_start=True))
        assert (refused.code, refused.trim_point, refused.tail) == (Code.TRIMMED, 2, 3)
        assert lake.bodies(2, from_start=True) == [b"c"]

    def test_s3a_13_an_emptied_stream_goes_on(self, lake: Lake) -> None:
        """S3P-30: the last id and the sequence outlive the records, also over restarts."""
        lake.create()
        lake.append(b"a", b"b", ms=START_MS + 10**6)
        lake.one(m.Trim(0, Position(U64_MAX, U64_MAX)), m.Done)
        assert lake.bodies() == []
        info = lake.describe().info
        assert (info.trim_point, info.tail, info.bytes_kept) == (
            2,
            2,
            0,
        )
        if lake.folder is not None:
            lake.restart()
        assert lake.refused(m.Append(0, [b"c"], ms=START_MS)).code is Code.NON_MONOTONIC_ID
        appended = lake.append(b"c")
        assert (appended.first, appended.id) == (2, Position(START_MS + 10**6, 2))
        assert lake.bodies() == [b"c"]


class TestGroups:
    def test_rl_27_28_commits(self, lake: Lake) -> None:
        lake.create()
        assert lake.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset is None
        for offset in (0, 7, 3, U64_MAX):
            lake.one(m.CommitOffset(0, b"g", offset), m.Done)
            assert lake.one(m.GetGroupOffset(0, b"g"), m.GroupOffset).offset == offset
        assert lake.one(m.GetGroupOffset(0, b"h"), m.GroupOffset).offset is None
        assert lake.describe().info.groups == {b"g": U64_MAX}

    def test_groups_are_bounded(self, tmp_path: Path) -> None:
        with lake_in(None, limits=StreamLimits(groups_max=2, node_groups_max=3)) as lake:
            lake.create()
            lake.create(b"other")
            for group in (b"a", b"b"):
                lake.one(m.CommitOffset(0, group, 1), m.Done)
            assert lake.refused(m.CommitOffset(0, b"c", 1)).code is Code.GROUPS_FULL
            lake.one(m.CommitOffset(0, b"a", 2), m.Done)
            lake.one(m.CommitOffset(0, b"a", 1), m.Done, b"other")
            assert lake.refused(m.CommitOffset(0, b"b", 1), b"other").code is Code.GROUPS_FULL
            lake.one(m.Delete(0), m.Done)
            lake.one(m.CommitOffset(0, b"b", 1), m.Done, b"other")
            assert lake.refused(m.CommitOffset(0, b"", 1), b"other").code is Code.MALFORMED


class TestQuotas:
    def test_rla_33_a_full_stream_refuses(self) -> None:
        with lake_in(None, limits=StreamLimits(bytes_max=1000)) as lake:
            lake.create()
            lake.append(bytes(600))
            assert lake.refused(m.Append(0, [bytes(500)])).code is Code.BUFFER_FULL
            replies = lake.ask(*(m.Append(at, [bytes(150)]) for at in range(4)))
            assert [isinstance(each, m.Appended) for each in replies] == [True, True, False, False]
            lake.one(m.Trim(0, 1), m.Done)
            lake.append(bytes(500))

    def test_all_streams_together(self, tmp_path: Path) -> None:
        with lake_in(tmp_path, limits=StreamLimits(node_bytes_max=1000)) as lake:
            lake.create()
            lake.create(b"other")
            lake.append(bytes(600))
            refused = lake.refused(m.Append(0, [bytes(500)]), b"other")
            assert refused.code is Code.BUFFER_FULL
            lake.one(m.Delete(0), m.Done)
            assert lake.store.usage.log_bytes == 0
            lake.append(bytes(500), name=b"other")
            lake.restart()
            assert 500 < lake.store.usage.log_bytes < 600

    def test_a_store_that_takes_nothing(self, tmp_path: Path) -> None:
        limits = StreamLimits(is_durable=True)
        with lake_in(tmp_path, limits=limits) as lake:
            lake.create()
            lake.append(b"a")
            lake.store.health.is_writable = False
            assert lake.refused(m.Append(0, [b"b"])).code is Code.STORAGE_FAILED
            assert lake.bodies() == [b"a"]
            lake.store.health.is_writable = True
            assert lake.append(b"b").first == 1


def test_a_seek_may_say_more_than_one_thing(lake: Lake) -> None:
    """From a sequence on, and of that what is young enough."""
    lake.create()
    for at in range(20):
        lake.append(b"%d" % at)
        lake.advance(1)
    seek = Seek(SeekBy.TIMESTAMP, sequence=12, timestamp=START_MS + 5000)
    assert lake.bodies(seek) == [b"%d" % at for at in range(12, 20)]
    seek = Seek(SeekBy.TIMESTAMP, sequence=5, timestamp=START_MS + 12_000)
    assert lake.bodies(seek) == [b"%d" % at for at in range(12, 20)]


def test_a_read_by_chunk_ends_with_one(lake: Lake) -> None:
    lake.create()
    for first in range(0, 40, 10):
        lake.append(*[b"%05d" % n for n in range(first, first + 10)])
    assert len(lake.bodies(bytes_max=30)) == 6
    found = lake.read(bytes_max=30, by_chunk=True)
    assert (len(bodies_of(found)), found.next) == (10, 10)
    assert len(lake.bodies(count=5, bytes_max=30, by_chunk=True)) == 5


def test_a_restart_forgets_nothing(tmp_path: Path) -> None:
    with lake_in(tmp_path) as lake:
        lake.create(age_s=10**6, content_type=b"text/plain")
        for at in range(300):
            lake.append(b"%d" % at * 30)
            lake.advance(1)
        lake.one(m.Trim(0, 100), m.Done)
        lake.one(m.CommitOffset(0, b"g", 42), m.Done)
        lake.append(b"me", headers=[[(b"", b"fence")]])
        before, rows = lake.describe(), list(rows_of(lake.read()))
        lake.restart()
        # What a trim within the stream was worth is a guess until the file was looked at.
        assert 0.8 < lake.describe().info.bytes_kept / before.info.bytes_kept < 1.2
        after = lake.describe().info
        assert msgspec.structs.replace(after, bytes_kept=before.info.bytes_kept) == before.info
        assert list(rows_of(lake.read())) == rows
        assert lake.directory.names() == [NAME]
        assert before.settings == m.Settings(10**6, None, b"text/plain")
        lake.one(m.Delete(0), m.Done)
        lake.restart()
        assert lake.directory.names() == []
        assert lake.refused(read_of()).code is Code.UNKNOWN_STREAM


def test_a_stream_deleted_in_the_batch_that_fills_it_leaves_no_weight(lake: Lake) -> None:
    lake.create()
    lake.append(b"kept")
    before = lake.store.usage.log_bytes
    for _ in range(3):
        append = [m.Append(each, [bytes(1000)], ms=each) for each in (1, 2)]
        lake.ask(m.Create(0), *append, m.Delete(3), m.Create(4), name=b"short")
        assert lake.store.usage.log_bytes == before
        lake.ask(m.Delete(0), name=b"short")

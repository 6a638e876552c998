"""Reading a journal after a stop of any kind: torn tails are cut, damage is reported."""

from __future__ import annotations

from pathlib import Path
from random import Random
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.journal.format import (
    GROUP_SIZE,
    HEADER_SIZE,
    RECORD_SIZE,
    Cut,
    Header,
    Rewrite,
    UnknownVersion,
    decode_header,
    encode_group,
    encode_header,
    encode_record,
)
from millpond.actors.store.journal.reader import JournalContents, read_journal, segment_numbers
from millpond.actors.store.journal.segments import MemorySegments, SegmentEnd
from millpond.actors.store.journal.writer import CommitGroup, Journal, JournalTail, segment_path

SALT = 99
ROOM = bytes(512)
DISK = OsDisk()

Records = list[tuple[int, bytes]]


def group(records: Records, synced_lsn: int, salt: int = SALT) -> bytes:
    """Records are (lsn, name); their bodies are "body of " and the lsn."""
    encoded = [
        encode_record(salt, lsn, PartitionKind.QUEUE, name, b"body of %d" % lsn)
        for lsn, name in records
    ]
    return encode_group(salt, encoded, records[0][0], synced_lsn)


def put(folder: Path, number: int, first_lsn: int, *groups: bytes, **header: object) -> bytearray:
    """Write a segment; give its bytes."""
    start = encode_header(Header(number, first_lsn, SALT, **header))  # type: ignore[arg-type]
    data = b"".join((start, *groups, ROOM))
    segment_path(folder, number).write_bytes(data)
    return bytearray(data)


def read(folder: Path) -> JournalContents:
    """Without the link to the last segment, which has tests of its own."""
    found = read_journal(folder, DISK)
    found.tail = msgspec.structs.replace(found.tail, previous=SegmentEnd())
    return found


def cut(end: int) -> Cut:
    """All of a segment up to there was synced, and nothing after it counts."""
    return Cut(end, end)


def lsns(found: JournalContents) -> list[int]:
    return [record.lsn for _, record in found.records]


def spoil(folder: Path, number: int, at: int, size: int = 1) -> None:
    data = bytearray(segment_path(folder, number).read_bytes())
    for each in range(at, at + size):
        data[each] ^= 0xA5
    segment_path(folder, number).write_bytes(data)


ONE = group([(1, b"a"), (2, b"b")], 0)
TWO = group([(3, b"c"), (4, b"a")], 2)
THREE = group([(5, b"b")], 4)
BODY = GROUP_SIZE + RECORD_SIZE + 1
"""Of a group: where the body of its first record is, whose name has one byte."""


class TestSound:
    @pytest.mark.parametrize("is_made", [True, False])
    def test_no_journal_holds_nothing(self, tmp_path: Path, is_made: bool) -> None:
        found = read(tmp_path if is_made else tmp_path / "none")
        assert (found.records, found.tail, found.damages) == ([], JournalTail(), [])

    def test_all_records_in_order_of_segments(self, tmp_path: Path) -> None:
        put(tmp_path, 10, 5, THREE, last_id=77)
        put(tmp_path, 9, 1, ONE, TWO, last_id=55)
        found = read(tmp_path)
        assert [(number, record.lsn) for number, record in found.records] == [
            (9, 1), (9, 2), (9, 3), (9, 4), (10, 5),
        ]  # fmt: skip
        assert [record.body for _, record in found.records][-1] == b"body of 5"
        assert (found.tail, found.last_id, found.synced_lsn) == (JournalTail(10, 5), 77, 4)
        assert (found.damages, found.torn_bytes) == ([], 0)
        assert found.segments == {
            number: segment_path(tmp_path, number).stat().st_size for number in (9, 10)
        }

    def test_numbers_go_on_after_segments_that_are_gone(self, tmp_path: Path) -> None:
        """All that was in them is in files or was carried, and here nothing was written after."""
        put(tmp_path, 12, 1000)
        found = read(tmp_path)
        assert (found.records, found.tail.number, found.tail.lsn >= 0) == ([], 12, True)

    def test_other_files_are_left_alone(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE)
        for name in ("1.journal.bak", "x.journal", "notes.txt", ".journal"):
            (tmp_path / name).write_bytes(b"something else")
        assert segment_numbers(tmp_path, DISK) == [1]
        assert lsns(read(tmp_path)) == [1, 2]

    def test_reading_changes_nothing(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO)
        put(tmp_path, 2, 5, THREE, cuts={1: cut(HEADER_SIZE + len(ONE))})
        spoil(tmp_path, 1, HEADER_SIZE + BODY)
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        first = read(tmp_path)
        assert read(tmp_path) == first
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


class TestTornTail:
    @given(cut=st.integers(0, len(THREE) - 1), is_reserved=st.booleans())
    def test_is_cut_where_it_is_torn(
        self, tmp_path_factory: pytest.TempPathFactory, cut: int, is_reserved: bool
    ) -> None:
        folder = tmp_path_factory.mktemp("journal")
        torn = THREE[:cut].ljust(len(THREE) if is_reserved else cut, b"\0")
        put(folder, 1, 1, ONE, TWO, torn)
        if not is_reserved:
            path = segment_path(folder, 1)
            path.write_bytes(path.read_bytes()[: -len(ROOM)])
        found = read(folder)
        assert lsns(found) == [1, 2, 3, 4]
        assert found.damages == []
        end = HEADER_SIZE + len(ONE) + len(TWO)
        if cut:
            assert found.torn_bytes > 0
            assert found.tail.number == 1
            assert 4 <= found.tail.lsn <= 5
            assert end <= found.tail.cuts[1].end <= end + GROUP_SIZE
        else:
            assert found.tail == JournalTail(1, 4)

    def test_what_follows_it_does_not_count(self, tmp_path: Path) -> None:
        """Durability `os`: groups that were never synced reach the disk in any order. They are
        taken back together, so that what remains is something that was."""
        unsynced = [group([(lsn, b"a")], 2) for lsn in range(3, 8)]
        data = put(tmp_path, 1, 1, ONE, *unsynced)
        at = HEADER_SIZE + len(ONE) + len(unsynced[0])
        data[at : at + len(unsynced[1])] = bytes(len(unsynced[1]))
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 3]
        assert found.tail == JournalTail(1, 3, {1: cut(at)})
        assert found.torn_bytes == 4 * len(unsynced[1])
        assert found.damages == []

    def test_whose_group_is_complete_but_for_one_body(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + BODY)
        found = read(tmp_path)
        assert lsns(found) == [1, 2]
        assert found.damages == []

    def test_is_told_apart_while_nothing_was_ever_synced(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE)
        spoil(tmp_path, 1, HEADER_SIZE + BODY)
        found = read(tmp_path)
        assert (lsns(found), found.damages) == ([], [])
        assert found.tail.cuts == {1: cut(HEADER_SIZE + GROUP_SIZE)}


class TestDamage:
    """Bytes that were synced and are not what was written."""

    def test_in_a_body_is_its_owner_s_alone(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO, THREE)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + BODY)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5]
        (damage,) = found.damages
        assert damage.name == b"c"
        at = HEADER_SIZE + len(ONE) + GROUP_SIZE
        assert damage.where == f"{1:020}.journal at byte {at}"
        assert found.tail == JournalTail(1, 5)

    def test_in_a_head_has_no_owner(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO, THREE)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + GROUP_SIZE)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5]
        (loss,) = found.losses
        assert (loss.names, loss.after_lsn, loss.last_lsn) == (None, 2, 3)

    def test_of_what_was_written_over_a_record_is_more_than_its_owner_s(
        self, tmp_path: Path
    ) -> None:
        """The head of a group is damaged, and a misdirected write begins within its second
        record, and covers the third one."""
        three = group([(3, b"c"), (4, b"d"), (5, b"e")], 2)
        record = (len(three) - GROUP_SIZE) // 3
        put(tmp_path, 1, 1, ONE, three[: GROUP_SIZE + 2 * record - 4], group([(6, b"b")], 5))
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE))
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 3, 6]
        assert [damage.name for damage in found.damages] == [None, b"d"]
        (loss,) = found.losses
        assert (loss.names, loss.after_lsn, loss.last_lsn) == (None, 3, 5)

    def test_in_a_body_before_a_number_that_was_skipped(self, tmp_path: Path) -> None:
        """The start of a flush uses a number, and writes nothing under it."""
        put(tmp_path, 1, 1, ONE, group([(3, b"c")], 2), group([(5, b"b")], 3))
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + BODY)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 5]
        assert [damage.name for damage in found.damages] == [b"c"]
        assert found.losses == []

    @pytest.mark.parametrize("bit", range(8 * (RECORD_SIZE + 1)))
    def test_of_one_bit_in_a_head_is_its_owner_s_alone(self, tmp_path: Path, bit: int) -> None:
        """The checksum tells which bit it was."""
        data = put(tmp_path, 1, 1, ONE, TWO, THREE)
        at = HEADER_SIZE + len(ONE) + GROUP_SIZE
        data[at + bit // 8] ^= 1 << bit % 8
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5] and found.losses == []
        assert [damage.name for damage in found.damages] == [b"c"]

    def test_in_the_head_of_a_group_costs_no_record(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO, THREE)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE))
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 3, 4, 5]
        assert [damage.name for damage in found.damages] == [None]

    @pytest.mark.parametrize("bit", range(8 * GROUP_SIZE))
    def test_of_one_bit_in_the_head_of_a_group_behind_a_skipped_number_is_nobody_s(
        self, tmp_path: Path, bit: int
    ) -> None:
        """The start of a flush used the number. The checksum tells which bit it was."""
        data = put(tmp_path, 1, 1, ONE, group([(4, b"c")], 3), group([(5, b"b")], 4))
        at = HEADER_SIZE + len(ONE)
        data[at + bit // 8] ^= 1 << bit % 8
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5] and found.losses == []
        assert [damage.name for damage in found.damages] == [None]

    @pytest.mark.parametrize("bit", range(8 * GROUP_SIZE))
    def test_of_one_bit_in_the_head_of_the_last_group_is_no_torn_tail(
        self, tmp_path: Path, bit: int
    ) -> None:
        """All of its records arrived, so a client may have its receipt for them."""
        data = put(tmp_path, 1, 1, ONE, TWO, group([(5, b"b"), (6, b"c")], 4))
        at = HEADER_SIZE + len(ONE) + len(TWO)
        data[at + bit // 8] ^= 1 << bit % 8
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 3, 4, 5, 6] and found.losses == []
        assert [damage.name for damage in found.damages] == [None]
        assert (found.torn_bytes, found.tail) == (0, JournalTail(1, 6))

    @pytest.mark.parametrize("missing", range(1, len(THREE) - GROUP_SIZE))
    def test_of_one_bit_in_the_head_of_a_group_that_is_torn_is_part_of_the_torn_tail(
        self, tmp_path: Path, missing: int
    ) -> None:
        torn = THREE[:-missing].ljust(len(THREE), b"\0")
        data = put(tmp_path, 1, 1, ONE, TWO, torn)
        at = HEADER_SIZE + len(ONE) + len(TWO)
        data[at + 8] ^= 1
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert (lsns(found), found.damages, found.losses) == ([1, 2, 3, 4], [], [])
        assert found.tail.cuts == {1: cut(at)}

    def test_of_one_bit_in_the_head_of_the_last_group_leaves_a_torn_tail_behind_it(
        self, tmp_path: Path
    ) -> None:
        four = group([(6, b"c")], 4)
        data = put(tmp_path, 1, 1, ONE, TWO, THREE, four[:-1])
        at = HEADER_SIZE + len(ONE) + len(TWO)
        data[at + 8] ^= 1
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert (lsns(found), found.losses) == ([1, 2, 3, 4, 5], [])
        assert [damage.name for damage in found.damages] == [None]
        assert found.tail.cuts == {1: cut(at + len(THREE) + GROUP_SIZE)}

    @pytest.mark.parametrize("rewrite", [Rewrite.REST, Rewrite.WHOLE])
    def test_in_the_head_of_a_group_before_the_rest_of_a_flush_is_nobody_s(
        self, tmp_path: Path, rewrite: Rewrite
    ) -> None:
        """Such a record has a number before it that no record has; others may not."""
        rest = encode_record(SALT, 4, PartitionKind.QUEUE, b"c", b"", rewrite, as_of=2)
        put(tmp_path, 1, 1, ONE, encode_group(SALT, [rest], 4, 2), group([(5, b"b")], 4))
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE), GROUP_SIZE)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5]
        is_rest = rewrite is Rewrite.REST
        assert [damage.name for damage in found.damages] == [None] * is_rest
        assert len(found.losses) == (not is_rest)

    def test_is_proven_by_a_later_segment(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO)
        put(tmp_path, 2, 5, THREE)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + BODY)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4, 5]
        assert [damage.name for damage in found.damages] == [b"c"]
        assert found.damaged_lsns == {b"c": 3}

    def test_is_proven_by_a_later_segment_without_groups(self, tmp_path: Path) -> None:
        """None is begun before everything in the last one was synced."""
        put(tmp_path, 1, 1, ONE, TWO)
        put(tmp_path, 2, 5)
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE) + BODY)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 4]
        assert [damage.name for damage in found.damages] == [b"c"]
        assert found.tail.cuts == {}

    def test_before_a_torn_tail(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO, THREE[:-1])
        spoil(tmp_path, 1, HEADER_SIZE + BODY)
        found = read(tmp_path)
        assert lsns(found) == [2, 3, 4]
        assert [damage.name for damage in found.damages] == [b"a"]
        assert list(found.tail.cuts) == [1]

    @given(at=st.integers(HEADER_SIZE, HEADER_SIZE + len(ONE) + len(TWO) - 1))
    def test_costs_at_most_one_record_wherever_it_is(
        self, tmp_path_factory: pytest.TempPathFactory, at: int
    ) -> None:
        folder = tmp_path_factory.mktemp("journal")
        put(folder, 1, 1, ONE, TWO, THREE)
        spoil(folder, 1, at)
        found = read(folder)
        assert len(found.damages) + len(found.losses) == 1
        assert len({1, 2, 3, 4, 5} - set(lsns(found))) <= 1
        assert found.tail == JournalTail(1, 5)


class TestCuts:
    def test_what_a_later_segment_cut_off_is_not_there(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO)
        put(tmp_path, 2, 3, group([(3, b"new")], 2), cuts={1: cut(HEADER_SIZE + len(ONE))})
        found = read(tmp_path)
        assert [(record.lsn, record.name) for _, record in found.records] == [
            (1, b"a"), (2, b"b"), (3, b"new"),
        ]  # fmt: skip
        assert (found.damages, found.torn_bytes) == ([], 0)
        assert found.tail == JournalTail(2, 3, {1: cut(HEADER_SIZE + len(ONE))})

    def test_damage_beyond_a_cut_is_none(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE, TWO)
        put(tmp_path, 2, 3, group([(3, b"new")], 2), cuts={1: cut(HEADER_SIZE + len(ONE))})
        spoil(tmp_path, 1, HEADER_SIZE + len(ONE), len(TWO))
        assert read(tmp_path).damages == []

    def test_between_what_was_synced_and_the_cut_anything_may_be_missing(
        self, tmp_path: Path
    ) -> None:
        """It was kept without a sync, and said again when the disk had failed. Later records of the
        segment depend on it, and do not count."""
        start, end = HEADER_SIZE + len(ONE), HEADER_SIZE + len(ONE) + len(TWO) + len(THREE)
        put(tmp_path, 1, 1, ONE, TWO, THREE, b"failed")
        put(tmp_path, 2, 3, group([(7, b"again")], 2), cuts={1: Cut(end, start)})
        assert lsns(read(tmp_path)) == [1, 2, 3, 4, 5, 7]
        spoil(tmp_path, 1, start, len(TWO))
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 7]
        assert found.tail.cuts == {1: Cut(start, start)}
        assert (found.damages, found.torn_bytes) == ([], 0)
        spoil(tmp_path, 1, HEADER_SIZE + BODY)
        assert [damage.name for damage in read(tmp_path).damages] == [b"a"]

    def test_in_the_midst_of_a_group_keeps_what_was_complete(self, tmp_path: Path) -> None:
        record = RECORD_SIZE + 1 + len(b"body of 1")
        put(tmp_path, 1, 1, ONE)
        cuts = {1: cut(HEADER_SIZE + GROUP_SIZE + record)}
        put(tmp_path, 2, 2, group([(2, b"new")], 1), cuts=cuts)
        found = read(tmp_path)
        assert [(each.lsn, each.name) for _, each in found.records] == [(1, b"a"), (2, b"new")]
        assert found.damages == []

    def test_of_a_whole_segment(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE)
        put(tmp_path, 2, 3, TWO)
        put(tmp_path, 3, 3, group([(3, b"new")], 2), cuts={2: cut(0)})
        assert lsns(read(tmp_path)) == [1, 2, 3]

    def test_many_torn_ends_in_a_row_stay_torn(self, tmp_path: Path) -> None:
        """Changes that were taken back once never return, whatever happens after."""
        rng = Random(5)
        expected: list[bytes] = []
        for boot in range(12):
            found = read(tmp_path)
            assert [record.body for _, record in found.records] == expected, boot
            assert found.damages == []
            journal = Journal(
                tmp_path,
                DISK,
                SALT + boot,
                found.tail,
                segments=MemorySegments(),
                segment_bytes=8192,
                retry_s=1,
                now=lambda: 0.0,
            )
            end, bodies = self.write(journal, found.tail.lsn, boot, SALT + boot)
            journal.close()
            path = segment_path(tmp_path, found.tail.number + 1)
            data = path.read_bytes()
            torn = rng.randint(HEADER_SIZE, end)
            path.write_bytes(data[:torn] + bytes(len(data) - torn))
            now = [record.body for _, record in read(tmp_path).records]
            assert len(now) >= len(expected)
            assert now == (expected + bodies)[: len(now)]
            expected = now
        assert expected

    def write(self, journal: Journal, lsn: int, boot: int, salt: int) -> tuple[int, list[bytes]]:
        """One group with five records; where it ends."""
        group = CommitGroup(0, lsn + 1)
        bodies = [b"%d of boot %d" % (each, boot) for each in range(5)]
        group.records = [
            encode_record(salt, lsn + 1 + each, PartitionKind.QUEUE, b"n", body)
            for each, body in enumerate(bodies)
        ]
        group.last_lsn = lsn + 5
        group.needs_sync = True
        return journal.commit([group]).size, bodies

    def test_are_handed_on_from_header_to_header(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE)
        put(tmp_path, 2, 3, TWO[:-1], cuts={1: cut(HEADER_SIZE + len(ONE))})
        tail = read(tmp_path).tail
        assert set(tail.cuts) == {1, 2}
        journal = Journal(
            tmp_path,
            DISK,
            SALT,
            tail,
            segments=MemorySegments(),
            segment_bytes=4096,
            retry_s=1,
            now=lambda: 0.0,
        )
        self.write(journal, tail.lsn, 1, SALT)
        journal.close()
        header = decode_header(segment_path(tmp_path, 3).read_bytes())
        assert header.cuts == tail.cuts
        assert read(tmp_path).tail.cuts == tail.cuts


class TestWithoutHeader:
    @pytest.mark.parametrize("size", [0, 100, HEADER_SIZE, 4096])
    def test_a_blank_segment_was_never_used(self, tmp_path: Path, size: int) -> None:
        """The power failed between the file's name and its header."""
        put(tmp_path, 1, 1, ONE)
        segment_path(tmp_path, 2).write_bytes(bytes(size))
        found = read(tmp_path)
        assert (lsns(found), found.damages) == ([1, 2], [])
        assert found.tail.number == 2, "its number is not used again"
        assert found.segments[2] == 0

    def test_half_a_header_was_never_used(self, tmp_path: Path) -> None:
        data = encode_header(Header(2, 3, SALT))[:40].ljust(4096, b"\0")
        put(tmp_path, 1, 1, ONE)
        segment_path(tmp_path, 2).write_bytes(data)
        assert read(tmp_path).damages == []

    def test_a_used_one_is_damage(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, ONE)
        put(tmp_path, 2, 3, TWO)
        spoil(tmp_path, 1, 20)
        found = read(tmp_path)
        assert lsns(found) == [3, 4]
        (loss,) = found.losses
        assert (loss.where, loss.names) == (f"{1:020}.journal", None)


@pytest.mark.parametrize("version", [0, 5, 65535])
def test_a_later_version_s_journal_is_refused_and_left_alone(tmp_path: Path, version: int) -> None:
    data = put(tmp_path, 1, 1, ONE)
    data[16:18] = version.to_bytes(2, "little")
    data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
    segment_path(tmp_path, 1).write_bytes(data)
    with pytest.raises(UnknownVersion, match=f"journal format {version}; this version reads 1"):
        read(tmp_path)
    assert segment_path(tmp_path, 1).read_bytes() == data


A, B, C, D = (group([(lsn, b"%c" % (96 + lsn))], lsn - 1) for lsn in range(1, 5))
"""Groups of one size, each of which was synced before the next one."""


class TestMisplaced:
    """A write of the open segment went to another place, and the node was killed."""

    @pytest.mark.parametrize("missing", [1, 2, 3])
    def test_in_the_place_of_an_earlier_group_of_its_size(
        self, tmp_path: Path, missing: int
    ) -> None:
        groups = [A, B, C]
        groups[missing - 1] = D
        put(tmp_path, 1, 1, *groups)
        found = read(tmp_path)
        assert lsns(found) == [each for each in (1, 2, 3, 4) if each != missing]
        (loss,) = found.losses
        assert (loss.names, loss.after_lsn, loss.last_lsn) == (None, missing - 1, missing)
        assert (found.torn_bytes, found.tail.lsn) == (0, 4)

    @pytest.mark.parametrize("missing", [1, 2, 3])
    def test_in_the_place_of_one_that_was_not_synced_before_it(
        self, tmp_path: Path, missing: int
    ) -> None:
        """The numbers tell of it."""
        groups = [group([(lsn, b"a")], 0) for lsn in (1, 2, 3)]
        groups[missing - 1] = group([(4, b"d")], 0)
        put(tmp_path, 1, 1, *groups)
        found = read(tmp_path)
        assert lsns(found) == [each for each in (1, 2, 3, 4) if each != missing]
        assert found.losses and found.torn_bytes == 0

    def test_numbers_of_no_record_are_those_of_the_group_behind_them(self, tmp_path: Path) -> None:
        record = encode_record(SALT, 5, PartitionKind.QUEUE, b"c", b"")
        put(tmp_path, 1, 1, A, encode_group(SALT, [record], 2, 1), group([(6, b"c")], 5))
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.damages) == ([1, 5, 6], [], [])

    def test_what_is_found_is_found_again(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, A, D, C)
        found = [read(tmp_path) for _ in range(2)]
        assert found[0] == found[1]

    def test_a_copy_in_the_place_of_an_earlier_group_counts_once(self, tmp_path: Path) -> None:
        put(tmp_path, 1, 1, A, D, C, D)
        found = read(tmp_path)
        assert lsns(found) == [1, 3, 4]
        (loss,) = found.losses
        assert (loss.after_lsn, loss.last_lsn) == (1, 2)

    def test_behind_the_end(self, tmp_path: Path) -> None:
        """It has the next number, so nothing is missing before it."""
        put(tmp_path, 1, 1, A, B, bytes(300), C)
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.torn_bytes) == ([1, 2, 3], [], 0)
        assert [damage.name for damage in found.damages] == [None]
        assert found.tail.cuts == {}

    def test_behind_the_end_after_a_group_that_is_missing_it_is_a_torn_tail(
        self, tmp_path: Path
    ) -> None:
        """Both were on their way when the power failed."""
        late = group([(4, b"d")], 2)
        put(tmp_path, 1, 1, A, B, bytes(len(C)), late)
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.damages) == ([1, 2], [], [])
        assert found.tail.cuts == {1: cut(HEADER_SIZE + 2 * len(A))}

    @pytest.mark.parametrize("at", [0, 20, GROUP_SIZE, GROUP_SIZE + 40])
    def test_an_earlier_group_over_the_last_one(self, tmp_path: Path, at: int) -> None:
        """Part of the last one may be left before it."""
        data = put(tmp_path, 1, 1, A, B, C)
        start = HEADER_SIZE + 2 * len(A) + at
        data[start : start + len(A)] = A
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert lsns(found) == [1, 2] and found.torn_bytes == 0
        assert found.losses or found.damages

    def test_part_of_an_earlier_group_over_the_last_one(self, tmp_path: Path) -> None:
        """A sector of a large group begins between two of its records."""
        two = group([(2, b"b"), (3, b"c")], 1)
        part = two[GROUP_SIZE + (len(two) - GROUP_SIZE) // 2 :]
        put(tmp_path, 1, 1, A, two, part)
        found = read(tmp_path)
        assert lsns(found) == [1, 2, 3] and found.torn_bytes == 0
        assert found.losses

    @pytest.mark.parametrize("salt", [SALT, SALT + 1])
    def test_a_group_of_another_segment_over_the_last_one(self, tmp_path: Path, salt: int) -> None:
        """Of an earlier run, perhaps, which had another salt."""
        earlier = encode_header(Header(1, 1, salt)) + group([(1, b"a")], 0, salt)
        segment_path(tmp_path, 1).write_bytes(earlier + ROOM)
        other = group([(1, b"a")], 0, salt)
        put(tmp_path, 2, 2, group([(2, b"b")], 1), other)
        found = read(tmp_path)
        assert lsns(found) == [1, 2] and found.torn_bytes == 0
        assert found.losses

    def test_the_last_group_in_an_earlier_segment_is_served_in_its_order(
        self, tmp_path: Path
    ) -> None:
        """The checksum of that segment tells what it was written over."""
        put(tmp_path, 1, 1, A, D)
        put(tmp_path, 2, 3, C)
        found = read(tmp_path)
        assert lsns(found) == [1, 3, 4]
        assert [number for number, _ in found.records] == [1, 2, 1]
        assert found.losses

    def test_the_last_group_in_an_earlier_segment_is_not_cut_off(self, tmp_path: Path) -> None:
        """Else it would come back with the next start, when its lsn is that of another."""
        put(tmp_path, 1, 1, A, D)
        put(tmp_path, 2, 3, C, bytes(300), A)
        for _ in range(2):
            found = read(tmp_path)
            assert lsns(found) == [1, 3, 4] and found.losses
            assert (found.torn_bytes, found.tail.lsn, found.tail.cuts) == (0, 4, {})

    def test_zeros_before_it_are_what_was_never_written(self, tmp_path: Path) -> None:
        """An old group in what is reserved took the place of nothing; where its own place is
        damaged, that is found there."""
        put(tmp_path, 1, 1, A, B, bytes(300), A)
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.damages) == ([1, 2], [], [])

    def test_a_torn_tail_of_a_client_s_bytes_is_one(self, tmp_path: Path) -> None:
        """It cannot know the salt."""
        body = group([(1, b"a")], 0, SALT + 7) * 3
        record = encode_record(SALT, 3, PartitionKind.QUEUE, b"c", body)
        put(tmp_path, 1, 1, A, B, encode_group(SALT, [record], 3, 2)[:-9])
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.damages) == ([1, 2], [], [])
        assert found.tail.cuts

    def test_segments_of_earlier_versions_may_have_synced_what_failed(self, tmp_path: Path) -> None:
        data = put(tmp_path, 1, 1, A, C)
        data[16:18] = (3).to_bytes(2, "little")
        data[HEADER_SIZE - 4 : HEADER_SIZE] = crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little")
        segment_path(tmp_path, 1).write_bytes(data)
        found = read(tmp_path)
        assert (lsns(found), found.losses, found.damages) == ([1, 3], [], [])

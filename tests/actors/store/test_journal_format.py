"""The journal's bytes: whatever becomes of them, no record is read that was not written."""

from __future__ import annotations

from itertools import accumulate
from random import Random
from typing import NamedTuple
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import PartitionKind
from millpond.actors.store.journal.format import (
    CUTS_MAX,
    FLIPPED_NAME_MAX,
    GROUP_SIZE,
    HEADER_SIZE,
    NAME_BYTES_MAX,
    RECORD_SIZE,
    BadHeader,
    Cut,
    Gap,
    Header,
    Record,
    Rewrite,
    Scan,
    UnknownVersion,
    decode_header,
    encode_group,
    encode_header,
    encode_record,
    merge_cuts,
)

SALT = 0xC0FFEE42
U64_MAX = 2**64 - 1

u64 = st.integers(0, U64_MAX)
names = st.binary(max_size=12)
bodies = st.binary(max_size=40)
some_cuts = st.dictionaries(u64, st.builds(Cut, u64, u64), max_size=CUTS_MAX)


class Written(NamedTuple):
    """A segment, the records in it, and where each begins and ends."""

    data: bytes
    records: list[Record]
    starts: list[int]
    ends: list[int]


def segment(
    groups: list[list[tuple[bytes, bytes]]], *, salt: int = SALT, first_lsn: int = 1
) -> Written:
    """Names and bodies in groups; everything before a group was synced."""
    data = encode_header(Header(1, first_lsn, salt))
    written = Written(data, [], [], [])
    lsn = first_lsn
    for group in groups:
        first, records = lsn, []
        at = len(data) + GROUP_SIZE
        for name, body in group:
            rewrite = Rewrite(lsn % 4)
            as_of = lsn - 1 if rewrite else 0
            kind = PartitionKind(lsn % 2)
            records.append(encode_record(salt, lsn, kind, name, body, rewrite, as_of))
            written.records.append(Record(lsn, kind, name, rewrite, as_of, body, first - 1))
            written.starts.append(at)
            at += len(records[-1])
            written.ends.append(at)
            lsn += 1
        data += encode_group(salt, records, first, first - 1)
    return written._replace(data=data)


segments = st.builds(
    segment, st.lists(st.lists(st.tuples(names, bodies), min_size=1, max_size=4), max_size=4)
)
some_segments = segments.filter(lambda written: written.records)


def flipped(data: bytes, at: int, bits: int = 1) -> bytes:
    return data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :]


class TestHeader:
    @given(u64, u64, st.integers(0, 2**32 - 1), u64, some_cuts)
    def test_comes_back(
        self, number: int, first_lsn: int, salt: int, last_id: int, cuts: dict[int, Cut]
    ) -> None:
        header = Header(number, first_lsn, salt, last_id, cuts)
        data = encode_header(header)
        assert len(data) == HEADER_SIZE
        assert decode_header(data) == header
        assert decode_header(data + b"groups") == header

    def test_of_too_many_cuts_the_latest_stay(self) -> None:
        cuts = {number: Cut(number * 10, number) for number in range(CUTS_MAX + 5)}
        found = decode_header(encode_header(Header(1000, 1, SALT, 0, cuts)))
        assert found.cuts == {number: cuts[number] for number in range(5, CUTS_MAX + 5)}

    def test_any_changed_byte_is_noticed(self) -> None:
        data = encode_header(Header(7, 8, SALT, 9, {1: Cut(2, 1)}))
        for at in range(HEADER_SIZE):
            with pytest.raises(BadHeader):
                decode_header(flipped(data, at))

    @pytest.mark.parametrize("size", [0, 1, 16, HEADER_SIZE - 1])
    def test_one_that_is_cut_off_is_none(self, size: int) -> None:
        with pytest.raises(BadHeader):
            decode_header(encode_header(Header(1, 1, SALT))[:size])
        with pytest.raises(BadHeader):
            decode_header(bytes(size))

    def test_the_earliest_word_about_a_cut_counts(self) -> None:
        headers = {
            2: Header(2, 1, SALT, 0, {1: Cut(100, 90)}),
            3: Header(3, 1, SALT, 0, {1: Cut(200, 200), 2: Cut(50, 50)}),
            4: Header(4, 1, SALT, 0, {4: Cut(1, 1), 5: Cut(1, 1)}),
        }
        assert merge_cuts(headers) == {1: Cut(100, 90), 2: Cut(50, 50)}


class TestWhatWasWritten:
    @given(segments)
    def test_comes_back(self, written: Written) -> None:
        scan = Scan(written.data)
        assert list(scan.records()) == written.records
        assert scan.gaps == []
        assert scan.end == len(written.data)
        assert scan.last_lsn == len(written.records)

    @given(segments, st.integers(0, 100))
    def test_comes_back_from_a_segment_with_room_left(self, written: Written, room: int) -> None:
        scan = Scan(written.data + bytes(room))
        assert list(scan.records()) == written.records
        assert scan.gaps == []
        assert scan.end == len(written.data)

    @pytest.mark.parametrize("first_lsn", [1, 2**16 - 1, 2**24 - 1, 2**32, U64_MAX - 5])
    def test_comes_back_with_any_number(self, first_lsn: int) -> None:
        written = segment([[(b"a", b"one"), (b"b", b"two")], [(b"c", b"")]], first_lsn=first_lsn)
        scan = Scan(written.data)
        assert list(scan.records()) == written.records
        assert scan.synced_lsn == first_lsn + 1

    def test_the_longest_name_and_an_empty_one(self) -> None:
        written = segment([[(b"n" * NAME_BYTES_MAX, b"x"), (b"", b"y")]])
        assert list(Scan(written.data).records()) == written.records


class TestTorn:
    @given(some_segments, st.data())
    def test_cut_off_at_any_byte_gives_what_was_complete_before(
        self, written: Written, draw: st.DataObject
    ) -> None:
        size = draw.draw(st.integers(HEADER_SIZE, len(written.data)))
        scan = Scan(written.data[:size])
        complete = sum(end <= size for end in written.ends)
        assert list(scan.records()) == written.records[:complete]
        group_ends = {HEADER_SIZE, len(written.data)} | {
            at - GROUP_SIZE
            for at, record in zip(written.starts, written.records, strict=True)
            if record.lsn == record.synced_lsn + 1
        }
        assert bool(scan.gaps) is (size not in group_ends)
        assert all(gap.after_lsn >= complete for gap in scan.gaps)

    @given(some_segments, st.data())
    def test_the_same_where_space_was_reserved(self, written: Written, draw: st.DataObject) -> None:
        """A torn body may be complete all the same, where what is missing of it were zeros."""
        size = draw.draw(st.integers(HEADER_SIZE, len(written.data)))
        found = list(Scan(written.data[:size].ljust(len(written.data) + 64, b"\0")).records())
        complete = sum(end <= size for end in written.ends)
        assert found[:complete] == written.records[:complete]
        assert set(found) <= set(written.records)

    @given(some_segments, st.data())
    def test_at_a_cut_nothing_is_missing(self, written: Written, draw: st.DataObject) -> None:
        cut = draw.draw(st.integers(HEADER_SIZE, len(written.data)))
        scan = Scan(written.data + b"not to be read", cut)
        complete = sum(end <= cut for end in written.ends)
        assert list(scan.records()) == written.records[:complete]
        if cut in {HEADER_SIZE, len(written.data)}:
            assert scan.gaps == []

    def test_later_records_of_a_torn_group_are_found(self) -> None:
        """Sectors reach the disk in any order: who judges must see what came after the gap."""
        written = segment([[(b"a", bytes(600)), (b"b", b"x" * 600), (b"c", b"y" * 600)]])
        start = written.starts[1]
        data = written.data[:start] + bytes(512) + written.data[start + 512 :]
        scan = Scan(data)
        assert [record.name for record in scan.records()] == [b"a", b"c"]
        assert scan.gaps == [Gap(start, written.starts[2] - start, 1)]


class TestDamaged:
    @given(some_segments, st.data())
    def test_a_flipped_bit_is_found_wherever_it_is(
        self, written: Written, draw: st.DataObject
    ) -> None:
        at = draw.draw(st.integers(HEADER_SIZE, len(written.data) - 1))
        scan = Scan(flipped(written.data, at, 1 << draw.draw(st.integers(0, 7))))
        found = [record._replace(synced_lsn=0) for record in scan.records()]
        harmed = [
            index
            for index, (start, end) in enumerate(zip(written.starts, written.ends, strict=True))
            if start <= at < end
        ]
        expected = [each._replace(synced_lsn=0) for each in written.records]
        for index in harmed:
            del expected[index]
        assert found == expected
        (gap,) = scan.gaps
        assert gap.offset <= at < gap.offset + gap.size
        for index in harmed:
            record, start = written.records[index], written.starts[index]
            is_in_name = 0 <= at - start - RECORD_SIZE < len(record.name)
            is_lost = is_in_name and len(record.name) > FLIPPED_NAME_MAX
            assert gap.owner == (None if is_lost else record.name)
            assert gap.after_lsn == record.lsn - 1

    @given(some_segments, st.data())
    def test_whatever_becomes_of_many_bytes_nothing_is_made_up(
        self, written: Written, draw: st.DataObject
    ) -> None:
        data = bytearray(written.data)
        for _ in range(draw.draw(st.integers(1, 4))):
            start = draw.draw(st.integers(HEADER_SIZE, len(data) - 1))
            junk = draw.draw(st.binary(max_size=50) | st.just(bytes(50)))
            data[start : start + len(junk)] = junk
        found = [record._replace(synced_lsn=0) for record in Scan(bytes(data)).records()]
        assert set(found) <= {record._replace(synced_lsn=0) for record in written.records}
        assert len(found) == len(set(found))

    def test_a_group_without_its_head_keeps_its_records(self) -> None:
        written = segment([[(b"a", b"1")], [(b"b", b"2"), (b"c", b"3")], [(b"d", b"4")]])
        head = written.starts[1] - GROUP_SIZE
        scan = Scan(written.data[:head] + bytes(GROUP_SIZE) + written.data[written.starts[1] :])
        assert [record.name for record in scan.records()] == [b"a", b"b", b"c", b"d"]
        assert scan.gaps == [Gap(head, GROUP_SIZE, 1)]
        assert scan.end == len(written.data)

    def test_two_records_damaged_in_different_ways(self) -> None:
        written = segment([[(b"a", b"1"), (b"b", b"2"), (b"c", b"3"), (b"d", b"4")]])
        data = flipped(flipped(written.data, written.starts[0]), written.ends[2] - 1)
        scan = Scan(data)
        assert [record.name for record in scan.records()] == [b"b", b"d"]
        assert [(gap.after_lsn, gap.owner) for gap in scan.gaps] == [(0, b"a"), (2, b"c")]


class TestHostileData:
    """A client's bytes lie in the journal as they are; they may look like anything."""

    def message(self, salt: int) -> bytes:
        """Bytes of a client that imitate the node's own records."""
        record = encode_record(salt, 2, PartitionKind.QUEUE, b"victim", b"\x08\x00")
        return b"".join((bytes(64), record, encode_group(salt, [record], 2, U64_MAX), bytes(64)))

    @pytest.mark.parametrize("at", [0, GROUP_SIZE, GROUP_SIZE + 10])
    def test_is_not_taken_for_records_without_the_salt(self, at: int) -> None:
        hostile = self.message(0) + self.message(SALT + 1)
        written = segment([[(b"attacker", hostile)], [(b"b", b"2")]])
        scan = Scan(flipped(written.data, HEADER_SIZE + at))
        assert [record.name for record in scan.records()] in ([b"b"], [b"attacker", b"b"])
        assert scan.synced_lsn == 1

    def test_is_not_searched_while_its_record_is_sound(self) -> None:
        """Even one who knew the salt would gain nothing from a sound journal."""
        written = segment([[(b"attacker", self.message(SALT))], [(b"b", b"2")]])
        scan = Scan(written.data)
        assert list(scan.records()) == written.records
        assert scan.synced_lsn == 1

    def test_nor_while_the_head_of_its_record_is_sound(self) -> None:
        written = segment([[(b"attacker", self.message(SALT)), (b"b", b"2")]])
        scan = Scan(flipped(written.data, written.ends[0] - 1))
        assert [record.name for record in scan.records()] == [b"b"]
        assert [gap.owner for gap in scan.gaps] == [b"attacker"]

    @pytest.mark.parametrize(
        "pattern",
        [
            pytest.param(Random(1).randbytes(2**16), id="noise"),
            pytest.param(bytes(2**16 - 1) + b"x", id="zeros"),
            pytest.param(b"ROUP" * 2**14, id="magics"),
            pytest.param(
                bytes((0, 0, 0, 0, 255, 15, 0, 0, 1, *bytes(23))) * 2**11,
                id="heads with long names",
            ),
        ],
    )
    def test_cannot_make_the_search_take_long(self, pattern: bytes) -> None:
        """1 MiB; a search that hashed at every byte would run into the suite's time limit."""
        written = segment([[(b"a", pattern * 16), (b"b", b"2")]])
        for at in (HEADER_SIZE, written.starts[0], written.starts[0] + 6):
            found = [record.name for record in Scan(flipped(written.data, at)).records()]
            assert found in ([b"b"], [b"a", b"b"])
        data = flipped(flipped(written.data, HEADER_SIZE), written.starts[0])
        assert [record.name for record in Scan(data).records()] == [b"b"]


class TestVersions:
    def test_a_later_version_is_told_from_damage(self) -> None:
        data = bytearray(encode_header(Header(1, 1, SALT)))
        data[16:18] = (5).to_bytes(2, "little")
        data[-4:] = crc32(data[:-4]).to_bytes(4, "little")
        with pytest.raises(UnknownVersion, match="journal format 5; this version reads 1 to 4"):
            decode_header(bytes(data))


def test_the_offsets_of_groups_add_up() -> None:
    """A group's length field is the sum of its records'."""
    records = [encode_record(SALT, lsn, PartitionKind.LOG, b"n", b"x" * lsn) for lsn in range(1, 5)]
    sizes = list(accumulate(map(len, records)))
    group = encode_group(SALT, records, 1, 0)
    assert int.from_bytes(group[4:8], "little") == sizes[-1]
    assert len(group) == GROUP_SIZE + sizes[-1]
    assert [len(record) for record in records] == [RECORD_SIZE + 1 + lsn for lsn in range(1, 5)]

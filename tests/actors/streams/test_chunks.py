"""Records as bytes of a chunk: what a chunk says of its records stays so, whole and in parts."""

from __future__ import annotations

from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import Chunk, Position
from millpond.actors.streams.chunks import (
    BadChunk,
    ChunkBuilder,
    append_end,
    arrival_of,
    columns_of,
    truncate_chunk,
)

FIRST = 40


def chunk_of(sizes: list[int], first: int = FIRST) -> Chunk:
    """Appends of so many records each, in one chunk."""
    rest = iter(range(first, first + sum(sizes)))
    appends = [[b"%d" % next(rest) for _ in range(size)] for size in sizes]
    pile = ChunkBuilder(first, Position(7, first), appends[0], 1, 7, None, 7)
    count = len(appends[0])
    for bodies in appends[1:]:
        assert pile.add(Position(7, first + count), bodies, 1, 7)
        count += len(bodies)
    return pile.chunk()


def ends(chunk: Chunk) -> list[int]:
    """For each record where its append ends."""
    return [append_end(chunk, each) for each in range(chunk.first, chunk.end)]


def expected(sizes: list[int]) -> list[int]:
    bounds = list(accumulate(sizes, initial=FIRST))
    return [end for start, end in pairwise(bounds) for _ in range(start, end)]


sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@given(sizes, st.data())
def test_where_an_append_ends_is_kept_also_in_a_part(of: list[int], data: st.DataObject) -> None:
    chunk = chunk_of(of)
    assert ends(chunk) == expected(of)
    count = data.draw(st.integers(1, chunk.count))
    cut = truncate_chunk(chunk, FIRST + count)
    assert columns_of(cut).bodies == columns_of(chunk).bodies[:count]
    assert ends(cut) == [min(each, FIRST + count) for each in expected(of)[:count]]


def test_one_append_is_written_as_ever() -> None:
    assert len(msgspec.msgpack.decode(chunk_of([3]).data)) == 4
    assert msgspec.msgpack.decode(chunk_of([1, 1, 1]).data)[4] == 1


MS = 1_000_000


@pytest.mark.parametrize(
    ("id_ms", "timestamps", "size"),
    [(MS, MS, 4), (1, MS, 6), (MS, 1, 6), (2 * MS, 2 * MS, 6), (MS, [1, 2 * MS], 6)],
)
def test_s2x_61_the_arrival_is_kept_also_in_a_part(
    id_ms: int, timestamps: list[int] | int, size: int
) -> None:
    """In no byte where ids and timestamps have it."""
    bodies = [b"a", b"b"]
    chunk = ChunkBuilder(FIRST, Position(id_ms, 0), bodies, 2, timestamps, None, MS).chunk()
    assert len(msgspec.msgpack.decode(chunk.data)) == size
    for now_ms in (0, MS, 3 * MS):
        assert arrival_of(chunk, now_ms) == MS
        assert arrival_of(truncate_chunk(chunk, FIRST + 1), now_ms) == MS
    assert columns_of(chunk).bodies == bodies


@pytest.mark.parametrize(
    ("id_ms", "timestamp", "expected"),
    [(MS, 7, MS), (7, MS, MS), (MS, 9 * MS, MS), (9 * MS, MS, MS)],
)
def test_s2x_61_the_arrival_of_older_folders(id_ms: int, timestamp: int, expected: int) -> None:
    """A client chose one of the two: the other one is the arrival."""
    data = msgspec.msgpack.encode([[b"a"], None, None, None])
    where = Position(id_ms, 0)
    chunk = Chunk(FIRST, 1, timestamp, timestamp, where, where, data)
    assert arrival_of(chunk, 2 * MS) == expected
    assert arrival_of(msgspec.structs.replace(chunk, data=b"\xc1"), 2 * MS) == expected


@pytest.mark.parametrize("appends", [[], [1], [2, 0], [4], [-1, 3], [1, "1"]])
def test_appends_that_are_not_of_these_records(appends: list[object]) -> None:
    data = msgspec.msgpack.encode([[b"a", b"b"], None, None, None, appends])
    bad = msgspec.structs.replace(chunk_of([2]), data=data)
    with pytest.raises(BadChunk):
        columns_of(bad)

"""The reported size of the cache is about its real size: its limit is one of memory."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator, Sequence

import pytest

from millpond.actors.store.changes import Chunk, Position
from millpond.actors.streams.chunks import ChunkBuilder
from millpond.actors.streams.record_cache import RecordCache, StreamCache

START_MS = 1_763_683_200_000
Headers = list[list[tuple[bytes, bytes]]]


def chunk_of(
    first: int,
    bodies: list[bytes],
    timestamp: int | list[int] = START_MS,
    headers: Headers | None = None,
) -> Chunk:
    size = sum(map(len, bodies))
    return ChunkBuilder(
        first, Position(START_MS + first, 0), bodies, size, timestamp, headers, START_MS
    ).chunk()


def one_by_one() -> Iterator[Sequence[Chunk]]:
    """Records of one append each, which are joined."""
    for row in range(500):
        yield [chunk_of(n, [b"%10d" % n]) for n in range(row * 1000, row * 1000 + 128)]


def a_few_each() -> Iterator[Sequence[Chunk]]:
    for row in range(500):
        places = range(row * 1000, row * 1000 + 128, 8)
        yield [chunk_of(at, [b"%10d" % (at + n) for n in range(8)]) for at in places]


def with_timestamps() -> Iterator[Sequence[Chunk]]:
    for row in range(20):
        bodies = [b"%10d" % (row * 1000 + n) for n in range(1000)]
        yield [chunk_of(0, bodies, [START_MS + row * 1000 + n for n in range(1000)])]


def with_headers() -> Iterator[Sequence[Chunk]]:
    for _ in range(100):
        bodies = [b"%12d" % n for n in range(100)]
        yield [chunk_of(0, bodies, START_MS, [[(b"nam%d" % n, b"val%d" % n)] for n in range(100)])]


@pytest.mark.parametrize("rows", [one_by_one, a_few_each, with_timestamps, with_headers])
def test_small_records_are_weighed_with_their_columns(rows) -> None:
    cache, kept = RecordCache(2**30), []
    gc.collect()
    tracemalloc.start()
    try:
        for chunks in rows():
            kept.append(StreamCache(cache))
            kept[-1].cached(chunks, 0, {})
        del chunks
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert cache.size / 2 < used < cache.size * 1.5


def test_long_headers_count_for_the_limit() -> None:
    cache, kept = RecordCache(2**20), []
    gc.collect()
    tracemalloc.start()
    try:
        for _ in range(100):
            kept.append(StreamCache(cache))
            headers = [[(b"n", bytes(100_000))]]
            kept[-1].cached([chunk_of(0, [b""], START_MS, headers)], 0, {})
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used < 2**21

"""Compressed bodies (docs/reference/s2.md): what is chosen, what is read, and where it stops."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.s2.codecs.compression import (
    Compression,
    DecompressedTooLarge,
    NotCompressed,
    accepted,
    compress,
    decompress,
    read_body,
    write_body,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode

NONE, ZSTD, GZIP = Compression
BODY = b"some words " * 200


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, NONE),
        ("", NONE),
        ("gzip", GZIP),
        ("gzip, zstd", ZSTD),
        ("gzip;q=1.0, zstd; q=0.1", ZSTD),
        ("zstd;q=0, gzip", GZIP),
        ("zstd;q=0.000, gzip;q=0", NONE),
        ("br, deflate, *", NONE),
        ("GZIP", GZIP),
    ],
)
def test_zstd_is_chosen_before_gzip(accept: str | None, expected: Compression) -> None:
    assert accepted(accept) is expected


def test_short_answers_are_not_compressed() -> None:
    assert write_body(b"x" * 1023, "zstd") == (b"x" * 1023, None)
    assert write_body(BODY, None) == (BODY, None)
    zstd, zstd_name = write_body(BODY, "zstd, gzip")
    gzipped, gzip_name = write_body(BODY, "gzip")
    assert (zstd_name, zstandard.ZstdDecompressor().decompress(zstd)) == (b"zstd", BODY)
    assert (gzip_name, gzip.decompress(gzipped)) == (b"gzip", BODY)


@given(st.binary(max_size=3000), st.sampled_from(Compression))
def test_what_is_compressed_comes_back(data: bytes, how: Compression) -> None:
    assert decompress(compress(data, how), how, len(data)) == data


@given(st.binary(max_size=60), st.sampled_from([ZSTD, GZIP]), st.integers(0, 2000), st.data())
def test_changed_bytes_come_back_as_typed_errors_or_something_small(
    data: bytes, how: Compression, size_max: int, draw: st.DataObject
) -> None:
    wire = bytearray(compress(data * 20, how))
    at = draw.draw(st.integers(0, len(wire) - 1))
    wire[at] = draw.draw(st.integers(0, 255))
    try:
        assert len(decompress(bytes(wire), how, size_max)) <= size_max
    except (NotCompressed, DecompressedTooLarge):
        pass


def test_small_bodies_of_clients_are_read_too() -> None:
    """A client with compression on compresses every body, and may leave its size out."""
    maker = zstandard.ZstdCompressor().compressobj()
    unsized = maker.compress(b'{"records":[]}') + maker.flush()
    assert read_body(unsized, "zstd", 14) == b'{"records":[]}'
    assert read_body(gzip.compress(b"{}"), "GZIP", 100) == b"{}"
    assert read_body(b"{}", None, 100) == read_body(b"{}", "identity", 100) == b"{}"


@pytest.mark.parametrize(
    ("data", "encoding", "code"),
    [
        (b"{}", "br", ErrorCode.BAD_HEADER),
        (b"{}", "gzip, zstd", ErrorCode.BAD_HEADER),
        (b"{}", "zstd", ErrorCode.BAD_HEADER),
        (b"{}", "gzip", ErrorCode.BAD_HEADER),
        (gzip.compress(BODY, mtime=0), "gzip", ErrorCode.INVALID),
        (zstandard.ZstdCompressor().compress(BODY), "zstd", ErrorCode.INVALID),
        (BODY, None, ErrorCode.INVALID),
    ],
)
def test_bodies_that_are_not_what_they_say_or_too_much(
    data: bytes, encoding: str | None, code: ErrorCode
) -> None:
    with pytest.raises(CodedError) as caught:
        read_body(data, encoding, len(BODY) - 1)
    assert caught.value.code is code


def _unsized(size: int) -> bytes:
    maker = zstandard.ZstdCompressor().compressobj()
    return maker.compress(bytes(size)) + maker.flush()


@pytest.mark.parametrize(
    ("bomb", "how"),
    [(gzip.compress(bytes(2**26), 1), GZIP), (_unsized(2**26), ZSTD)],
    ids=["gzip", "zstd"],
)
def test_a_bomb_takes_no_more_memory_than_the_limit(bomb: bytes, how: Compression) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DecompressedTooLarge):
            decompress(bomb, how, 2**20)
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()

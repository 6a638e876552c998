"""S2S frames (docs/reference/s2.md): vectors both ways, any split, limits."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millpond.transports.http.s2.codecs.compression import Compression
from millpond.transports.http.s2.codecs.s2s import (
    FRAME_BYTES_MAX,
    Decoder,
    Frame,
    encode,
    encode_terminal,
)
from millpond.transports.http.s2.errors import (
    CodedError,
    ErrorCode,
    RangeNotSatisfiable,
    SeqNumMismatch,
    StreamPosition,
)

pytestmark = pytest.mark.wire

NONE, ZSTD, GZIP = Compression
LONG = b"0123456789abcdef" * 64


@pytest.mark.parametrize(
    ("wire", "frame"),
    [
        ("00000100", Frame(b"")),
        ("000003006869", Frame(b"hi")),
        ("000003106869", Frame(b"hi", advises_reconnect=True)),
        ("000003206869", Frame(b"hi", ZSTD)),
        ("000003406869", Frame(b"hi", GZIP)),
        ("00000580019c7b7d", Frame(b"\x01\x9c{}", is_terminal=True)),
    ],
)
def test_vectors(wire: str, frame: Frame) -> None:
    decoder = Decoder()
    assert decoder.feed(bytes.fromhex(wire)) == [frame]
    assert decoder.error is None and not decoder.is_midway
    if frame.compression is NONE and not frame.is_terminal:
        sent = encode([frame.body], advises_reconnect=frame.advises_reconnect)
        assert sent.hex() == wire


def test_a_terminal_frame_has_the_status_and_what_the_unary_call_would_say() -> None:
    assert encode_terminal(SeqNumMismatch(7)) == b'\x00\x00\x19\x80\x01\x9c{"seq_num_mismatch":7}'
    (frame,) = Decoder().feed(encode_terminal(RangeNotSatisfiable(StreamPosition(1, 2))))
    assert frame.is_terminal and frame.compression is NONE
    assert int.from_bytes(frame.body[:2], "big") == 416
    assert json.loads(frame.body[2:]) == {"tail": {"seq_num": 1, "timestamp": 2}}


@pytest.mark.parametrize("how", [ZSTD, GZIP])
def test_only_bodies_of_1024_bytes_and_more_are_compressed(how: Compression) -> None:
    short, long = LONG[:1023], LONG
    assert encode([short[:9], short[9:]], how) == encode([short])
    (frame,) = Decoder().feed(encode([long[:9], long[9:]], how, advises_reconnect=True))
    assert frame.compression is how and frame.advises_reconnect
    assert len(frame.body) < len(long) and frame.message() == long


def test_bodies_that_clients_compress_are_read() -> None:
    unsized = zstandard.ZstdCompressor().compressobj()
    streamed = unsized.compress(LONG) + unsized.flush()
    for body, how in (
        (zstandard.ZstdCompressor().compress(LONG), ZSTD),
        (streamed, ZSTD),
        (gzip.compress(LONG), GZIP),
    ):
        assert Frame(body, how).message() == LONG


@given(
    st.lists(st.tuples(st.binary(max_size=40), st.sampled_from(Compression), st.booleans())),
    st.data(),
)
def test_any_split_gives_the_same_frames(
    sent: list[tuple[bytes, Compression, bool]], data: st.DataObject
) -> None:
    wire = b"".join(encode([body], how, advises_reconnect=bit) for body, how, bit in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)))))
    decoder, found = Decoder(), []
    for start, end in pairwise([0, *cuts, len(wire)]):
        found += decoder.feed(wire[start:end])
    assert found == [Frame(body, NONE, False, bit) for body, _, bit in sent]
    assert not decoder.is_midway and decoder.error is None


def test_half_a_frame_is_told_apart_from_none() -> None:
    decoder = Decoder()
    assert decoder.feed(b"\x00\x00") == [] and decoder.is_midway
    assert decoder.feed(b"\x03\x00h") == [] and decoder.is_midway
    assert decoder.feed(b"i") == [Frame(b"hi")] and not decoder.is_midway


@pytest.mark.parametrize(
    "bad",
    [b"\0\0\0", (FRAME_BYTES_MAX + 1).to_bytes(3, "big"), b"\xff\xff\xff", b"\0\0\x01\x60"],
    ids=["no length", "one too long", "much too long", "compression 3"],
)
def test_a_bad_frame_ends_it_and_what_came_before_is_given(bad: bytes) -> None:
    """The hostile length is refused before the bytes that it announces come."""
    decoder = Decoder()
    assert decoder.feed(encode([b"good"]) + bad) == [Frame(b"good")]
    assert decoder.error is not None
    assert decoder.error.code is ErrorCode.BAD_FRAME and decoder.error.status == 400
    assert decoder.feed(encode([b"more"])) == [] and not decoder.is_midway


def test_the_longest_frame_that_is_allowed() -> None:
    body = bytes(FRAME_BYTES_MAX - 1)
    assert Decoder().feed(encode([body])) == [Frame(body)]


def test_a_client_does_not_end_a_session() -> None:
    with pytest.raises(CodedError) as caught:
        Frame(b"\x01\x90{}", is_terminal=True).message()
    assert caught.value.code is ErrorCode.BAD_FRAME


def _zstd_bomb() -> bytes:
    maker = zstandard.ZstdCompressor().compressobj()
    return maker.compress(bytes(2**26)) + maker.flush()


@pytest.mark.parametrize(
    ("body", "how"),
    [
        (zstandard.ZstdCompressor().compress(bytes(2**26)), ZSTD),
        (_zstd_bomb(), ZSTD),
        (gzip.compress(bytes(2**26), 1), GZIP),
        (b"hello", ZSTD),
        (b"", ZSTD),
        (b"hello", GZIP),
        (b"", GZIP),
        (zstandard.ZstdCompressor().compress(LONG)[:-1], ZSTD),
        (gzip.compress(LONG)[:-1], GZIP),
        (gzip.compress(LONG) + b"x", GZIP),
        (zstandard.ZstdCompressor().compress(LONG) + b"x", ZSTD),
        (zlib.compress(LONG), GZIP),
    ],
    ids=lambda value: value.name if isinstance(value, Compression) else f"{len(value)} bytes",
)
def test_what_does_not_decompress_to_2_mib_is_a_bad_frame(body: bytes, how: Compression) -> None:
    with pytest.raises(CodedError) as caught:
        Frame(body, how).message()
    assert caught.value.code is ErrorCode.BAD_FRAME

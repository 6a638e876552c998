"""S3P replies: what a server writes, byte for byte, and what a client reads of it and of others."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import RecordColumns
from millpond.transports.s3p.client_codec import (
    ErrorReply,
    Id,
    MalformedReply,
    Ok,
    Records,
    Reply,
    ReplyDecoder,
    ReplyLimits,
)
from millpond.transports.s3p.commands import printable
from millpond.transports.s3p.decoder import NOTHING, OK, encode_error, encode_id, encode_records
from tests.transports.s3p.samples import cut, w

pytestmark = pytest.mark.wire

U64_MAX = 2**64 - 1
MS = 1700000001234
TWO = w("*4~$15~1700000001234-0~$5~hello~$15~1700000001235-0~$5~world~")


def span(
    bodies: list[bytes], ms: int, seq: int, ids: list[Position] | None = None
) -> RecordColumns:
    return RecordColumns(0, bodies, 0, Position(ms, seq), None, ids)


EXAMPLES = [
    ("8.1 8.4 8.5 OK", "+OK~", OK, Ok()),
    ("8.2 APPEND", "$15~1700000001234-1~", encode_id(Position(MS, 1)), Id(Position(MS, 1))),
    (
        "8.3 READ",
        TWO.decode("latin-1").replace("\r\n", "~"),
        encode_records([span([b"hello"], MS, 0), span([b"world"], MS + 1, 0)]),
        Records([(Position(MS, 0), b"hello"), (Position(MS + 1, 0), b"world")]),
    ),
    ("S3P-32 nothing", "*0~", NOTHING, Records([])),
    (
        "8.1 exists",
        "-ERR_STREAM_EXISTS stream orders already exists~",
        encode_error("ERR_STREAM_EXISTS", "stream orders already exists"),
        ErrorReply("ERR_STREAM_EXISTS", "stream orders already exists"),
    ),
    (
        "8.2 not monotonic",
        "-ERR_NON_MONOTONIC_ID provided timestamp ID 5 is below 6~",
        encode_error("ERR_NON_MONOTONIC_ID", "provided timestamp ID 5 is below 6"),
        ErrorReply("ERR_NON_MONOTONIC_ID", "provided timestamp ID 5 is below 6"),
    ),
    (
        "S3P-31 the greatest id",
        f"$41~{U64_MAX}-{U64_MAX}~",
        encode_id(Position(U64_MAX, U64_MAX)),
        Id(Position(U64_MAX, U64_MAX)),
    ),
    ("S3P-31 the least id", "$3~0-0~", encode_id(Position(0, 0)), Id(Position(0, 0))),
]


def decoded(wire: bytes, limits: ReplyLimits | None = None) -> tuple[list[Reply], str | None]:
    """The replies in the bytes in one piece; byte by byte they are the same."""
    whole, single = ReplyDecoder(limits), ReplyDecoder(limits)
    found = whole.feed(wire)
    pieces = [reply for byte in wire for reply in single.feed(bytes((byte,)))]
    assert pieces == found
    assert str(single.error) == str(whole.error)
    assert whole.error is None or isinstance(whole.error, MalformedReply)
    return found, None if whole.error is None else str(whole.error)


@pytest.mark.parametrize(
    ("text", "encoded", "reply"),
    [pytest.param(text, encoded, reply, id=name) for name, text, encoded, reply in EXAMPLES],
)
def test_replies_both_ways(text: str, encoded: bytes, reply: Reply) -> None:
    assert encoded == w(text)
    assert decoded(encoded) == ([reply], None)


@given(st.lists(st.integers(0, 1000)), st.integers(1, 3))
def test_s3p_11_any_split_gives_the_same_replies(places: list[int], times: int) -> None:
    wire = b"".join(encoded for _, _, encoded, _ in EXAMPLES) * times
    decoder = ReplyDecoder()
    pieces = cut(wire, [place * len(wire) // 1000 for place in places])
    found = [reply for piece in pieces for reply in decoder.feed(piece)]
    assert found == [reply for *_, reply in EXAMPLES] * times
    assert decoder.error is None and not decoder.is_midway


def test_s3a_30_a_reply_without_its_end_is_not_given_out() -> None:
    for _, text, _, reply in EXAMPLES:
        decoder = ReplyDecoder()
        assert decoder.feed(w(text)[:-1]) == [] and decoder.is_midway
        assert decoder.feed(b"\n") == [reply] and not decoder.is_midway


def plainly(ids: list[Position], bodies: list[bytes]) -> bytes:
    """The reply to a READ, made without the code under test."""
    texts = [f"{each.ms}-{each.seq}".encode() for each in ids]
    pairs = [text for pair in zip(texts, bodies, strict=True) for text in pair]
    strings = (b"$" + str(len(text)).encode() + b"\r\n" + text + b"\r\n" for text in pairs)
    return b"*" + str(len(pairs)).encode() + b"\r\n" + b"".join(strings)


@pytest.mark.parametrize("seq", [0, 7, 9, 10, 95, 999, 1995, 2047, 2048, 9990, 10**18 - 3])
@pytest.mark.parametrize("size", [1, 9, 100, 2048, 2049])
def test_s3p_32_runs_of_consecutive_ids(seq: int, size: int) -> None:
    """Through every change of an id's length and of the tables behind the encoder."""
    for count in (1, 2, 3, 10, 120):
        bodies = [b"b" * (size + (n == 1)) for n in range(count)]
        ids = [Position(MS, seq + n) for n in range(count)]
        wire = encode_records([span(bodies, MS, seq)])
        assert wire == plainly(ids, bodies)
        decoder = ReplyDecoder()
        assert decoder.feed(wire) == [Records(list(zip(ids, bodies, strict=True)))]


bodies_of = st.lists(st.binary(min_size=1, max_size=20), max_size=12)


@given(st.lists(st.tuples(bodies_of, st.integers(0, 2000), st.booleans()), max_size=6))
def test_s3p_32_spans_of_every_kind(parts: list[tuple[list[bytes], int, bool]]) -> None:
    spans, ids, bodies = [], [], []
    for some, seq, is_given in parts:
        own = [Position(MS + n * is_given, seq + n) for n in range(len(some))]
        spans.append(span(some, MS, seq, own if is_given else None))
        ids += own
        bodies += some
    assert encode_records(spans) == plainly(ids, bodies)


@pytest.mark.parametrize(
    "text",
    [
        "x\r\n+OK",
        "\n",
        "a" * 1000,
        "\0\x7f\x80\xff",
        "\u2028 \U0001f600",
        printable(b"x\r\n+OK\xff" * 50),
        "",
    ],
)
def test_s3p_02_s3p_43_an_error_is_one_line_of_printable_ascii(text: str) -> None:
    """S3A-06: whatever a client put into it."""
    line = encode_error("ERR_STREAM_EXISTS", text)
    assert line.startswith(b"-ERR_STREAM_EXISTS ")
    assert line.endswith(b"\r\n")
    assert len(line) <= 203
    assert all(0x20 <= byte <= 0x7E for byte in line[:-2])
    (found,), error = decoded(line)
    assert isinstance(found, ErrorReply) and found.code == "ERR_STREAM_EXISTS" and error is None


def test_s3a_06_names_are_distinct_in_errors() -> None:
    assert printable(b"orders/1") == "orders/1"
    assert printable(b"a\r\n\0\x7f\xff") == r"a\x0d\x0a\x00\x7f\xff"


MALFORMED = [
    *(":1~", "_~", "x", "~", "\n"),
    *("+OKAY~", "+ok~", "+OK\n", "+OK\rx", "+~"),
    *("$0~", "$-1~", "$3\n", "$3~0-0x", "$3~0-0\n", "$3~abc~", "$1~1~", "$42~", "$ 3~"),
    *("*1~", "*3~", "*-1~", "*2~:", "*2~+", "*2~$0~", "*2~$3~0-0~$0~", "*2~$3~0-0~*"),
    *("*2~$3~0_0~$1~x~", "*2~$3~0-0~$1~xx", "*10~", "*2~$3~0-0~$41~", "-ERR x\n", "-ERR\rx"),
    *("*6~" + "$3~0-0~$40~" + "x" * 40 + "~$3~0-1~$40~" + "x" * 40 + "~$3~0-2~$11~",),
    *("-" + "x" * 31, "+" + "x" * 31, "*99999999999999999999~", "$" + "1" * 21),
    *("*2~$42~", "$41~" + "0" * 20 + "-" + "9" * 20 + "~"),
]
LIMITS = ReplyLimits(records_max=4, record_bytes_max=40, reply_bytes_max=90, line_bytes_max=30)


@pytest.mark.parametrize("text", MALFORMED)
def test_bytes_that_are_no_reply_end_the_stream(text: str) -> None:
    """S3P-01 to S3P-06, S3P-43 from the other end: a client is as strict, and as bounded."""
    before = w("+OK~$3~1-2~*0~")
    for behind in (b"", b"~", before):
        found, error = decoded(before + w(text) + behind, LIMITS)
        assert found == [Ok(), Id(Position(1, 2)), Records([])]
        assert error is not None


@pytest.mark.parametrize(
    "wire",
    [
        pytest.param(w("$42~" + "0" * 40 + "-1~"), id="id"),
        pytest.param(w("*2~$42~" + "0" * 40 + "-1~$1~x~"), id="id of a record"),
        pytest.param(encode_records([span([b"x"] * 5, 0, 0)]), id="records"),
        pytest.param(encode_records([span([b"x" * 41], 0, 0)]), id="record"),
        pytest.param(encode_records([span([b"x" * 31] * 3, 0, 0)]), id="aggregate"),
    ],
)
def test_whole_replies_beyond_a_limit(wire: bytes) -> None:
    found, error = decoded(wire, LIMITS)
    assert found == [] and error is not None


def test_limits_of_replies_at_their_edge() -> None:
    """At the edge; one beyond is among what is malformed."""
    records = [(Position(0, n), b"x" * size) for n, size in enumerate((40, 40, 9, 1))]
    wire = encode_records([span([body for _, body in records], 0, 0)])
    assert decoded(wire, LIMITS) == ([Records(records)], None)
    found, error = decoded(w("-" + "x" * 30 + "~"), LIMITS)
    assert found == [ErrorReply("x" * 30, "")] and error is None

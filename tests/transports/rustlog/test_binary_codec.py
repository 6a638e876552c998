"""RustLog's binary form: its bytes both ways, any split, what is refused, limits at their edges."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.positions import Position
from millpond.actors.streams.messages import U64_MAX, RecordColumns
from millpond.transports.errors import FrameEmpty, FrameTooLarge
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import (
    BinaryResponseDecoder,
    MalformedPayload,
    decode_error,
    decode_request,
    decode_response,
    encode_produced,
    encode_request,
    encode_response,
    record_run,
)
from millpond.transports.rustlog.binary_messages import (
    BinaryError,
    BinaryRequest,
    BinaryResponse,
    ErrorCode,
    MetricsText,
    PartitionWatermark,
    RecordRun,
    TopicCreated,
    TopicWatermarks,
)
from millpond.transports.rustlog.codec import RustlogLimits
from millpond.transports.rustlog.decoder import NO_MEMORY, NO_MEMORY_IN_BINARY, Decoder

pytestmark = pytest.mark.wire

LIMITS = RustlogLimits()
FRAME_MAX = 10_485_760
RECORD_MAX = 7_863_296
U32_MAX = 2**32 - 1

REQUESTS: list[tuple[str, r.Request]] = [
    (
        "00000020 01 0004 64656d6f 00000000 00000002 00000005 68656c6c6f 00000004 66726f6d",
        r.Produce("demo", 0, [b"hello", b"from"]),
    ),
    (
        "00000019 02 0000 0004 64656d6f 00000000 0000000000000007 00100000",
        r.Fetch("demo", 0, 7, 2**20, ""),
    ),
    (
        "0000001b 02 0002 6731 0004 64656d6f 00000000 0000000000000000 00100000",
        r.Fetch("demo", 0, 0, 2**20, "g1"),
    ),
    (
        "00000017 03 0002 6731 0004 64656d6f 00000000 0000000000000009",
        r.OffsetCommit("g1", "demo", 0, 9),
    ),
    ("0000000f 04 0002 6731 0004 64656d6f 00000000", r.OffsetFetch("g1", "demo", 0)),
    ("0000000b 05 0004 64656d6f 00000003", r.CreateTopic("demo", 3)),
    ("00000001 06", r.ListTopics()),
    ("00000007 07 0004 64656d6f", r.DescribeTopic("demo")),
    ("0000000b 08 0004 64656d6f 00000000", r.DescribePartition("demo", 0)),
    ("00000001 09", r.MetricsFetch()),
    ("00000001 ff", r.Ping()),
]
RESPONSES: list[tuple[str, BinaryResponse]] = [
    ("0000000d 01 0000000000000007 00000002", r.ProduceResponse(7, 2)),
    (
        "0000001e 02 00000002 00000005 68656c6c6f 00000004 66726f6d 0000000000000009",
        RecordRun([b"hello", b"from"], 9),
    ),
    ("0000000d 02 00000000 0000000000000009", RecordRun([], 9)),
    ("00000002 03 01", r.OffsetCommitResponse(True)),
    ("0000000a 04 01 0000000000000009", r.OffsetFetchResponse(9)),
    ("00000002 04 00", r.OffsetFetchResponse(None)),
    ("00000002 05 01", TopicCreated(True)),
    ("0000000f 06 00000001 0004 64656d6f 00000003", r.ListTopicsResponse([r.TopicRow("demo", 3)])),
    (
        "00000033 07 0004 64656d6f 00000003 00000003 00000000 0000000000000009 00000001"
        "0000000000000000 00000002 0000000000000000",
        TopicWatermarks("demo", [(0, 9), (1, 0), (2, 0)]),
    ),
    ("00000013 08 0004 64656d6f 00000000 0000000000000009", PartitionWatermark("demo", 0, 9)),
    ("0000000a 09 00000005 757020310a", MetricsText("up 1\n")),
    ("00000001 ff", r.Pong()),
    ("0000000d fe 000a 0008 6e6f20746f706963", BinaryError(10, "no topic")),
]


def requests_of(*pieces: bytes) -> list[r.Request | BinaryError]:
    decoder = Decoder(LIMITS)
    found = [each for piece in pieces for each in decoder.feed(piece)]
    assert decoder.error is None
    return [with_list(each.request) for each in found if isinstance(each, BinaryRequest)]


def with_list(request: r.Request | r.PackedProduce | BinaryError) -> r.Request | BinaryError:
    """The same request with a list of its records, which native codecs keep as one string."""
    if not isinstance(request, r.PackedProduce):
        return request
    packed = request.records
    wire = b"\xdd" + packed.count.to_bytes(4, "big") + packed.data
    records = msgspec.msgpack.decode(wire, type=list[bytes])
    return r.Produce(request.topic, request.partition, records)


def read(payload: bytes | str) -> r.Request | BinaryError:
    data = bytes.fromhex(payload) if isinstance(payload, str) else payload
    try:
        return with_list(decode_request(data, LIMITS))
    except MalformedPayload as error:
        return decode_error(error)


def produce_of(count: int, size: int = 0) -> bytes:
    return encode_request(r.Produce("t", 0, [bytes(size)] * count))[4:]


def framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


@pytest.mark.parametrize(("wire", "request_"), REQUESTS)
def test_requests_byte_for_byte(wire: str, request_: r.Request) -> None:
    """Whole frames, which the encoder of the Rust program prints alike."""
    frame = bytes.fromhex(wire)
    assert encode_request(request_) == frame
    assert requests_of(frame) == [request_]


@pytest.mark.parametrize(("wire", "response"), RESPONSES)
def test_responses_byte_for_byte(wire: str, response: BinaryResponse) -> None:
    frame = bytes.fromhex(wire)
    assert encode_response(response) == frame
    assert BinaryResponseDecoder().feed(frame) == [response]


def test_a_produced_answer_is_the_same_by_the_short_way() -> None:
    for base, count in ((7, 2), (0, 0), (U64_MAX, 65_536)):
        assert encode_produced(base, count) == encode_response(r.ProduceResponse(base, count))


@pytest.mark.parametrize(("wire", "request_"), REQUESTS)
def test_bytes_behind_the_last_field_are_ignored(wire: str, request_: r.Request) -> None:
    """RB-07: also where they look like one more record."""
    payload = bytes.fromhex(wire)[4:]
    for more in (b"\0", b"\0\0\0\0", bytes.fromhex("00000001 61"), b"{}"):
        assert read(payload + more) == request_


@pytest.mark.parametrize("bodies", [[], [b"x"], [b"", b"x"], [b"x", b"", b"y"]])
def test_nothing_is_made_of_what_is_behind_the_records(bodies: list[bytes]) -> None:
    """RB-07: a million more of them would be a million objects."""
    payload = encode_request(r.Produce("a", 0, bodies))[4:] + b"\0\0\0\1z" * 1_000_000
    peak_max = 2 * len(payload)
    tracemalloc.start()
    try:
        found = read(payload)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == r.Produce("a", 0, bodies)
    assert peak < peak_max


@pytest.mark.parametrize(("wire", "_request"), REQUESTS)
def test_every_truncated_request_is_a_decode_error(wire: str, _request: r.Request) -> None:
    """RB-08."""
    payload = bytes.fromhex(wire)[4:]
    for end in range(1, len(payload)):
        found = read(payload[:end])
        assert isinstance(found, BinaryError) and found.code == ErrorCode.DECODE, payload[:end]
        assert found.message.startswith("Decode error: ")


@pytest.mark.parametrize(("wire", "_response"), RESPONSES)
def test_every_truncated_response_is_malformed(wire: str, _response: BinaryResponse) -> None:
    payload = bytes.fromhex(wire)[4:]
    for end in range(1, len(payload)):
        with pytest.raises(MalformedPayload):
            decode_response(payload[:end])


@pytest.mark.parametrize(
    "payload",
    [
        "01 0001 61 00000000 7fffffff",
        "01 0001 61 00000000 ffffffff 00000000",
        "01 0001 61 00000000 00000002 00000001 61 ffffffff",
        "01 ffff 61",
        "02 0000 ffff 61",
        "07 0001 ff",
        "05 0002 c3 28 00000001",
        "08 0003 eda080 00000000",
    ],
)
def test_lengths_that_lie_cost_nothing(payload: str) -> None:
    """RB-08: the first one makes the Rust program ask for 48 GiB."""
    data = bytes.fromhex(payload)
    tracemalloc.start()
    try:
        found = read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, BinaryError) and found.code == ErrorCode.DECODE
    assert peak < 2**16


@pytest.mark.parametrize(
    "payload",
    ["02 7fffffff", "06 7fffffff", "06 00000001 ffff", "07 0000 00000000 ffffffff", "09 ffffffff"],
)
def test_a_client_believes_no_length_either(payload: str) -> None:
    with pytest.raises(MalformedPayload):
        decode_response(bytes.fromhex(payload))


def test_unknown_types() -> None:
    """RB-33, and answers of another type."""
    assert read(b"\x0a") == BinaryError(2, "Decode error: unknown request type: 10")
    assert read(b"\xfe") == BinaryError(2, "Decode error: unknown request type: 254")
    for first in (0x00, 0x0A, 0x81, 0xFD):
        with pytest.raises(MalformedPayload):
            decode_response(bytes((first,)))


def test_flags_of_answers() -> None:
    """RB-06: only 01 is a created topic, and all but 00 a commit that succeeded."""
    for flag in range(256):
        assert decode_response(bytes((5, flag))) == TopicCreated(flag == 1)
        assert decode_response(bytes((3, flag))) == r.OffsetCommitResponse(flag != 0)


def test_limits_of_a_produce() -> None:
    """RB-13, RB-14."""
    head = bytes.fromhex("01 0001 61 00000000")
    many = head + (65_536).to_bytes(4, "big") + bytes(4 * 65_537)
    found = read(many)
    assert isinstance(found, r.Produce) and len(found.records) == 65_536
    more = read(head + (65_537).to_bytes(4, "big") + bytes(4 * 65_537))
    assert isinstance(more, BinaryError) and more.code == 500
    for size in (RECORD_MAX, RECORD_MAX + 1):
        found = read(encode_request(r.Produce("a", 0, [b"x", bytes(size)]))[4:])
        if size == RECORD_MAX:
            assert isinstance(found, r.Produce)
        else:
            text = "Failed to write record: record too large: 7863297 bytes"
            assert found == BinaryError(500, text)


@pytest.mark.parametrize("name", ["", "a/b", "a\n", "caf\u00e9", "x" * 256, "\0"])
def test_names_that_no_topic_has(name: str) -> None:
    """RB-24."""
    found = read(encode_request(r.CreateTopic(name, 1))[4:])
    assert isinstance(found, BinaryError) and found.code == 2


@pytest.mark.parametrize("count", [0, 1001, U32_MAX])
def test_numbers_of_partitions_that_no_topic_has(count: int) -> None:
    found = read(encode_request(r.CreateTopic("a", count))[4:])
    assert isinstance(found, BinaryError) and found.code == 12


def test_messages_are_short_ascii() -> None:
    """RB-31."""
    wire = encode_response(BinaryError(500, "\u00e9" + "x" * 300))
    assert (
        wire[4:9] == bytes.fromhex("fe 01f4 00c8") and len(wire) == 9 + 200 and wire.isascii() < 1
    )
    assert wire[9:].startswith(rb"\xe9xx") and wire[9:].isascii()


@pytest.mark.parametrize(
    "bad",
    [
        r.Produce("a", -1, []),
        r.Fetch("a", 0, 2**64, 0, ""),
        r.OffsetCommit("g", "a", 2**32, 0),
        r.DescribeTopic("x" * 65_536),
    ],
)
def test_values_that_no_field_holds_are_not_written(bad: r.Request) -> None:
    with pytest.raises(ValueError):
        encode_request(bad)


# Which form is it (RB-02, RB-03)?


def decoded(*payloads: bytes) -> list[object]:
    decoder = Decoder(LIMITS)
    found: list[object] = [*decoder.feed(b"".join(map(framed, payloads)))]
    return [*found, decoder.error] if decoder.error is not None else found


PING, LIST = b'{"type":"Ping"}', b"\x06"


def test_the_form_is_decided_by_the_payload_of_each_frame() -> None:
    assert decoded(PING, LIST, b"\xff", PING) == [
        r.Ping(),
        BinaryRequest(r.ListTopics()),
        BinaryRequest(r.Ping()),
        r.Ping(),
    ]


@pytest.mark.parametrize("space", [b"", b"\t", b"\n", b"\r", b" ", b"\t\r\n ", b"\t\t"])
def test_white_space_before_json(space: bytes) -> None:
    """RB-02: a tab is MetricsFetch as well."""
    assert decoded(space + PING) == [r.Ping()]
    assert decoded(b"\xff", space + PING) == [BinaryRequest(r.Ping()), r.Ping()]


@pytest.mark.parametrize("payload", [b"\t", b"\t ", b"\t\t", b"\tx", b"\t[", b"\t\0"])
def test_a_tab_before_all_else_is_a_request_for_metrics(payload: bytes) -> None:
    assert decoded(payload) == [BinaryRequest(r.MetricsFetch())]


@pytest.mark.parametrize("first", [*b'[0a"\n\r \0\xef\x0a\x7f\xfe\xfd'])
def test_anything_else_is_json_on_a_connection_that_speaks_no_binary(first: int) -> None:
    """It is malformed, so the connection ends; on one that spoke binary it stays open (RB-33)."""
    payload = bytes((first,)) + b"?"
    (error,) = decoded(payload)
    assert isinstance(error, r.Error) and error.code == 400
    assert isinstance(decoded(LIST, PING, payload)[-1], r.Error)
    text = f"Decode error: unknown request type: {first}"
    assert decoded(LIST, payload, LIST)[1:] == [
        BinaryRequest(BinaryError(2, text)),
        BinaryRequest(r.ListTopics()),
    ]


def records_of(json_records: str) -> bytes:
    return f'{{"type":"Produce","topic":"t","partition":0,"records":[{json_records}]}}'.encode()


@pytest.mark.parametrize(
    "refused",
    [
        produce_of(65_537),
        produce_of(1, RECORD_MAX + 1),
        encode_request(r.CreateTopic("t", 0))[4:],
        encode_request(r.CreateTopic("a/b", 1))[4:],
    ],
    ids=["records", "record", "partitions", "name"],
)
def test_a_request_whose_values_are_refused_is_of_its_form(refused: bytes) -> None:
    """RB-03: it is well-formed."""
    error, unknown = decoded(refused, b"?")
    assert isinstance(error, BinaryRequest) and isinstance(error.request, BinaryError)
    assert isinstance(unknown, BinaryRequest)


@pytest.mark.parametrize(
    "refused",
    [
        records_of(""),
        records_of(",".join(['"YQ=="'] * 1001)),
        records_of(",".join(['"%s"' % ("YWFh" * 20)] * 1001)),
        b'{"type":"CreateTopic","topic":"t","partition_count":0}',
        b'{"type":"CreateTopic","topic":"a/b","partition_count":1}',
        b'{"type":"OffsetFetch","group":"","topic":"t","partition":0}',
        b'{"type":"Fetch","topic":"t","partition":0,"offset":18446744073709551616}',
    ],
    ids=["no record", "records", "large", "partitions", "name", "group", "offset"],
)
def test_the_same_of_a_request_in_json(refused: bytes) -> None:
    first, error, unknown = decoded(LIST, refused, b"?")
    assert isinstance(first, BinaryRequest)
    assert isinstance(error, r.Error) and isinstance(unknown, r.Error)


@pytest.mark.parametrize("payload", [b"\x01", b"\x05\0\1a", b"\x07\0\1\xff"])
def test_a_malformed_request_does_not_change_the_form_of_errors(payload: bytes) -> None:
    """RB-03."""
    error, unknown = decoded(payload, b"?")
    assert isinstance(error, BinaryRequest) and isinstance(unknown, r.Error)


@pytest.mark.parametrize(
    "payload",
    [
        b'{"type":"Nothing"}',
        b"{}",
        b'{"type":"DescribeTopic"}',
        b'{"type":"DescribeTopic","topic":7}',
        b'{"type":"DescribePartition","topic":"t","partition":-1}',
        b'{"type":"Ping","type":"Ping"}',
        b'{"type":"DescribeTopic","topic":"\\ud800"}',
    ],
)
def test_nor_does_a_malformed_one_in_json(payload: bytes) -> None:
    first, error, unknown = decoded(LIST, payload, b"?")
    assert isinstance(first, BinaryRequest) and isinstance(error, r.Error)
    assert isinstance(unknown, BinaryRequest)


def test_lengths_that_are_no_frame() -> None:
    """RB-32: in the form that the connection speaks."""
    for first, size, text in (
        (LIST, 0, "Frame error: invalid protocol: zero-length frame"),
        (LIST, FRAME_MAX + 1, f"Frame error: frame too large: {FRAME_MAX + 1} bytes (max: "),
        (PING, 0, None),
        (PING, FRAME_MAX + 1, None),
        (None, 0, None),
    ):
        decoder = Decoder(LIMITS)
        wire = b"" if first is None else framed(first)
        assert len(decoder.feed(wire + size.to_bytes(4, "big"))) == bool(wire)
        if text is None:
            assert isinstance(decoder.error, r.Error)
        else:
            assert isinstance(decoder.error, BinaryRequest)
            error = decoder.error.request
            assert isinstance(error, BinaryError) and error.code == 1
            assert error.message.startswith(text)
        assert decoder.feed(framed(LIST)) == []


def test_a_large_request_without_memory_is_refused_in_its_form() -> None:
    """RB-31: 500. The connection goes on behind it."""
    large = encode_request(r.Produce("a", 0, [bytes(50_000)]))
    for wire, answer in (
        (large, NO_MEMORY_IN_BINARY),
        (framed(b'{"type":"Ping","x":"' + b"x" * 50_000), NO_MEMORY),
    ):
        decoder = Decoder(LIMITS)
        assert decoder.feed(wire[:30_000]) == []
        assert decoder.refuse() is answer
        rest = decoder.feed(wire[30_000:] + framed(LIST))
        assert rest == [BinaryRequest(r.ListTopics())]


# Properties.

names = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
u32 = st.integers(0, U32_MAX)
u64 = st.integers(0, U64_MAX)
records = st.lists(st.binary(max_size=30), max_size=12)
requests = st.one_of(
    st.builds(r.Produce, names, u32, records),
    st.builds(r.Fetch, names, u32, u64, u32, names),
    st.builds(r.OffsetCommit, names, names, u32, u64),
    st.builds(r.OffsetFetch, names, names, u32),
    st.builds(r.CreateTopic, st.from_regex(r"[A-Za-z0-9_-]{1,255}", fullmatch=True), st.just(9)),
    st.sampled_from([r.ListTopics(), r.MetricsFetch(), r.Ping()]),
    st.builds(r.DescribeTopic, names),
    st.builds(r.DescribePartition, names, u32),
)
responses: st.SearchStrategy[BinaryResponse] = st.one_of(
    st.builds(r.ProduceResponse, u64, u32),
    st.builds(RecordRun, records, u64),
    st.builds(r.OffsetCommitResponse, st.booleans()),
    st.builds(r.OffsetFetchResponse, st.none() | u64),
    st.builds(TopicCreated, st.booleans()),
    st.builds(r.ListTopicsResponse, st.lists(st.builds(r.TopicRow, names, u32), max_size=5)),
    st.builds(TopicWatermarks, names, st.lists(st.tuples(u32, u64), max_size=5)),
    st.builds(PartitionWatermark, names, u32, u64),
    st.builds(MetricsText, names),
    st.builds(BinaryError, st.integers(0, 65_535), st.text(st.characters(codec="ascii"))),
)


def test_a_produce_of_many_records_comes_back() -> None:
    for records in ([b""] * 8, [b"%d" % number for number in range(100)]):
        sent = r.Produce("t", 3, records)
        assert requests_of(encode_request(sent)) == [sent]


@given(st.lists(requests, max_size=5), st.data())
def test_requests_come_back_whatever_the_split(sent: list[r.Request], data: st.DataObject) -> None:
    wire = b"".join(map(encode_request, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    pieces = [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]
    assert requests_of(*pieces) == sent


@given(st.lists(responses, max_size=5), st.data())
def test_responses_come_back_whatever_the_split(
    sent: list[BinaryResponse], data: st.DataObject
) -> None:
    wire = b"".join(map(encode_response, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=6)))
    decoder = BinaryResponseDecoder()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:end])
    assert decoder.error is None
    cut = [BinaryError(e.code, e.message[:200]) if isinstance(e, BinaryError) else e for e in sent]
    assert found == cut


@given(st.binary(max_size=80))
def test_any_payload_is_a_request_or_an_error(payload: bytes) -> None:
    first = payload[:1] or b"\x01"
    found = read(first + payload[1:])
    if isinstance(found, BinaryError):
        assert found.code in (2, 12, 500) and found.message


@given(st.binary(min_size=1, max_size=80))
def test_any_payload_is_a_response_or_malformed(payload: bytes) -> None:
    try:
        decode_response(payload)
    except MalformedPayload as error:
        assert str(error)


def test_a_client_stops_at_what_it_cannot_read() -> None:
    good = encode_response(r.Pong())
    for bad, kind in (
        (framed(b"\x0a"), MalformedPayload),
        (bytes(4), FrameEmpty),
        (b"\xff" * 4, FrameTooLarge),
    ):
        decoder = BinaryResponseDecoder()
        assert decoder.feed(good + bad + good) == [r.Pong()]
        assert isinstance(decoder.error, kind)
        assert decoder.feed(good) == []


# Answers to Fetch (RB-18 to RB-20).


def span(first: int, *bodies: bytes) -> RecordColumns:
    return RecordColumns(first, list(bodies), 1, Position(1, 0))


FIVE = span(3, *[b"12345"] * 5)


@pytest.mark.parametrize(
    ("max_bytes", "count"),
    [(0, 0), (1, 1), (17, 1), (33, 1), (34, 2), (50, 2), (51, 3), (85, 5), (U32_MAX, 5)],
)
def test_a_record_costs_twelve_bytes_more(max_bytes: int, count: int) -> None:
    """RB-18."""
    for spans in ([FIVE], [span(3, b"12345"), span(4, *[b"12345"] * 4)]):
        run = record_run(spans, 3, 8, max_bytes, FRAME_MAX)
        assert run == RecordRun([b"12345"] * count, 3 + count)


def test_a_frame_is_never_too_large() -> None:
    """RB-19."""
    large = span(0, bytes(6_000_000), bytes(4_485_739), b"")
    run = record_run([large], 0, 3, U32_MAX, FRAME_MAX)
    assert [len(each) for each in run.records] == [6_000_000, 4_485_739]
    assert len(encode_response(run)) == 4 + FRAME_MAX
    larger = span(0, bytes(6_000_000), bytes(4_485_740))
    assert record_run([larger], 0, 2, U32_MAX, FRAME_MAX).next_offset == 1


def test_an_answer_has_no_gap() -> None:
    """RB-20."""
    spans = [span(5, b"a", b"b"), span(7, b"c"), span(9, b"d")]
    assert record_run(spans, 5, 10, 1000, FRAME_MAX) == RecordRun([b"a", b"b", b"c"], 8)
    assert record_run(spans[2:], 8, 10, 1000, FRAME_MAX) == RecordRun([], 9)
    assert record_run(spans[2:], 9, 10, 1000, FRAME_MAX) == RecordRun([b"d"], 10)
    assert record_run([], 9, 12, 1000, FRAME_MAX) == RecordRun([], 12), "all of them are hidden"
    assert record_run([], 50, 12, 1000, FRAME_MAX) == RecordRun([], 50), "beyond the end (RB-17)"


@given(
    st.lists(st.integers(0, 40), max_size=12),
    st.integers(0, 300),
    st.integers(60, 300),
    st.lists(st.integers(1, 5), max_size=4),
)
def test_an_answer_is_the_longest_that_fits(
    sizes: list[int], max_bytes: int, frame_bytes: int, lengths: list[int]
) -> None:
    bodies = [bytes((at,)) * size for at, size in enumerate(sizes)]
    spans, at = [], 0
    for length in [*lengths, len(bodies)]:
        if bodies[at : at + length]:
            spans.append(span(at, *bodies[at : at + length]))
            at += length
    run = record_run(spans, 0, len(bodies), max_bytes, frame_bytes)
    count = len(run.records)
    assert run == RecordRun(bodies[:count], count)

    def fits(count: int) -> bool:
        cost = sum(map(len, bodies[:count]))
        in_bytes = cost + 12 * count <= max_bytes or (count == 1 and max_bytes > 0)
        return in_bytes and 13 + cost + 4 * count <= frame_bytes

    assert count == 0 or fits(count)
    assert count == len(bodies) or not fits(count + 1)

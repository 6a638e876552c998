"""RustLog's codec: the wire's bytes, what is refused and how, limits at their edges."""

from __future__ import annotations

import base64
import json
import re
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import U64_MAX, RecordColumns
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.client_codec import ResponseDecoder, encode_request
from millpond.transports.rustlog.codec import (
    RustlogLimits,
    decode_request,
    encode_fetched,
    encode_produced,
    encode_response,
)
from millpond.transports.rustlog.decoder import Decoder
from millpond.transports.rustlog.json_fallback import DecodedJson, MalformedJson, MalformedRequest

pytestmark = pytest.mark.wire

LIMITS = RustlogLimits()
FRAME_MAX = 10_485_760
RECORD_MAX = 7_863_296


def framed(payload: bytes | str) -> bytes:
    """A frame, made without the code under test."""
    data = payload.encode() if isinstance(payload, str) else payload
    return len(data).to_bytes(4, "big") + data


def read(payload: bytes | str) -> DecodedJson:
    try:
        return decode_request(payload.encode() if isinstance(payload, str) else payload, LIMITS)
    except MalformedRequest as error:
        return error.answer


def said(**fields: object) -> str:
    return json.dumps(fields)


def error_of(decoder: Decoder) -> r.Error | None:
    return decoder.error


REQUESTS: list[tuple[str, r.Request]] = [
    (
        '{"type":"Produce","topic":"user-events","partition":0,"records":["eyJ1c2VyIjoiYWxpY2UiLCJ'
        'hY3Rpb24iOiJsb2dpbiJ9","eyJ1c2VyIjoiYm9iIiwiYWN0aW9uIjoic2lnbnVwIn0="]}',
        r.Produce(
            "user-events",
            0,
            [b'{"user":"alice","action":"login"}', b'{"user":"bob","action":"signup"}'],
        ),
    ),
    (
        '{"type":"Fetch","topic":"user-events","partition":0,"offset":100,"max_bytes":1048576,'
        '"group_id":"analytics-consumer"}',
        r.Fetch("user-events", 0, 100, 1048576, "analytics-consumer"),
    ),
    (
        '{"type":"Fetch","topic":"t","partition":1,"offset":18446744073709551615}',
        r.Fetch("t", 1, U64_MAX),
    ),
    (
        '{"type":"OffsetCommit","group":"analytics-pipeline","topic":"user-events","partition":0,'
        '"offset":150}',
        r.OffsetCommit("analytics-pipeline", "user-events", 0, 150),
    ),
    (
        '{"type":"OffsetFetch","group":"g","topic":"t","partition":4294967295}',
        r.OffsetFetch("g", "t", 4294967295),
    ),
    (
        '{"type":"CreateTopic","topic":"logs_A-9","partition_count":1000}',
        r.CreateTopic("logs_A-9", 1000),
    ),
    ('{"type":"ListTopics"}', r.ListTopics()),
    ('{"type":"DescribeTopic","topic":"logs"}', r.DescribeTopic("logs")),
    (
        '{"type":"DescribePartition","topic":"logs","partition":3}',
        r.DescribePartition("logs", 3),
    ),
    ('{"type":"MetricsFetch"}', r.MetricsFetch()),
    ('{"type":"Ping"}', r.Ping()),
]


def test_the_worked_bytes_of_rl_01() -> None:
    ping = bytes.fromhex("0000000f") + b'{"type":"Ping"}'
    assert Decoder(LIMITS).feed(ping) == [r.Ping()]
    assert encode_request(r.Ping()) == ping
    assert encode_response(r.Pong()) == framed('{"type":"Pong"}')


@pytest.mark.parametrize(("text", "request_"), REQUESTS)
def test_each_request_is_the_same_bytes_both_ways(text: str, request_: r.Request) -> None:
    """RL-12, RL-13, RL-19, RL-26 to RL-35."""
    assert Decoder(LIMITS).feed(framed(text)) == [request_]
    assert encode_request(request_) == framed(text)


@pytest.mark.parametrize(("text", "request_"), REQUESTS)
def test_order_white_space_and_escapes_of_a_request_mean_nothing(
    text: str, request_: r.Request
) -> None:
    fields = dict(reversed(json.loads(text).items()))
    escaped = "".join(rf"\u{ord(letter):04x}" for letter in fields["type"])
    odd = json.dumps(fields, indent=3).replace(f'"{fields["type"]}"', f'"{escaped}"')
    assert read(odd) == request_ == read(" \r\n\t" + odd + "\n")


@pytest.mark.parametrize(("text", "request_"), REQUESTS)
def test_unknown_fields_are_ignored(text: str, request_: r.Request) -> None:
    """RL-10."""
    extra = {"zusätzlich": [1.5, None, {"a": {"b": "\u20ac"}}], 'quo"te': {"x": 1e999}}
    wide = json.dumps(json.loads(text) | extra).replace("Infinity", "1e999")
    assert read(wide) == request_
    assert (
        read(
            json.dumps(json.loads(text) | extra, ensure_ascii=False, default=str).replace(
                "Infinity", "17"
            )
        )
        == request_
    )


RESPONSES: list[tuple[str, r.Response]] = [
    ('{"type":"ProduceResponse","base_offset":42,"record_count":2}', r.ProduceResponse(42, 2)),
    (
        '{"type":"FetchResponse","records":[{"offset":100,"timestamp":1641024000000000,"payload":'
        '"eyJ1c2VyIjoiYWxpY2UifQ=="},{"offset":101,"timestamp":1641024001000000,"payload":'
        '"eyJ1c2VyIjoiYm9iIn0="}],"next_offset":102}',
        r.FetchResponse(
            [
                r.FetchedRecord(100, 1641024000000000, b'{"user":"alice"}'),
                r.FetchedRecord(101, 1641024001000000, b'{"user":"bob"}'),
            ],
            102,
        ),
    ),
    ('{"type":"OffsetCommitResponse","success":true}', r.OffsetCommitResponse(True)),
    ('{"type":"OffsetFetchResponse","offset":null}', r.OffsetFetchResponse(None)),
    ('{"type":"OffsetFetchResponse","offset":0}', r.OffsetFetchResponse(0)),
    (
        '{"type":"CreateTopicResponse","success":false,"partitions_created":0}',
        r.CreateTopicResponse(False, 0),
    ),
    (
        '{"type":"ListTopicsResponse","topics":[{"name":"logs","partition_count":3}]}',
        r.ListTopicsResponse([r.TopicRow("logs", 3)]),
    ),
    (
        '{"type":"DescribeTopicResponse","topic":"logs","partitions":[{"partition":0,'
        '"high_watermark":1250,"log_start_offset":10,"segment_count":2}]}',
        r.DescribeTopicResponse("logs", [r.PartitionRow(0, 1250, 10, 2)]),
    ),
    (
        '{"type":"DescribePartitionResponse","topic":"logs","partition":0,"high_watermark":1250,'
        '"log_start_offset":10,"segment_count":2}',
        r.DescribePartitionResponse("logs", 0, 1250, 10, 2),
    ),
    (
        '{"type":"MetricsFetchResponse","metrics":{"active_connections":1},"prometheus":"x 1\\n"}',
        r.MetricsFetchResponse({"active_connections": 1}, "x 1\n"),
    ),
    ('{"type":"Pong"}', r.Pong()),
    (
        '{"type":"Error","code":404,"message":"Topic \'nonexistent\' not found","details":'
        '{"available_topics":["logs","metrics","events"]}}',
        r.Error(
            404,
            "Topic 'nonexistent' not found",
            {"available_topics": ["logs", "metrics", "events"]},
        ),
    ),
    ('{"type":"Error","code":500,"message":"no","details":null}', r.Error(500, "no")),
]


@pytest.mark.parametrize(("text", "response"), RESPONSES)
def test_each_response_is_the_same_bytes_both_ways(text: str, response: r.Response) -> None:
    """The examples of the specification; RL-12, RL-20, RL-27, RL-36, RLA-24, RLA-25."""
    assert encode_response(response) == framed(text)
    assert ResponseDecoder().feed(framed(text)) == [response]


def test_the_answer_of_every_produce_has_a_writer_of_its_own() -> None:
    for response in (r.ProduceResponse(0, 1), r.ProduceResponse(U64_MAX, 1000)):
        made = encode_produced(response.base_offset, response.record_count)
        assert made == encode_response(response)


def test_rla_01_the_example_frame_of_the_specification_is_wrong() -> None:
    payload = '{"type":"Produce","topic":"logs","partition":0,"records":["SGVsbG8gV29ybGQ="]}'
    assert len(payload) == 0x4E
    decoder = Decoder(LIMITS)
    assert decoder.feed(bytes.fromhex("0000004a") + payload.encode()) == []
    assert decoder.error is not None
    assert read(payload) == r.Produce("logs", 0, [b"Hello World"])


CLOSING = [
    b"\xfd",
    b'{"type":"Ping","x":"\xff"}',
    b'{"type":"\xff"}',
    b'{"type":"DescribeTopic","topic":"\xff"}',
    b'{"type":"Produce","topic":"t","partition":0,"records":["\xff"]}',
    b'{"type":"Ping","x":"\xed\xa0\x80"}',
    '{"type":"Ping"}'.encode("utf-16-be"),
    b'\xef\xbb\xbf{"type":"Ping"}',
    b"\x00",
    b" ",
    b"{",
    b'{"type":"Ping"',
    b'{"type":"Ping"}}',
    b'{"type":"Ping"} {}',
    b'{"type":"Ping",}',
    b"{'type':'Ping'}",
    b'{type:"Ping"}',
    b'{"type":"Ping","x":NaN}',
    b'{"type":"Ping","x":Infinity}',
    b'{"type":"Ping","x":-Infinity}',
    b'{"type":"Ping","x":01}',
    b'{"type":"Ping","x":+1}',
    b'{"type":"Ping","x":1.}',
    b'{"type":"Ping","x":"a\nb"}',
    b'{"type":"Ping","x":"\\x41"}',
    b'{"type":"Ping","x":"\\u12g4"}',
    b'{"type":"Ping","x":[1,]}',
    b'{"type":"Ping"/**/}',
    b"[" * 100_000,
    b'{"type":"Ping","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"type":"Produce","topic":7,"partition":0,"records":[}',
    b'{"type":"Nothing","x":}',
    b"[1,2",
    b'"\\ud800',
]


@pytest.mark.parametrize("payload", CLOSING)
def test_bytes_that_are_not_json_in_utf_8_end_the_stream(payload: bytes) -> None:
    """RL-05, RL-06, RLA-10, RLA-16: what came before it counts, what comes after it does not."""
    decoder = Decoder(LIMITS)
    ping = framed('{"type":"Ping"}')
    assert decoder.feed(ping + framed(payload) + ping) == [r.Ping()]
    assert decoder.error is not None and decoder.error.code == 400
    assert decoder.feed(ping) == []


@pytest.mark.parametrize("size", [0, FRAME_MAX + 1, 2**31, 2**32 - 1])
def test_a_bad_length_is_refused_from_its_four_bytes(size: int) -> None:
    """RL-02, RLA-11."""
    decoder = Decoder(LIMITS)
    head = size.to_bytes(4, "big")
    assert decoder.feed(head[:3]) == [] and error_of(decoder) is None
    assert decoder.feed(head[3:]) == []
    assert decoder.error is not None
    assert decoder.error.code == (413 if size else 400)
    if size:
        assert decoder.error.message == "frame too large"


def test_rl_03_a_frame_of_ten_mebibytes_is_legal() -> None:
    rest = FRAME_MAX - len('{"type":"Ping","x":""}')
    payload = b'{"type":"Ping","x":"' + b"x" * rest + b'"}'
    decoder = Decoder(LIMITS)
    data = framed(payload)
    pieces = [data[at : at + 65_536] for at in range(0, len(data), 65_536)]
    assert [each for piece in pieces for each in decoder.feed(piece)] == [r.Ping()]
    assert decoder.error is None


PRODUCE = {"type": "Produce", "topic": "t", "partition": 0, "records": ["AA=="]}
FETCH = {"type": "Fetch", "topic": "t", "partition": 0, "offset": 0}
COMMIT = {"type": "OffsetCommit", "group": "g", "topic": "t", "partition": 0, "offset": 0}
CREATE = {"type": "CreateTopic", "topic": "t", "partition_count": 1}

REFUSED: list[str] = [
    "[]",
    "[1,2]",
    "null",
    "7",
    '"Ping"',
    "{}",
    '{"x":"Ping"}',
    '{"type":null}',
    '{"type":7}',
    '{"type":["Ping"]}',
    '{"type":"ping"}',
    '{"type":"PING"}',
    '{"type":""}',
    '{"type":"Pong"}',
    '{"type":"ProduceResponse","base_offset":1,"record_count":1}',
    '{"type":"Ping","x":"\\ud800"}',
    '{"type":"Ping","x":"\\udc00"}',
    '{"type":"\\udc00"}',
    '{"type":"DescribeTopic","topic":"\\udc00x"}',
    '{"type":"DescribeTopic","topic":"\\ud800\\ud800"}',
    '{"type":"Ping","\\udc00":1}',
    *(json.dumps(PRODUCE | {"partition": each}) for each in (-1, 2**32, 1.0, "0", True, None)),
    *(json.dumps(PRODUCE | {"topic": each}) for each in (7, None, ["t"], True)),
    *(json.dumps(PRODUCE | {"records": each}) for each in ("AA==", None, [1], [None], [["A"]])),
    *(
        json.dumps(PRODUCE | {"records": ["AA==", each]})
        for each in ("A", "AA", "AA=", "AAA", "AA==\n", "A A=", "AA==AA==", "-_-_", "AA=!", "====")
    ),
    json.dumps(PRODUCE | {"records": []}),
    json.dumps(PRODUCE | {"records": [""] * 1001}),
    *(json.dumps(FETCH | {"offset": each}) for each in (-1, 2**64, 10**30, 0.0, 1e3, "0", False)),
    *(json.dumps(FETCH | {"max_bytes": each}) for each in (-1, 2**64, 1.5, None, "1")),
    *(json.dumps(FETCH | {"group_id": each}) for each in (7, None, "g" * 257)),
    *(json.dumps(COMMIT | {"offset": each}) for each in (-1, 2**64, True, None)),
    *(json.dumps(COMMIT | {"group": each}) for each in (7, None, "", "g" * 257, "\u20ac" * 100)),
    *(json.dumps(CREATE | {"partition_count": each}) for each in (0, -1, 1001, 2**32, "1", True)),
    *(
        json.dumps(CREATE | {"topic": each})
        for each in ("", "a" * 256, "a/b", "a b", "a\n", "\u00e9", "\u0661", "a.b", "a\0")
    ),
    *(
        json.dumps({name: value for name, value in whole.items() if name != missing})
        for whole in (PRODUCE, FETCH, COMMIT, CREATE)
        for missing in whole
    ),
    '{"type":"OffsetCommit","group_id":"g","topic":"t","partition":0,"offset":0}',
    '{"type":"Fetch","group":"g","topic":"t","partition":0,"max_bytes":1}',
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_payload_that_is_no_request_is_refused_and_the_stream_goes_on(text: str) -> None:
    """RL-07, RL-08, RL-15, RL-17, RLA-12 to RLA-15, RLA-17, RLA-19, RLA-21 to RLA-23, RLA-26."""
    decoder = Decoder(LIMITS)
    refusal, ping = decoder.feed(framed(text) + framed('{"type":"Ping"}'))
    assert isinstance(refusal, r.Error) and refusal.code == 400 and refusal.message
    assert ping == r.Ping() and decoder.error is None


@pytest.mark.parametrize(
    "text",
    [
        '{"type":"Ping","type":"Ping"}',
        '{"type":"Ping","typ\\u0065":"Ping"}',
        '{"type":"ListTopics","x":1,"x":1}',
        '{"type":"Ping","x":{"a":1,"a":2}}',
        '{"type":"Ping","x":[0,{"b":{"a":1,"\\u0061":2}}]}',
        '{"type":"Produce","topic":"t","partition":0,"records":[],"records":["AA=="]}',
        '{"type":"Produce","topic":"t","partition":0,"records":["AA=="],"records":[]}',
        '{"type":"Fetch","topic":"t","partition":0,"offset":1,"offset":2}',
        '{"type":"Fetch","topic":"t","topic":"\\"","partition":0,"offset":1}',
        '{"type":"Ping","\\"":1,"\\u0022":2}',
    ],
)
def test_rla_15_a_key_twice_is_refused(text: str) -> None:
    assert read(text) == r.Error(400, "duplicate key")


def test_rla_15_objects_too_large_to_look_into_are_refused_too() -> None:
    def ping(size: int) -> DecodedJson:
        return read('{"type":"Ping","x":[' + "{}," * (size // 3) + "0]}")

    assert ping(2**17) == r.Ping()
    assert ping(2**20) == r.Error(400, "duplicate key")


def test_ignored_fields_are_not_built() -> None:
    """A hostile frame of empty lists costs its own size and little more."""
    payload = b'{"type":"Ping","x":[' + b"[]," * 1_000_000 + b"0]}"
    tracemalloc.start()
    try:
        assert read(payload) == r.Ping()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(payload)


@pytest.mark.parametrize(
    ("payload", "answer"),
    [
        (
            b'{"type":"Produce","topic":"t","partition":0,"records":['
            + b'"eHk=",' * 1_000_000
            + b'""]}',
            r.Error(400, "records: at most 1000"),
        ),
        (
            b'{"type":"Ping"' + b"".join(b',"%06x":0' % each for each in range(700_000)) + b"}",
            r.Error(400, "duplicate key"),
        ),
        (b'{"type":"Ping","x":[' + b'":",' * 1_000_000 + b"0]}", r.Error(400, "duplicate key")),
        (b'{"type":"Ping","x":[' + b'"",' * 1_000_000 + b"0]}", r.Ping()),
    ],
    ids=["records", "fields", "colons", "strings"],
)
def test_parts_of_a_large_frame_are_counted_before_they_are_built(
    payload: bytes, answer: DecodedJson
) -> None:
    tracemalloc.start()
    try:
        assert read(payload) == answer
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * len(payload)


def test_stray_bits_of_base64_are_harmless() -> None:
    """RLA-19."""
    assert read(json.dumps(PRODUCE | {"records": ["SGl=", "", "SGk="]})) == r.Produce(
        "t", 0, [b"Hi", b"", b"Hi"]
    )


def test_a_thousand_records_are_a_batch() -> None:
    """RL-15, RLA-22."""
    assert read(json.dumps(PRODUCE | {"records": [""] * 1000})) == r.Produce("t", 0, [b""] * 1000)


def test_rla_05_a_record_that_could_not_be_fetched_is_refused_as_too_large() -> None:
    assert LIMITS.record_bytes_max == RECORD_MAX
    largest = r.Produce("t", 0, [bytes(RECORD_MAX)])
    assert Decoder(LIMITS).feed(encode_request(largest)) == [largest]
    refused = Decoder(LIMITS).feed(encode_request(r.Produce("t", 0, [bytes(RECORD_MAX + 1)])))
    assert isinstance(refused[0], r.Error) and refused[0].code == 413
    span = RecordColumns(U64_MAX, largest.records, U64_MAX, Position(0, 0))
    frame, count, size = encode_fetched([span], U64_MAX)
    assert (count, size) == (1, RECORD_MAX) and len(frame) <= 4 + FRAME_MAX
    (response,) = ResponseDecoder().feed(frame)
    assert isinstance(response, r.FetchResponse)
    assert response.records == [r.FetchedRecord(U64_MAX, U64_MAX, largest.records[0])]


def test_rla_06_a_frame_has_what_fits_and_the_next_offset() -> None:
    bodies = [b"x" * 1_000_000] * 10
    spans = [
        RecordColumns(5, bodies[:3], 7, Position(1, 0)),
        RecordColumns(9, bodies[3:], 0, Position(1, 9), timestamps=list(range(10, 17))),
    ]
    frame, count, size = encode_fetched(spans, 16)
    assert len(frame) <= 4 + FRAME_MAX
    (response,) = ResponseDecoder().feed(frame)
    assert isinstance(response, r.FetchResponse)
    assert [each.offset for each in response.records] == [5, 6, 7, 9, 10, 11, 12]
    assert [each.timestamp for each in response.records] == [7000] * 3 + [
        10000,
        11000,
        12000,
        13000,
    ]
    assert (count, size, response.next_offset) == (7, 7_000_000, 13)


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=40),
    st.integers(0, 2**53),
    st.integers(700, 20_000),
)
def test_rla_06_no_response_is_above_the_limit(bodies: list[bytes], first: int, spare: int) -> None:
    limit = 2048 + spare
    span = RecordColumns(first, bodies, 1_763_683_200_000, Position(1, 1))
    frame, count, _ = encode_fetched([span], first + len(bodies), limit)
    response = json.loads(frame[4:])
    assert 1 <= count == len(response["records"]) and len(frame) - 4 <= limit
    assert response["next_offset"] == first + count
    got = [base64.b64decode(each["payload"]) for each in response["records"]]
    assert got == bodies[:count]


def test_rl_21_nothing_is_an_empty_list() -> None:
    assert encode_fetched((), 8)[0] == framed(
        '{"type":"FetchResponse","records":[],"next_offset":8}'
    )


def cut(wire: bytes, places: list[int]) -> list[bytes]:
    return [wire[start:end] for start, end in pairwise([0, *sorted(places), len(wire)])]


@given(
    st.lists(st.sampled_from([text for text, _ in REQUESTS] + REFUSED[:20]), max_size=6),
    st.sampled_from([b"", framed(b"{"), bytes(4), framed('{"type":"Ping"}')[:-1]]),
    st.data(),
)
def test_any_split_gives_the_same_requests(
    texts: list[str], end: bytes, data: st.DataObject
) -> None:
    """RL-01, RL-04: byte by byte, too."""
    wire = b"".join(map(framed, texts)) + end
    whole = Decoder(LIMITS)
    expected = whole.feed(wire)
    assert len(expected) == len(texts)
    places = data.draw(st.lists(st.integers(0, len(wire)), max_size=8))
    for pieces in (cut(wire, places), [wire[at : at + 1] for at in range(len(wire))]):
        decoder = Decoder(LIMITS)
        assert [each for piece in pieces for each in decoder.feed(piece)] == expected
        assert decoder.error == whole.error


@given(st.binary(max_size=200))
def test_no_bytes_break_the_decoder(data: bytes) -> None:
    decoder = Decoder(LIMITS)
    decoder.feed(data)
    Decoder(LIMITS).feed(framed(data))


@given(st.binary(max_size=60), st.data())
def test_any_records_come_back(data: bytes, more: st.DataObject) -> None:
    """RL-18."""
    records = [*more.draw(st.lists(st.binary(max_size=60), max_size=5)), data]
    request = r.Produce("t", 0, records)
    assert Decoder(LIMITS).feed(encode_request(request)) == [request]


class TestAgainstTheStandardLibrary:
    """The fast path and the fallback, against a reading by `json` (RLA-15, RLA-16)."""

    @staticmethod
    def expected(payload: bytes) -> str:
        """The outcome by the standard library: closed, refused, or accepted."""
        duplicates = []

        def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
            duplicates.append(len(dict(pairs)) < len(pairs))
            return dict(pairs)

        def refuse(constant: str) -> object:
            raise ValueError(constant)

        try:
            value = json.loads(payload.decode(), object_pairs_hook=note, parse_constant=refuse)
        except (ValueError, RecursionError):
            return "closed"
        if any(duplicates) or not isinstance(value, dict):
            return "refused"
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return "refused"
        match value:
            case {"type": "Ping"}:
                return "accepted"
            case {"type": "OffsetFetch", "group": str(g), "topic": str(), "partition": p}:
                is_int = type(p) is int and 0 <= p < 2**32
                return "accepted" if is_int and 0 < len(g.encode()) <= 256 else "refused"
            case {"type": "Produce", "topic": str(), "partition": p, "records": list(records)}:
                is_int = type(p) is int and 0 <= p < 2**32
                return (
                    "accepted"
                    if is_int and records and all(map(_is_base64, records))
                    else "refused"
                )
            case _:
                return "refused"

    @staticmethod
    def outcome(payload: bytes) -> str:
        try:
            found = read(payload)
        except MalformedJson:
            return "closed"
        return "refused" if isinstance(found, r.Error) else "accepted"

    bits = st.sampled_from(
        [
            *('"type"', '"Ping"', '"Produce"', '"OffsetFetch"', '"group"', '"topic"', '"records"'),
            *('"partition"', "0", "1.0", "-0", "1e2", "true", "null", "[", "]", "{", "}", ":", ","),
            *('"AA=="', '"A"', '""', '"\\u0022"', '"\\""', '"\\ud83d\\ude00"', '"\\ud83d"', " "),
            *('"\\udc00"', '"a\\udfff\\udfff"', "\\", "\\u0000"),
            *('"type":"Ping"', '"x":{"a":1,"a":2}', '"x":{"a":1,"b":2}', ',"topic":"t"', '"é"'),
            *(
                ',"partition":0',
                ',"group":"g"',
                ',"records":["AA=="]',
                "NaN",
                "99999999999999999999",
            ),
        ]
    )

    @given(st.sampled_from([text for text, _ in REQUESTS]), st.data())
    def test_mended_requests(self, text: str, data: st.DataObject) -> None:
        kind = json.loads(text)["type"]
        if kind not in ("Ping", "OffsetFetch", "Produce"):
            text = '{"type":"Produce","topic":"t","partition":0,"records":["AA==","QQ=="]}'
        for _ in range(data.draw(st.integers(1, 3))):
            start = data.draw(st.integers(0, len(text)))
            end = min(len(text), start + data.draw(st.integers(0, 4)))
            text = text[:start] + data.draw(self.bits) + text[end:]
        payload = text.encode()
        assert self.outcome(payload) == self.expected(payload), text

    @given(st.lists(bits, max_size=9).map("".join))
    def test_made_of_bits(self, inner: str) -> None:
        payload = ('{"type":"Ping",' + inner + "}").encode()
        assert self.outcome(payload) == self.expected(payload), payload


_BASE64 = re.compile("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")


def _is_base64(text: object) -> bool:
    return isinstance(text, str) and _BASE64.fullmatch(text) is not None


def test_a_client_ends_where_a_response_cannot_be_read() -> None:
    decoder = ResponseDecoder()
    pong = framed('{"type":"Pong"}')
    assert decoder.feed(pong + framed('{"type":"Ping"}') + pong) == [r.Pong()]
    assert decoder.error is not None
    assert decoder.feed(pong) == []
    short = ResponseDecoder(100)
    assert short.feed(framed(b"x" * 101)) == [] and short.error is not None
    broken = ResponseDecoder()
    assert broken.feed(framed(b'{"type":"Error","code":400,"message":"\xff"}')) == []
    assert broken.error is not None


def test_a_client_ignores_what_it_does_not_know() -> None:
    text = '{"type":"ProduceResponse","base_offset":1,"record_count":2,"later":{"x":[1]}}'
    assert ResponseDecoder().feed(framed(text)) == [r.ProduceResponse(1, 2)]


FETCHES = (
    '{"type":"Fetch","topic":"t","partition":0,"offset":%s,"max_bytes":10}',
    '{"offset":%s,"type":"Fetch","topic":"t","partition":3,"max_bytes":10}',
    '{"type":"Fetch","topic":"t","partition":0,"max_bytes":10,"group_id":"g","offset":%s}',
    '{"type":"Fetch","topic":"offset","partition":0,"offset":%s}',
    '{"type":"Fetch","topic":"t","partition":0,"offset": %s}',
    '{"type":"Fetch","topic":"t","partition":0,"offset":%s,"offset":7}',
    '{"type":"Fetch","topic":"t\\u0061","partition":0,"offset":%s}',
    '{"type":"Fetch","topic":"t","partition":0,"offset":%s,"more":{"a":1}}',
)
OFFSETS = ("0", "7", "00", "07", "-1", "1.0", "1e3", " 5", "5 ", "", "12,", "\u0665", '"5"')


@given(
    st.lists(
        st.tuples(
            st.sampled_from(FETCHES),
            st.sampled_from(OFFSETS) | st.integers(0, 2**65).map(str),
        ),
        min_size=2,
        max_size=12,
    )
)
def test_fetches_that_resemble_one_another_are_read_alike(texts: list[tuple[str, str]]) -> None:
    decoder, plain = Decoder(LIMITS), 0
    for text, offset in [(text, each) for text, last in texts for each in ("3", "4", last)]:
        frame = framed(text % offset)
        one, other = decoder.feed_one(frame), Decoder(LIMITS)
        found = decoder.feed(frame) if one is None else [one]
        assert found == other.feed(frame), frame
        assert error_of(decoder) == error_of(other), frame
        plain += one is not None
        if error_of(decoder) is not None:
            return
    assert plain or not any(text in FETCHES[:3] for text, _ in texts)


def test_a_request_is_read_alone_only_where_a_frame_begins() -> None:
    decoder = Decoder(LIMITS)
    frame = framed(FETCHES[0] % "3")
    assert decoder.feed_one(frame) is None
    assert len(decoder.feed(frame)) == 1
    assert decoder.feed_one(frame) == r.Fetch("t", 0, 3, 10)
    assert decoder.feed_one(frame * 2) is None and decoder.feed_one(frame[:-1]) is None
    for rest in (frame[:2], frame[:-3]):
        assert not decoder.feed(rest)
        assert decoder.feed_one(frame) is None
        assert decoder.feed(frame[len(rest) :]) == [r.Fetch("t", 0, 3, 10)]

"""S2's messages as JSON (docs/reference/s2.md)."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.streams.messages import RecordColumns
from millpond.transports.http.s2.codecs.json import (
    BASE64_ROWS,
    RAW_ROWS,
    Format,
    decode_input,
    encode_ack,
    encode_batch,
    encode_tail,
    format_of,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, StreamPosition
from millpond.transports.http.s2.model import AppendAck, AppendInput, RecordBatch
from tests.transports.http.s2.samples import TS, U64, Record, places, records_of, span_of, spans

pytestmark = pytest.mark.wire

RAW, BASE64 = Format.RAW, Format.BASE64


@pytest.mark.parametrize(
    ("body", "form", "expected"),
    [
        ('{"records":[{"body":"one"},{}]}', RAW, AppendInput([b"one", b""])),
        (
            '{"records":[{"timestamp":18446744073709551615,"headers":[["k","v"]],"body":"\\u00e9"},'
            '{"body":""}],"match_seq_num":0,"fencing_token":""}',
            RAW,
            AppendInput(["é".encode(), b""], [[(b"k", b"v")], []], [U64, None], 0, b""),
        ),
        (
            '{"records":[{"timestamp":null,"headers":null,"body":null}],"match_seq_num":null,'
            '"fencing_token":null,"later":[1]}',
            RAW,
            AppendInput([b""]),
        ),
        (
            '{"records":[{"headers":[["aw==","/w=="]],"body":"AP8="},{"body":null}]}',
            BASE64,
            AppendInput([b"\x00\xff", b""], [[(b"k", b"\xff")], []]),
        ),
        ('{"records":[]}', RAW, AppendInput([])),
    ],
)
def test_appends_are_read(body: str, form: Format, expected: AppendInput) -> None:
    """Nulls count as absent; numbers are exact up to 2^64 - 1."""
    assert decode_input(body.encode(), form) == expected


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"[]", "object"),
        (b"{}", "records"),
        (b'{"records":[{"body":1}]}', r"\$\.records\[0\]\.body"),
        (b'{"records":[{"headers":[["a"]]}]}', r"\$\.records\[0\]\.headers\[0\]"),
        (b'{"records":[{"timestamp":-1}]}', "timestamp"),
        (b'{"records":[{"timestamp":18446744073709551616}]}', "timestamp"),
        (b'{"records":[{"timestamp":1.0}]}', r"\$\.records\[0\]\.timestamp"),
        (b'{"records":[{}],"match_seq_num":18446744073709551616}', "match_seq_num"),
        (b'{"records":[{"body":"\\ud800"}]}', "not JSON"),
        (b'{"records":[{"body":"\xff"}]}', "not JSON"),
        (b'{"records":' + b"[" * 100_000, r"\$\.records\[0\]"),
        (b'{"later":' + b"[" * 100_000, "deep"),
    ],
)
@pytest.mark.parametrize("form", Format)
def test_other_json_is_bad_json_and_says_where(body: bytes, says: str, form: Format) -> None:
    with pytest.raises(CodedError, match=says) as caught:
        decode_input(body, form)
    assert caught.value.code is ErrorCode.BAD_JSON


@pytest.mark.parametrize("text", ["YQ", "Y Q=", "_-8=", "YQ==YQ==", "é"])
def test_bad_base64_is_invalid(text: str) -> None:
    """A.3: 422, not 400."""
    for record in ({"body": text}, {"headers": [[text, ""]]}):
        with pytest.raises(CodedError, match=r"\$\.records\[0\]") as caught:
            decode_input(json.dumps({"records": [record]}).encode(), BASE64)
        assert caught.value.code is ErrorCode.INVALID


def test_acks_and_tails() -> None:
    ack = AppendAck(StreamPosition(0, TS), StreamPosition(1, TS), StreamPosition(U64, U64))
    assert encode_ack(ack) == (
        b'{"start":{"seq_num":0,"timestamp":1700000000000},'
        b'"end":{"seq_num":1,"timestamp":1700000000000},'
        b'"tail":{"seq_num":18446744073709551615,"timestamp":18446744073709551615}}'
    )
    assert encode_tail(StreamPosition(3, 4)) == b'{"tail":{"seq_num":3,"timestamp":4}}'


def test_what_is_empty_is_left_out_of_a_batch() -> None:
    span = RecordColumns(7, [b"one", b""], TS, span_of([]).id, None, None, [[], [(b"k", b"")]])
    assert encode_batch(RecordBatch([span], StreamPosition(9, TS)), RAW) == (
        b'{"records":[{"seq_num":7,"timestamp":1700000000000,"body":"one"},'
        b'{"seq_num":8,"timestamp":1700000000000,"headers":[["k",""]]}],'
        b'"tail":{"seq_num":9,"timestamp":1700000000000}}'
    )
    assert encode_batch(RecordBatch(), RAW) == b'{"records":[]}'
    heartbeat = b'{"records":[],"tail":{"seq_num":0,"timestamp":0}}'
    assert encode_batch(RecordBatch(tail=StreamPosition(0, 0)), BASE64) == heartbeat


def test_raw_is_lossy_where_it_is_not_utf_8_and_base64_is_not() -> None:
    span = RecordColumns(0, [b"a\xffb"], TS, span_of([]).id, None, None, [[(b"\xfe", b"\xe2\x82")]])
    (raw,) = json.loads(encode_batch(RecordBatch([span]), RAW))["records"]
    assert (raw["body"], raw["headers"]) == ("a\ufffdb", [["\ufffd", "\ufffd"]])
    (exact,) = json.loads(encode_batch(RecordBatch([span]), BASE64))["records"]
    assert (exact["body"], exact["headers"]) == ("Yf9i", [["/g==", "4oI="]])


@given(st.lists(spans(), max_size=3), st.none() | places)
def test_batches_say_what_the_records_are(
    found: list[RecordColumns], tail: StreamPosition | None
) -> None:
    expected = [each for span in found for each in records_of(span)]
    said = json.loads(encode_batch(RecordBatch(found, tail), BASE64))
    assert [_record(each) for each in said["records"]] == expected
    assert said.get("tail") == (
        None if tail is None else {"seq_num": tail.seq_num, "timestamp": tail.timestamp}
    )


@given(spans())
@pytest.mark.parametrize("rows", [RAW_ROWS, BASE64_ROWS])
def test_each_record_ends_where_it_is_said(rows: object, span: RecordColumns) -> None:
    assert rows in (RAW_ROWS, BASE64_ROWS)
    form = RAW_ROWS if rows is RAW_ROWS else BASE64_ROWS
    written, ends = form.encode(span), form.ends(span)
    assert ends[-1] == len(written)
    for at, record in enumerate(records_of(span)):
        piece = written[ends[at - 1] if at else 0 : ends[at]]
        assert piece.endswith(b",")
        assert json.loads(piece[:-1])["seq_num"] == record[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, RAW), ("raw", RAW), ("json", RAW), ("base64", BASE64), ("JSON-Binsafe", BASE64)],
)
def test_formats_and_their_other_names(value: str | None, expected: Format) -> None:
    assert format_of(value) is expected


def test_an_unknown_format_is_a_bad_header() -> None:
    with pytest.raises(CodedError) as caught:
        format_of("hex")
    assert caught.value.code is ErrorCode.BAD_HEADER


def _record(said: dict[str, object]) -> Record:
    pairs = said.get("headers", [])
    body = said.get("body", "")
    sequence, timestamp = said["seq_num"], said["timestamp"]
    assert isinstance(pairs, list) and isinstance(body, str)
    assert isinstance(sequence, int) and isinstance(timestamp, int)
    assert pairs or "headers" not in said
    assert body or "body" not in said
    read = [(base64.b64decode(name), base64.b64decode(value)) for name, value in pairs]
    return sequence, timestamp, read, base64.b64decode(body)


def test_millions_of_empty_records_are_refused_before_they_are_made() -> None:
    bomb = b'{"records":[%b{}]}' % (b"{}," * 2_000_000)
    with pytest.raises(CodedError) as refused:
        decode_input(bomb, Format.RAW)
    assert refused.value.status == 422


def test_braces_within_bodies_are_no_records() -> None:
    body = '{"a": "\\"{{{"}' * 1000
    data = json.dumps({"records": [{"body": body}] * 3}).encode()
    assert decode_input(data, Format.RAW).bodies == [body.encode()] * 3

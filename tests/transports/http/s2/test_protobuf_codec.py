"""S2's messages as protobuf (docs/reference/s2.md): vectors that the published client makes, both
ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.streams.messages import RecordColumns
from millpond.transports.http.s2 import s2_pb2 as pb
from millpond.transports.http.s2.codecs.protobuf import (
    RECORDS,
    batch_pieces,
    decode_input,
    encode_ack,
    encode_batch,
    is_protobuf,
)
from millpond.transports.http.s2.errors import CodedError, ErrorCode, StreamPosition
from millpond.transports.http.s2.model import AppendAck, AppendInput, RecordBatch
from tests.transports.http.s2.samples import TS, U64, Record, places, records_of, span_of, spans

pytestmark = pytest.mark.wire

# Made with the messages of s2-sdk 0.13.0.
INPUTS = [
    pytest.param("0a051a036f6e650a00", AppendInput([b"one", b""]), id="plain"),
    pytest.param(
        "0a190880d095ffbc3112060a016b12017612030a01651a036f6e650a031a01ff10001a00",
        AppendInput([b"one", b"\xff"], [[(b"k", b"v"), (b"e", b"")], []], [TS, None], 0, b""),
        id="all fields, the conditions set to nothing",
    ),
    pytest.param(
        "0a0d1207120566656e63651a026d650a12120612047472696d1a08000000000000012c1a0174",
        AppendInput(
            [b"me", bytes([0, 0, 0, 0, 0, 0, 1, 44])],
            [[(b"", b"fence")], [(b"", b"trim")]],
            None,
            None,
            b"t",
        ),
        id="commands",
    ),
    pytest.param("", AppendInput([]), id="nothing"),
]


@pytest.mark.parametrize(("wire", "expected"), INPUTS)
def test_an_append_of_the_published_client_is_read(wire: str, expected: AppendInput) -> None:
    assert decode_input(bytes.fromhex(wire)) == expected


def test_what_is_zero_is_left_out_of_an_ack_and_a_place_is_there_even_so() -> None:
    ack = AppendAck(StreamPosition(0, TS), StreamPosition(2, TS), StreamPosition(300, U64))
    wire = "0a071080d095ffbc31120908021080d095ffbc311a0e08ac0210ffffffffffffffffff01"
    assert encode_ack(ack).hex() == wire
    assert encode_batch(RecordBatch(tail=StreamPosition(0, 0))).hex() == "1200"


def test_a_batch_is_what_the_published_client_expects() -> None:
    span = RecordColumns(0, [b"one", b""], TS, span_of([]).id, [TS, TS + 1], None, [[], [K, E]])
    wire = (
        "0a0c1080d095ffbc3122036f6e650a1608011081d095ffbc311a060a016b1201761a030a0165"
        "120908021081d095ffbc31"
    )
    assert encode_batch(RecordBatch([span], StreamPosition(2, TS + 1))).hex() == wire


K, E = (b"k", b"v"), (b"e", b"")

record = st.builds(
    lambda body, pairs, timestamp: pb.AppendRecord(
        body=body,
        headers=[pb.Header(name=name, value=value) for name, value in pairs],
        timestamp=timestamp,
    ),
    st.sampled_from([b"", b"x", b"y" * 125, b"y" * 126, b"y" * 128, b"z" * 16381]),
    st.lists(st.tuples(st.binary(max_size=2), st.binary(max_size=2)), max_size=2),
    st.none() | st.integers(0, U64),
)
inputs = st.builds(
    lambda records, sequence, token: pb.AppendInput(
        records=records, match_seq_num=sequence, fencing_token=token
    ),
    st.lists(record, max_size=5),
    st.none() | st.integers(0, U64),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)


@given(inputs)
def test_every_field_of_an_append_arrives(sent: pb.AppendInput) -> None:
    """Presence counts: a token that is set to nothing is not one that is not set (A.4)."""
    found = decode_input(sent.SerializeToString())
    count = len(sent.records)
    assert found.bodies == [each.body for each in sent.records]
    assert (found.headers or [[]] * count) == [
        [(pair.name, pair.value) for pair in each.headers] for each in sent.records
    ]
    assert (found.timestamps or [None] * count) == [
        each.timestamp if each.HasField("timestamp") else None for each in sent.records
    ]
    assert (found.match_seq_num is not None) == sent.HasField("match_seq_num")
    assert (found.match_seq_num or 0) == sent.match_seq_num
    assert (found.fencing_token is not None) == sent.HasField("fencing_token")
    assert (found.fencing_token or b"") == sent.fencing_token.encode()


def test_fields_of_later_versions_are_passed_over() -> None:
    assert decode_input(bytes.fromhex("0a051a036f6e65a00601")) == AppendInput([b"one"])
    assert decode_input(bytes.fromhex("0a081a036f6e65a00601")) == AppendInput([b"one"])


@pytest.mark.parametrize("wire", ["0a", "0a05", "ff", "1a01ff", "0a021a05", "08"])
def test_what_cannot_be_read_is_bad_proto_and_in_a_session_bad_frame(wire: str) -> None:
    """A.4, A.7; a token that is no UTF-8 is no protobuf either."""
    for code in (ErrorCode.BAD_PROTO, ErrorCode.BAD_FRAME):
        with pytest.raises(CodedError) as caught:
            decode_input(bytes.fromhex(wire), code)
        assert caught.value.code is code


def test_too_many_records_are_refused_before_they_are_looked_at() -> None:
    assert len(decode_input(b"\x0a\x00" * 1000).bodies) == 1000
    with pytest.raises(CodedError, match="at most 1000 records") as caught:
        decode_input(b"\x0a\x00" * 2**20)
    assert caught.value.status == 422


@given(st.lists(spans(), max_size=3), st.none() | places)
def test_a_batch_is_byte_for_byte_that_of_the_generated_code(
    found: list[RecordColumns], tail: StreamPosition | None
) -> None:
    expected = [each for span in found for each in records_of(span)]
    theirs = pb.ReadBatch(
        records=[_sequenced(each) for each in expected],
        tail=None if tail is None else pb.StreamPosition(**_fields(tail)),
    )
    ours = encode_batch(RecordBatch(found, tail))
    assert ours == theirs.SerializeToString()
    assert b"".join(batch_pieces(RecordBatch(found, tail))) == ours


@pytest.mark.parametrize("first", [0, 1, 126, 16_300, 2**21 - 2, 2**28 - 2, 2**63 - 2])
def test_sequences_of_all_lengths_in_long_spans(first: int) -> None:
    span = span_of([b"x" * (at % 3) for at in range(300)], first)
    read = pb.ReadBatch.FromString(encode_batch(RecordBatch([span])))
    assert [_record(each) for each in read.records] == records_of(span)
    assert read.SerializeToString() == encode_batch(RecordBatch([span]))


@given(spans())
def test_a_part_of_what_was_written_is_what_its_records_are(span: RecordColumns) -> None:
    """Bytes that were sent to one reader serve another that begins in their middle."""
    written, ends = RECORDS.encode(span), RECORDS.ends(span)
    assert ends[-1] == len(written)
    for at, expected in enumerate(records_of(span)):
        piece = written[ends[at - 1] if at else 0 : ends[at]]
        (read,) = pb.ReadBatch.FromString(piece).records
        assert _record(read) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("application/protobuf", True),
        ("application/x-protobuf", True),
        ("Application/Protobuf; q=1, application/json", True),
        ("application/json, application/protobuf", False),
        ("*/*", False),
        (None, False),
    ],
)
def test_the_first_media_type_decides(value: str | None, expected: bool) -> None:
    assert is_protobuf(value) is expected


def test_messages_of_the_published_client_may_be_in_the_same_process() -> None:
    """Two descriptions of `s2.v1` in one pool of protobuf would be an error."""
    from google.protobuf import descriptor_pool

    assert pb.DESCRIPTOR.package == "s2.v1"
    with pytest.raises(KeyError):
        descriptor_pool.Default().FindFileByName(pb.DESCRIPTOR.name)


def _sequenced(record: Record) -> pb.SequencedRecord:
    sequence, timestamp, pairs, body = record
    headers = [pb.Header(name=name, value=value) for name, value in pairs]
    return pb.SequencedRecord(seq_num=sequence, timestamp=timestamp, headers=headers, body=body)


def _record(read: pb.SequencedRecord) -> Record:
    pairs = [(each.name, each.value) for each in read.headers]
    return read.seq_num, read.timestamp, pairs, read.body


def _fields(place: StreamPosition) -> dict[str, int]:
    return {"seq_num": place.seq_num, "timestamp": place.timestamp}

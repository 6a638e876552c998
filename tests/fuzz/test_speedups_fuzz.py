"""The native codecs against their twins in Python: the same out of every input.

The commands of S3P that the native codec reads are compared with the exact parser in
test_s3p_fuzz.py.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from binascii import b2a_base64
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from millpond.actors.messages import Ack, Msg, Put, PutAck
from millpond.actors.positions import Position
from millpond.actors.store.changes import Chunk
from millpond.actors.streams.chunks import ChunkBuilder, columns_of
from millpond.actors.streams.messages import Append, PackedBodies, PackedSlice, RecordColumns
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import json as s2_json
from millpond.transports.http.s2.codecs.protobuf import RECORDS, decode_input_in_python
from millpond.transports.http.s2.errors import CodedError, ErrorCode
from millpond.transports.http.s2.model import AppendInput
from millpond.transports.http.s2.s2_pb2 import AppendRecord, Header
from millpond.transports.p2p.framing import (
    Upgrade,
    frame_packets_in_python,
    split_packets_in_python,
)
from millpond.transports.p2p.packets import (
    decode_acks_in_python,
    decode_puts_in_python,
    decode_run_in_python,
    encode_put_acks_in_python,
)
from millpond.transports.rustlog import binary_codec
from millpond.transports.rustlog.codec import (
    ROWS,
    RustlogLimits,
    decode_request,
    framed,
)
from millpond.transports.rustlog.decoder import Decoder
from millpond.transports.rustlog.json_fallback import MalformedJson, MalformedRequest
from millpond.transports.rustlog.messages import PackedProduce, Produce
from millpond.transports.s3p.decoder import encode_run_in_python
from millpond.transports.speedups import native, unused_because
from millpond.transports.websocket.frames import FrameCodec
from tests.fuzz.mutation import mutated

pytestmark = [
    pytest.mark.wire,
    pytest.mark.skipif(native is None, reason=f"native codecs: {unused_because}"),
]

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "millpond" / "_speedups.c"
NORMAL, FULL = 8_000, 2_000_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
EDGES = b"\0\1\3\6\x09\x0a\x7f\x80\xfe\xff"
SIZE_MAX = 300
FIELDS = ("key", "ttl", "id")
LIMIT_S = 3000.0


def packet(rng: random.Random) -> bytes:
    """A PUT, a MSG_ACK or noise, now and then one byte too short or too long."""
    match rng.randint(0, 5):
        case 0 | 1:
            wire = b"\6" + rng.randbytes(8) + rng.randbytes(rng.choice((0, 1, 20, 291, 292)))
        case 2 | 3:
            wire = b"\3" + rng.randbytes(8)
        case _:
            wire = rng.randbytes(rng.randint(1, 30))
    match rng.randint(0, 9):
        case 0:
            return wire[:-1]
        case 1:
            return wire + b"\0"
        case _:
            return wire


def packets_of(rng: random.Random) -> list[bytes]:
    """A few of one kind, or of many: half of all reads are a run."""
    count = rng.randint(0, 12)
    if rng.random() < 0.5:
        return [packet(rng)] * count
    return [packet(rng) for _ in range(count)]


@pytest.mark.parametrize("rounds", ROUNDS)
def test_packets_are_split_alike(rounds: int) -> None:
    rng = random.Random(1)
    whole = broken = 0
    for _ in range(rounds):
        wire = mutated(rng, frame_packets_in_python(packets_of(rng)), EDGES)
        expected = split_packets_in_python(wire, SIZE_MAX)
        assert native.split_packets(wire, SIZE_MAX) == expected, wire
        count_max = rng.randint(0, len(expected[0]) + 1)
        some = split_packets_in_python(wire, SIZE_MAX, count_max)
        assert some[0] == expected[0][:count_max]
        assert native.split_packets(wire, SIZE_MAX, count_max) == some, wire
        whole += bool(expected[0])
        broken += expected[1] < len(wire)
    assert whole > rounds // 2 and broken > rounds // 8


@pytest.mark.parametrize("rounds", ROUNDS)
def test_packets_are_framed_and_read_alike(rounds: int) -> None:
    rng = random.Random(2)
    values = 0
    for _ in range(rounds):
        packets = [each for each in packets_of(rng) if each]
        assert native.frame_packets(packets) == frame_packets_in_python(packets)
        puts, acks = decode_puts_in_python(packets), decode_acks_in_python(packets)
        assert native.read_puts(packets, Put) == puts, packets
        assert native.read_acks(packets, Ack) == acks, packets
        values += len(puts) + len(acks)
    assert values > rounds


@pytest.mark.parametrize("rounds", ROUNDS)
def test_runs_of_packets_are_read_alike(rounds: int) -> None:
    rng = random.Random(10)
    whole = broken = 0
    for _ in range(rounds):
        wire = frame_packets_in_python(packets_of(rng))
        if rng.random() < 0.7:
            wire = mutated(rng, wire, EDGES)
        count_max = rng.choice((1, 5, 512))
        expected = decode_run_in_python(wire, SIZE_MAX, count_max)
        assert native.read_packet_run(Put, Ack, wire, SIZE_MAX, count_max) == expected, wire
        whole += bool(expected[0]) and expected[1] == len(wire)
        broken += bool(expected[0]) and expected[1] < len(wire)
    assert whole > rounds // 20 and broken > rounds // 8


@pytest.mark.parametrize("rounds", ROUNDS)
def test_receipts_are_written_alike(rounds: int) -> None:
    rng = random.Random(11)
    for _ in range(rounds):
        replies: list[object] = [
            PutAck(rng.getrandbits(rng.randint(0, 32)), rng.getrandbits(32), number(rng))
            for _ in range(rng.randint(0, 5))
        ]
        if rng.random() < 0.3:
            replies.insert(rng.randint(0, len(replies)), Msg(1, 1, b"x"))
        given = tuple(replies) if rng.random() < 0.3 else replies
        expected, found = [b"before"], [b"before"]
        count = encode_put_acks_in_python(given, expected)
        assert native.write_put_acks(PutAck, FIELDS, given, found) == count, replies
        assert found == expected, replies


def number(rng: random.Random) -> int:
    """A u64, mostly near a power of ten or of two."""
    base = rng.choice((0, 10 ** rng.randint(0, 19), 2 ** rng.randint(0, 63)))
    return min(max(base + rng.randint(-3, 3), 0), 2**64 - 1)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_runs_of_records_are_written_alike(rounds: int) -> None:
    rng = random.Random(3)
    for _ in range(rounds):
        bodies = [b"x" * rng.choice((1, 9, 10, 99, 100, 1000)) for _ in range(rng.randint(1, 12))]
        ms, seq = number(rng), min(number(rng), 2**64 - len(bodies))
        expected = encode_run_in_python(ms, seq, bodies)
        assert native.write_records(ms, seq, bodies) == expected, (ms, seq, bodies)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_messages_over_websocket_are_read_alike(rounds: int) -> None:
    rng = random.Random(14)
    client = FrameCodec(2**20, is_server=False, entropy=rng.randbytes)
    client._open(Upgrade(b"c", True, None))
    plain = 0
    for _ in range(rounds):
        sizes = [
            rng.choice((1, 7, 8, 9, 100, 125, 126, 127, 300)) for _ in range(rng.randint(1, 6))
        ]
        wire = client.frame([rng.randbytes(size) for size in sizes])
        if rng.random() < 0.5:
            wire = mutated(rng, wire, EDGES + b"\x82\x80\x81\xfe\xff\x89\x02")
        server = FrameCodec(size_max := rng.choice((100, 2**20)), is_server=True)
        server._open(Upgrade(b"c", True, None))
        packets = native.unmask_frames(wire, size_max)
        assert packets == server.prefixed(wire)
        if not packets:
            continue
        assert split_packets_in_python(packets, size_max) == (server.feed(wire), len(packets))
        assert server.error is None and not server.has_partial and not server.other_frames
        plain += 1
    assert plain > rounds // 4


def chunk_data(rng: random.Random) -> tuple[bytes, list[bytes]]:
    """The data of a chunk, mostly of bodies alone."""
    bodies = [
        b"x" * rng.choice((1, 9, 100, 255, 256, 65_536 if rng.random() < 0.01 else 2))
        for _ in range(rng.choice((1, 9, 15, 16, 20)))
    ]
    if rng.random() < 0.1:
        bodies[-1] = b""
    timestamps = [7] * len(bodies) if rng.random() < 0.1 else None
    columns: tuple[object, ...] = bodies, timestamps, None, None
    if rng.random() < 0.5:
        sizes = [1, len(bodies) - 1] if len(bodies) > 1 else [1]
        columns = (*columns, rng.choice((None, 1, sizes, [2, *sizes])))
        if rng.random() < 0.5:
            columns = (*columns, rng.choice((None, number(rng))))
    return msgspec.msgpack.encode(columns), bodies


@pytest.mark.parametrize("rounds", ROUNDS)
def test_chunks_are_measured_and_written_alike(rounds: int) -> None:
    rng = random.Random(12)
    plain = 0
    for _ in range(rounds):
        data, bodies = chunk_data(rng)
        if rng.random() < 0.5:
            data = mutated(rng, data, EDGES + b"\x94\x95\x96\xc0\xc4\xc5\xdc")
        count = len(bodies)
        begin = rng.randint(0, count - 1)
        end = rng.randint(begin + 1, count)
        each, size_max = rng.choice((0, 8, 12)), rng.choice((0, 30, 300, 2**20, 2**64 - 1))
        measured = native.measure_bodies(each, data, count, begin, end, size_max)
        if measured is None:
            continue
        span = columns_of(Chunk(0, count, 7, 7, Position(7, 5), Position(7, 5), data))
        assert span == RecordColumns(0, span.bodies, 7, Position(7, 5)), data
        assert b"" not in span.bodies
        offset, taken, size = measured
        sizes = list(accumulate((each + len(body) for body in span.bodies[begin:end]), initial=0))
        assert taken == sum(size <= size_max for size in sizes[1:]) and size == sizes[taken], data
        part = span.bodies[begin : begin + taken]
        first, other = min(number(rng), 2**64 - count), number(rng)
        shown = RecordColumns(first, part, other, Position(0, 0))
        written = native.write_packed_records(data, offset, taken, first, other)
        assert written == encode_run_in_python(other, first, part), data
        written = native.write_packed_batch(data, offset, taken, first, other)
        assert written == (RECORDS.encode_in_python(shown) if part else b""), data
        written = native.write_packed_rows(data, offset, taken, first, min(other * 1000, 2**64 - 1))
        assert written == (ROWS.encode_in_python(shown) if part else b""), data
        plain += 1
    assert plain > rounds // 4


def test_a_chunk_of_bodies_alone_is_measured() -> None:
    for count in (9, 15, 16, 1000):
        bodies = [b"%d" % at for at in range(count)]
        size = sum(map(len, bodies))
        chunk = ChunkBuilder(0, Position(7, 0), bodies, size, 7, None, 9).chunk()
        measured = native.measure_bodies(1, chunk.data, count, 0, count, 2**20)
        assert measured is not None and measured[1:] == (count, size + count)


def append_input(rng: random.Random) -> bytes:
    """An AppendInput, mostly one that is read natively."""
    records = [
        AppendRecord(
            body=rng.randbytes(rng.choice((0, 1, 9, 127, 128, 255, 256, 300))),
            timestamp=number(rng) if rng.random() < 0.3 else None,
            headers=[Header(name=b"n", value=b"v")] if rng.random() < 0.01 else [],
        )
        for _ in range(rng.choice((0, 1, 7, 8, 9, 12)))
    ]
    given = s2_pb2.AppendInput(records=records)
    if rng.random() < 0.1:
        given.match_seq_num = 7
    return given.SerializeToString()


def unpacked(bodies: list[bytes] | PackedBodies) -> list[bytes]:
    if isinstance(bodies, list):
        return bodies
    found = decode_bodies(b"\xdd" + bodies.count.to_bytes(4, "big") + bodies.data)
    assert len(found) == bodies.count and sum(map(len, found)) == bodies.size
    return found


decode_bodies = msgspec.msgpack.Decoder(list[bytes]).decode


@pytest.mark.parametrize("rounds", ROUNDS)
def test_appends_of_s2_are_read_alike(rounds: int) -> None:
    rng = random.Random(4)
    count = 0
    for _ in range(rounds):
        wire = append_input(rng)
        if rng.random() < 0.7:
            wire = mutated(rng, wire, EDGES + b"\x1a\x12\x10")
        found = native.read_append_input(wire, 11, PackedBodies)
        if found is not None:
            expected = decode_input_in_python(wire, ErrorCode.BAD_PROTO)
            assert AppendInput(unpacked(found[0]), None, found[1]) == expected, wire
            count += 1
    assert count > rounds // 8


TEXTS = (
    "",
    "x",
    'a quote " in it',
    "\\\\",
    "\b\f\n\r\t/",
    "\x1f",
    "\xe9\u20ac\U0001f600",
    "y" * 300,
)


def json_input(rng: random.Random, form: s2_json.Format) -> tuple[bytes, list[bytes]]:
    """An append, mostly of bodies alone, and the bodies."""
    bodies = [rng.choice(TEXTS) * rng.choice((1, 1, 3)) for _ in range(rng.choice((1, 2, 7, 8, 9)))]
    found = [each.encode() for each in bodies]
    if form is s2_json.Format.BASE64:
        bodies = [b2a_base64(each, newline=False).decode() for each in found]
    separators = rng.choice(((",", ":"), (", ", ": "), (" ,\n", "\t:\r")))
    given = {"records": [{"body": each} for each in bodies]}
    text = json.dumps(given, separators=separators, ensure_ascii=rng.random() < 0.1)
    return text.encode(), found


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("form", s2_json.Format)
def test_appends_of_s2_in_json_are_read_alike(form: s2_json.Format, rounds: int) -> None:
    """The native codec reads the same as msgspec, and leaves nothing that is plain."""
    rng = random.Random(12)
    count = 0
    for _ in range(rounds // 2):
        wire, bodies = json_input(rng, form)
        is_plain = form is s2_json.Format.BASE64 or b"\\u" not in wire
        if is_mutated := rng.random() < 0.6:
            wire = mutated(rng, wire, b'"\\,:[]{}=AZz09+/- u\x80\xc3\xed\xa0\xff')
        found = native.read_json_input(wire, form is s2_json.Format.BASE64, 8, PackedBodies)
        if found is None:
            assert is_mutated or not is_plain or len(bodies) > 8, wire
            continue
        count += is_mutated
        assert isinstance(found, list) == (len(found) < 8)
        try:
            expected = s2_json.decode_input_in_python(wire, form)
        except CodedError as error:
            raise AssertionError(wire) from error
        assert AppendInput(unpacked(found)) == expected, wire
    assert count > rounds // 100


@pytest.mark.parametrize("rounds", ROUNDS)
def test_batches_of_s2_are_written_alike(rounds: int) -> None:
    rng = random.Random(5)
    for _ in range(rounds):
        bodies = [b"x" * rng.choice((0, 1, 99, 127, 128, 20_000)) for _ in range(rng.randint(1, 9))]
        first = min(number(rng), 2**64 - len(bodies))
        each = [number(rng) for _ in bodies] if rng.random() < 0.5 else None
        timestamp = number(rng) if each is None else each[0]
        span = RecordColumns(first, bodies, timestamp, Position(0, 0), each)
        expected = RECORDS.encode_in_python(span)
        assert native.write_batch(first, timestamp, each, bodies) == expected, span


def produce(rng: random.Random, spelling: bytes, topic: bytes) -> bytes:
    """A Produce, mostly of many records."""
    sizes = [rng.choice((0, 1, 2, 3, 30)) for _ in range(rng.choice((1, 8, 9, 12)))]
    texts = [b'"%b"' % b2a_base64(rng.randbytes(size), newline=False) for size in sizes]
    return spelling % {b"topic": topic, b"records": b",".join(texts)}


SPELLINGS = (
    b'{"type":"Produce","topic":"%(topic)b","partition":0,"records":[%(records)b]}',
    b'{"type":"Produce","topic":"%(topic)b","partition":1,"records":[%(records)b]}',
    b'{"type":"Produce","topic":"%(topic)b","partition":1,"records":[%(records)b] }',
    b'{"records":[%(records)b],"type":"Produce","topic":"%(topic)b","partition":2}',
    b'{"type":"Produce","partition":3,"topic":"%(topic)b", "records": [%(records)b]}',
    b'{"type":"Produce","partition":3,"topic":"%(topic)b","records":[],"records":[%(records)b]}',
)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_produces_are_read_alike(rounds: int) -> None:
    rng = random.Random(8)
    limits = RustlogLimits(records_max=10, frame_bytes_max=4096)
    decoder = Decoder(limits)
    packed = 0
    for at in range(rounds):
        if at % 4 == 0:
            spelling, topic = rng.choice(SPELLINGS), rng.choice((b"t", b"orders", b"records"))
        payload = produce(rng, spelling, topic)
        if rng.random() < 0.3:
            payload = mutated(rng, payload, b'"\\,[]{}=AZz09+/- ') or b"{}"
        one = decoder.feed_one(framed(payload)) if rng.random() < 0.5 else None
        found = decoder.feed(framed(payload)) if one is None else [one]
        if decoder.error is not None:
            with pytest.raises(MalformedJson):
                decode_request(payload, limits)
            decoder = Decoder(limits)
            continue
        (request,) = found
        if isinstance(request, PackedProduce):
            packed += 1
            request = Produce(request.topic, request.partition, unpacked(request.records))
        try:
            expected = decode_request(payload, limits)
        except MalformedRequest as error:
            expected = error.answer
        assert request == expected, payload
    assert packed > rounds // 30


@pytest.mark.parametrize("rounds", ROUNDS)
def test_rows_of_a_fetch_are_written_alike(rounds: int) -> None:
    rng = random.Random(9)
    for _ in range(rounds):
        bodies = [rng.randbytes(rng.choice((0, 1, 2, 3, 100))) for _ in range(rng.randint(1, 9))]
        first, timestamp = min(number(rng), 2**64 - len(bodies)), number(rng)
        span = RecordColumns(first, bodies, timestamp, Position(0, 0))
        assert ROWS.encode(span) == ROWS.encode_in_python(span), span


BINARY_LIMITS = RustlogLimits(binary_records_max=12, frame_bytes_max=2048)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_produces_of_the_binary_form_are_read_alike(
    monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    rng = random.Random(10)

    def read(payload: bytes, *, is_native: bool) -> object:
        monkeypatch.setattr(binary_codec, "is_native", is_native)
        try:
            return binary_codec.decode_request(payload, BINARY_LIMITS)
        except binary_codec.MalformedPayload as malformed:
            return str(malformed)

    packed = 0
    for _ in range(rounds):
        sizes = (0, 1, 4, 60, 255, 256, 300, *([2000] if rng.random() < 0.1 else []))
        bodies = [rng.randbytes(rng.choice(sizes)) for _ in range(rng.choice((0, 1, 7, 8, 9, 12)))]
        payload = binary_codec.encode_request(Produce("orders", 1, bodies))[4:]
        if rng.random() < 0.5:
            payload = mutated(rng, payload, b"\0\1\2\7\x08\x0c\x7f\xff") or b"\1"
        found = read(payload, is_native=True)
        if isinstance(found, PackedProduce):
            packed += 1
            assert found.records.size == sum(map(len, unpacked(found.records)))
            found = Produce(found.topic, found.partition, unpacked(found.records))
        assert found == read(payload, is_native=False), payload
    assert packed > rounds // 10


@pytest.mark.parametrize("rounds", ROUNDS)
def test_fetches_of_the_binary_form_are_written_alike(rounds: int) -> None:
    rng = random.Random(11)
    for _ in range(rounds):
        start = end = rng.randrange(2**40)
        slices: list[PackedSlice] = []
        spans: list[RecordColumns] = []
        for _ in range(rng.randint(0, 3)):
            end += rng.random() < 0.1  # a gap
            count, at = rng.randint(1, 20), rng.randrange(3)
            bodies = [rng.randbytes(rng.choice((1, 5, 255, 256))) for _ in range(at + count)]
            size = sum(map(len, bodies))
            data = ChunkBuilder(0, Position(7, 0), bodies, size, 7, None, 9).chunk().data
            measured = native.measure_bodies(12, data, at + count, at, at + count, 2**30)
            assert measured is not None
            offset, taken, size = measured
            slices.append(PackedSlice(data, offset, taken, size, end, 7, 7, 0))
            spans.append(RecordColumns(end, bodies[at:], 7, Position(7, 0)))
            end += count
        following = rng.choice((0, end, end + 9))
        run = binary_codec.record_run(spans, start, following, 2**30, 2**30)
        found, count, size = binary_codec.encode_packed_run(slices, start, following)
        assert found == binary_codec.encode_response(run)
        assert (count, size) == (len(run.records), sum(map(len, run.records)))


def failing(*arguments: object) -> object:
    raise KeyError("a shape that fails")


def shrinking(packets: list[bytes]) -> Callable[..., object]:
    """A shape that empties the list that is being read."""

    def shape(*arguments: object) -> object:
        packets.clear()
        return arguments

    return shape


FRAMED_PUT = b"\0\0\0\x09\6" + bytes(8)
OPENING = b"*4\r\n$6\r\nAPPEND\r\n$1\r\ns\r\n*0\r\n"
APPEND = OPENING + b"*1\r\n$1\r\nx\r\n"
LIMITS = (9, 9, 9)


def test_wrong_arguments_are_errors_of_python() -> None:
    put = b"\6" + bytes(8)
    wrong: list[Callable[[], object]] = [
        lambda: native.split_packets("text", 9),  # type: ignore[arg-type]
        lambda: native.split_packets(b"", None),  # type: ignore[arg-type]
        lambda: native.split_packets(b""),  # type: ignore[call-arg]
        lambda: native.split_packets(b"", 9, None),  # type: ignore[arg-type]
        lambda: native.split_packets(b"", 9, 9, 9),  # type: ignore[call-arg]
        lambda: native.frame_packets((b"x",)),  # type: ignore[arg-type]
        lambda: native.frame_packets(["x"]),  # type: ignore[list-item]
        lambda: native.read_puts([None], Put),  # type: ignore[list-item]
        lambda: native.read_puts((put,), Put),  # type: ignore[arg-type]
        lambda: native.read_acks([b"\3" + bytes(8)], None),  # type: ignore[arg-type]
        lambda: native.read_packet_run(Put, Ack, put, None, 1),  # type: ignore[arg-type]
        lambda: native.read_packet_run(Put, Ack, "text", 9, 1),  # type: ignore[arg-type]
        lambda: native.read_packet_run(None, Ack, FRAMED_PUT, 9, 1),  # type: ignore[arg-type]
        lambda: native.write_put_acks(PutAck, FIELDS, {}, []),  # type: ignore[arg-type]
        lambda: native.write_put_acks(PutAck, FIELDS, [], ()),  # type: ignore[arg-type]
        lambda: native.write_put_acks(PutAck, FIELDS[:2], [], []),
        lambda: native.write_put_acks(PutAck, FIELDS, [PutAck("1", 1, 1)], []),  # type: ignore[arg-type]
        lambda: native.write_records(1, 1, [None]),  # type: ignore[list-item]
        lambda: native.write_records("1", 1, []),  # type: ignore[arg-type]
        lambda: native.read_append_run(APPEND, OPENING, 0, Append, Put, (9, 9)),
        lambda: native.read_append_run(APPEND, "text", 0, Append, Put, LIMITS),  # type: ignore[arg-type]
        lambda: native.read_append_run(APPEND, OPENING, None, Append, Put, LIMITS),  # type: ignore[arg-type]
        lambda: native.read_appends(APPEND, OPENING, b"s", Put, Put, [], (9, 9)),
        lambda: native.read_appends(APPEND, OPENING, b"s", Put, Put, [], [9, 9, 9]),  # type: ignore[arg-type]
        lambda: native.read_appends(APPEND, OPENING, b"s", Put, Put, None, LIMITS),  # type: ignore[arg-type]
        lambda: native.read_appends(APPEND, "text", b"s", Put, Put, [], LIMITS),  # type: ignore[arg-type]
    ]
    for call in wrong:
        with pytest.raises(TypeError):
            call()
    more: list[Callable[[], object]] = [
        lambda: native.read_append_input("text", 9, PackedBodies),  # type: ignore[arg-type]
        lambda: native.read_json_input("text", False, 9, PackedBodies),  # type: ignore[arg-type]
        lambda: native.read_json_input(b"", False, None, PackedBodies),  # type: ignore[arg-type]
        lambda: native.write_batch(0, 0, None, (b"x",)),  # type: ignore[arg-type]
        lambda: native.write_batch(0, 0, [None], [b"x"]),  # type: ignore[list-item]
        lambda: native.write_batch(0, 0, None, ["x"]),  # type: ignore[list-item]
    ]
    for call in more:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="no such part"):
        native.read_base64_records(b"", 0, 1, 9, PackedBodies)
    with pytest.raises(KeyError):
        native.read_base64_records(b'"",' * 8 + b'""', 0, 26, 9, failing)
    with pytest.raises(OverflowError):
        native.write_rows(2**64 - 1, 0, [b"", b""])
    with pytest.raises(ValueError, match="for each body"):
        native.write_batch(0, 0, [1], [b"x", b"x"])
    with pytest.raises(OverflowError):
        native.write_batch(0, 0, [2**64], [b"x"])
    with pytest.raises(KeyError):
        native.read_append_input(b"\x0a\0" * 9, 9, failing)
    with pytest.raises(KeyError):
        records = b",".join([b'{"body":""}'] * 8)
        native.read_json_input(b'{"records":[%b]}' % records, False, 9, failing)
    for too_large in (-1, 2**64):
        with pytest.raises(OverflowError):
            native.write_records(too_large, 0, [])
    with pytest.raises(OverflowError):
        native.write_records(0, 2**64 - 1, [b"x", b"x"])
    with pytest.raises(OverflowError):
        native.read_appends(APPEND, OPENING, b"s", Put, Put, [], (2**31, 9, 9))
    for wrong_ack in (PutAck(2**32, 1, 1), PutAck(1, -1, 1), PutAck(1, 1, 2**64)):
        with pytest.raises(OverflowError):
            native.write_put_acks(PutAck, FIELDS, [wrong_ack], [])
    with pytest.raises(AttributeError):
        native.write_put_acks(Ack, FIELDS, [Ack(1)], [])
    with pytest.raises(KeyError):
        native.read_packet_run(failing, failing, FRAMED_PUT, 9, 1)
    with pytest.raises(KeyError):
        native.read_puts([put], failing)
    with pytest.raises(KeyError):
        native.read_appends(APPEND, OPENING, b"s", failing, Put, [], LIMITS)
    for offset, records in ((-1, 0), (0, -1), (6, 0), (0, 1), (3, 2)):
        with pytest.raises(ValueError, match=r"no such part|fewer"):
            native.write_packed_records(b"\x94\x91\xc4\1x", offset, records, 1, 1)
    with pytest.raises(OverflowError):
        native.write_packed_records(b"\xc4\1x\xc4\1x", 0, 2, 2**64 - 1, 1)
    with pytest.raises(TypeError):
        native.measure_bodies(0, "text", 1, 0, 1, 9)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        native.unmask_frames("text", 9)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such part"):
        native.read_sized_records(b"", 1, 8, 9, Put)
    with pytest.raises(KeyError):
        native.read_sized_records(b"\0\0\0\0" * 8, 0, 8, 9, failing)
    assert native.read_sized_records(b"\0\0\0\0" * 8, 0, 9, 9, Put) is None
    for offset, records in ((-1, 1), (1, 2), (5, 1), (9, 0), (0, -1)):
        with pytest.raises(ValueError, match=r"no such part|fewer bodies"):
            native.write_sized_records(b"\x94\x91\xc4\1x", offset, records)
    with pytest.raises(ValueError, match="no such size"):
        native.measure_bodies(-1, b"", 1, 0, 1, 9)
    with pytest.raises(KeyError):
        native.read_append_run(APPEND, OPENING, 0, failing, Put, LIMITS)
    with pytest.raises(OverflowError):
        native.read_append_run(APPEND, OPENING, -1, Append, Put, LIMITS)
    packets = [put] * 3
    assert len(native.read_puts(packets, shrinking(packets))) == 1


@pytest.mark.parametrize(
    "files",
    [
        (
            "transports/p2p/test_framing.py",
            "transports/p2p/test_packets.py",
            "transports/rustlog/test_binary_codec.py",
            "transports/s3p",
        ),
        pytest.param(
            ("fuzz/test_s3p_fuzz.py", "fuzz/test_rustlog_binary_fuzz.py"), marks=pytest.mark.full
        ),
    ],
)
def test_the_tests_of_the_codecs_pass_without_the_native_ones(files: tuple[str, ...]) -> None:
    pure = os.environ | {"MILLPOND_PURE": "1"}
    tests = [str(ROOT / "tests" / each) for each in files]
    command = [sys.executable, "-m", "pytest", "-q", *tests, "-m", "not full"]
    done = subprocess.run(
        command, cwd=ROOT, env=pure, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stdout[-5000:]


SANITIZED = """
import sys
from importlib.util import spec_from_file_location

class Sanitized:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return spec_from_file_location(name, sys.argv[1]) if name == "millpond._speedups" else None

sys.meta_path.insert(0, Sanitized)
import pytest
code = pytest.main(["-q", "-p", "no:faulthandler", *sys.argv[2:]])
assert sys.modules["millpond._speedups"].__file__ == sys.argv[1]
sys.exit(code)
"""


@pytest.mark.full
def test_the_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Address and undefined-behaviour sanitizers, over the fuzz tests of every run."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not there")
    built = tmp_path / f"_speedups{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-O1", "-g", "-shared", "-fPIC", "-fsanitize=address,undefined"]
    flags += ["-fno-sanitize-recover=all", f"-I{sysconfig.get_path('include')}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(built)], check=True)
    runtime = subprocess.run(
        [compiler, "-print-file-name=libasan.so"], check=True, capture_output=True, text=True
    ).stdout.strip()
    environment = os.environ | {
        "LD_PRELOAD": runtime,
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }
    here = Path(__file__)
    tests = [
        here.name,
        "test_s3p_fuzz.py",
        "-k",
        "not without and not sanitizers",
        "-m",
        "not full",
    ]
    done = subprocess.run(
        [sys.executable, "-c", SANITIZED, str(built), *tests],
        cwd=here.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    assert "passed" in done.stdout and "skipped" not in done.stdout

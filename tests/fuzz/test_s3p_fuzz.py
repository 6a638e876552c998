"""The fast ways of the S3P codec against its exact parsers: the same out of every input and split.

Rounds are seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import RecordColumns
from millpond.transports.s3p.client_codec import (
    Records,
    Reply,
    ReplyDecoder,
    ReplyLimits,
    encode_append,
    encode_create,
    encode_delete,
    encode_read,
    encode_trim,
)
from millpond.transports.s3p.commands import (
    AppendRecords,
    Command,
    CreateStream,
    DeleteStream,
    ReadRecords,
    S3pError,
    S3pLimits,
    TrimBelow,
)
from millpond.transports.s3p.decoder import (
    NOTHING,
    OK,
    Decoder,
    encode_error,
    encode_id,
    encode_records,
)
from millpond.transports.s3p.fast_parser import RepeatedAppend
from millpond.transports.s3p.parser import IncrementalParser
from tests.fuzz.mutation import split

pytestmark = pytest.mark.wire

NORMAL, FULL = 4_000, 60_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
WIDE = S3pLimits()
NARROW = S3pLimits(
    name_bytes_max=8,
    records_max=4,
    record_bytes_max=40,
    append_bytes_max=90,
    count_default=3,
    count_max=9,
    block_ms_max=50,
)
NAMES = (b"s", b"orders", b"orders", b"a\r\nb", b"*0\r\n$1")
BODIES = (b"x", b"\r", b"\n", b"\r\n", b"$1\r\nx\r\n", b"*1\r\n", b"\0" * 9, b"r" * 30, b"x" * 100)
EDGES = b"\0\r\n $*+-:_0159\x7f\xff"

decode_bodies = msgspec.msgpack.Decoder(list[bytes]).decode

Outcome = tuple[list[Command], str, bool]


class Counting(IncrementalParser):
    """Counts the commands that the incremental parser had to read."""

    read = 0

    def finish(self, data: bytes, found: list[Command]) -> bytes:
        before = len(found)
        rest = super().finish(data, found)
        Counting.read += len(found) - before
        return rest

    def feed(self, data: bytes, found: list[Command], last: RepeatedAppend) -> None:
        before = len(found)
        super().feed(data, found, last)
        Counting.read += len(found) - before


def judged(wire: bytes, limits: S3pLimits) -> Outcome:
    """The result of the incremental parser for the bytes in one piece."""
    judge = IncrementalParser(limits)
    found: list[Command] = []
    try:
        judge.feed(wire, found, RepeatedAppend(limits))
    except S3pError as error:
        return found, str(error), False
    return found, "", judge.is_midway


def unpacked(command: Command) -> Command:
    """The same command with a list of its records."""
    if not isinstance(command, AppendRecords) or isinstance(command.records, list):
        return command
    packed = command.records
    records = decode_bodies(b"\xdd" + packed.count.to_bytes(4, "big") + packed.data)
    assert packed.size == sum(map(len, records))
    return AppendRecords(command.name, command.ms, records)


def decoded(pieces: list[bytes], limits: S3pLimits) -> Outcome:
    decoder = Decoder(limits)
    decoder._incremental = Counting(limits)
    found = [unpacked(command) for piece in pieces for command in commands_of(decoder, piece)]
    if decoder.error is not None:
        return found, str(decoder.error), False
    return found, "", decoder.is_midway


def commands_of(decoder: Decoder, piece: bytes) -> list[Command]:
    """The commands of a read, as a connection takes them: appends alone by their short way."""
    run = decoder.feed_appends(piece, 7)
    if run is None:
        return decoder.feed(piece)
    request, appends = run
    assert [each.number for each in appends] == list(range(7, 7 + len(appends)))
    assert request.records == []
    return [AppendRecords(request.name, request.ms, each.bodies) for each in appends]


def body(rng: random.Random) -> bytes:
    return rng.choice(BODIES) if rng.random() < 0.5 else rng.randbytes(rng.randint(1, 12))


def command(rng: random.Random) -> bytes:
    """A right command, mostly an APPEND, in one of the spellings that clients use."""
    name = rng.choice(NAMES)
    match rng.randint(0, 11):
        case 0:
            wire = encode_create(name)
        case 1:
            wire = encode_delete(name)
        case 2:
            wire = encode_trim(name, Position(rng.randint(0, 99), rng.randint(0, 2**64 - 1)))
        case 3 | 4:
            start = Position(rng.randint(0, 1), rng.randint(0, 1))
            wire = encode_read(name, rng.choice((None, 1, 9)), rng.choice((0, 50)), start)
        case 5:
            wire = encode_append(name, [body(rng)], rng.randint(0, 2**64 - 1))
        case 6 | 7:
            wire = encode_append(
                name, [body(rng) for _ in range(rng.choice((1, 2, 3, 4, 2, 3, 9)))]
            )
        case 8:
            wire = encode_append(name, [b"x" * rng.choice((40, 511, 512, 513, 1024, 1025))])
        case _:
            wire = encode_append(name, [rng.choice(BODIES)])
    if rng.random() < 0.05:
        return wire.replace(b"APPEND", b"apPend").replace(b"COUNT", b"count")
    return wire


def mutated(rng: random.Random, wire: bytes) -> bytes:
    """The bytes after up to two of: a byte changed, a piece cut out, doubled or put in, an end."""
    raw = bytearray(wire)
    for _ in range(rng.choice((0, 1, 1, 2))):
        place = rng.randrange(len(raw)) if raw else 0
        match rng.randint(0, 6):
            case 0 if raw:
                raw[place] ^= 1 << rng.randint(0, 7)
            case 1 | 2 if raw:
                raw[place] = rng.choice(EDGES)
            case 3:
                del raw[place:]
            case 4:
                del raw[place : place + rng.randint(1, 4)]
            case 5:
                raw[place:place] = raw[place : place + rng.randint(1, 30)]
            case _:
                raw[place:place] = bytes(rng.choices(EDGES, k=rng.randint(1, 3)))
    return bytes(raw)


def cut(rng: random.Random, wire: bytes) -> list[bytes]:
    """The bytes in pieces, mostly a few long ones; at times one byte each."""
    if rng.random() < 0.1:
        return [wire[place : place + 1] for place in range(len(wire))]
    return split(rng, wire)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("limits", [WIDE, NARROW], ids=["wide", "narrow"])
def test_the_fast_ways_and_the_exact_parser_agree(rounds: int, limits: S3pLimits) -> None:
    """S3P-11, S3P-47: commands, the error and its text, and whether more is expected."""
    rng = random.Random(5)
    commands = broken = midway = 0
    Counting.read = 0
    for _ in range(rounds):
        wire = mutated(rng, b"".join(command(rng) for _ in range(rng.randint(1, 8))))
        expected = judged(wire, limits)
        assert decoded([wire], limits) == expected, wire
        assert decoded(cut(rng, wire), limits) == expected, wire
        commands += 2 * len(expected[0])
        broken += expected[1] != ""
        midway += expected[2]
    assert commands > 2 * rounds
    assert commands // 10 < Counting.read < commands * 3 // 4
    assert broken > rounds // 4 and midway > rounds // 20


def encoded(value: Command) -> bytes:
    match value:
        case CreateStream(name=name):
            return encode_create(name)
        case AppendRecords(name=name, ms=ms, records=records):
            assert isinstance(records, list)
            return encode_append(name, records, ms)
        case ReadRecords(name=name, count=count, block_ms=block_ms, min_id=min_id):
            return encode_read(name, count, block_ms, min_id)
        case TrimBelow(name=name, min_id=min_id):
            return encode_trim(name, min_id)
        case DeleteStream(name=name):
            return encode_delete(name)


names = st.binary(min_size=1, max_size=20) | st.sampled_from(NAMES)
u64 = st.integers(0, 2**64 - 1)
positions = st.builds(Position, u64, u64)
bodies = st.binary(min_size=1, max_size=40) | st.sampled_from(BODIES)
commands = st.one_of(
    st.builds(CreateStream, names),
    st.builds(AppendRecords, names, st.none() | u64, st.lists(bodies, min_size=1, max_size=8)),
    st.builds(ReadRecords, names, st.integers(1, 1000), st.integers(0, 60_000), positions),
    st.builds(TrimBelow, names, positions),
    st.builds(DeleteStream, names),
)


@settings(max_examples=300)
@given(st.lists(commands, max_size=8), st.lists(st.integers(0, 2**20)), st.binary(max_size=30))
def test_encoded_commands_are_read_in_any_split(
    values: list[Command], places: list[int], behind: bytes
) -> None:
    wire = b"".join(map(encoded, values))
    edges = sorted(place % (len(wire) + 1) for place in places)
    pieces = [wire[start:end] for start, end in pairwise([0, *edges, len(wire)])]
    assert decoded(pieces, WIDE) == (values, "", False)
    with_more = wire + behind
    assert decoded([with_more], WIDE) == judged(with_more, WIDE)
    assert decoded([*pieces, behind], WIDE) == judged(with_more, WIDE)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_noise_is_read_alike(rounds: int) -> None:
    """Random bytes."""
    rng = random.Random(6)
    for _ in range(rounds):
        wire = rng.choice((b"", b"*3\r\n$6\r\nCREATE\r\n")) + bytes(
            rng.choices(EDGES, k=rng.randint(1, 30))
        )
        assert decoded(cut(rng, wire), WIDE) == judged(wire, WIDE), wire


@pytest.mark.parametrize("rounds", ROUNDS)
def test_the_reads_of_a_walk_are_read_alike(rounds: int) -> None:
    """Each comes by itself and differs from the one before in its position; some are broken."""
    rng = random.Random(7)
    reads = broken = 0
    decoder = Decoder(WIDE)
    for _ in range(rounds):
        name, count, block = rng.choice(NAMES), rng.choice((None, 9)), rng.choice((0, 50))
        for _ in range(rng.randint(1, 4)):
            place = Position(rng.choice((0, 7, 2**64 - 1)), rng.choice((0, 10, 2**64 - 1)))
            wire = encode_read(name, count, block, place)
            if rng.random() < 0.2:
                wire = mutated(rng, wire)
            expected = judged(wire, WIDE)
            found = decoder.feed(wire)
            error = "" if decoder.error is None else str(decoder.error)
            assert (found, error, decoder.is_midway and not error) == expected, wire
            reads += len(found)
            broken += error != ""
            if error or decoder.is_midway:
                decoder = Decoder(WIDE)
    assert reads > rounds and broken > rounds // 20


REPLIES = ReplyLimits(records_max=4, record_bytes_max=40, reply_bytes_max=90, line_bytes_max=30)


def reply(rng: random.Random) -> bytes:
    """Replies of a server, at times above the limits of the client."""
    first = Position(rng.choice((0, 7, 1700000000000)), rng.choice((0, 8, 98, 2**64 - 9)))
    match rng.randint(0, 5):
        case 0:
            return OK
        case 1:
            return encode_id(first)
        case 2:
            return NOTHING
        case 3:
            return encode_error("ERR_UNKNOWN_STREAM", "x" * rng.choice((0, 5, 40)))
        case _:
            return encode_records(
                [RecordColumns(0, [body(rng) for _ in range(rng.randint(1, 5))], 0, first)]
            )


def received(pieces: list[bytes]) -> tuple[list[Reply], str, bool]:
    decoder = ReplyDecoder(REPLIES)
    found = [each for piece in pieces for each in decoder.feed(piece)]
    if decoder.error is not None:
        return found, str(decoder.error), False
    return found, "", decoder.is_midway


@pytest.mark.parametrize("rounds", ROUNDS)
def test_replies_are_read_alike_in_any_split(rounds: int) -> None:
    """Byte by byte it is the exact parser that reads; in one piece it is not."""
    rng = random.Random(7)
    records = broken = 0
    for _ in range(rounds):
        wire = mutated(rng, b"".join(reply(rng) for _ in range(rng.randint(1, 5))))
        expected = received([wire[place : place + 1] for place in range(len(wire))])
        assert received([wire]) == expected, wire
        assert received(cut(rng, wire)) == expected, wire
        records += sum(isinstance(each, Records) for each in expected[0])
        broken += expected[1] != ""
    assert records > rounds // 4 and broken > rounds // 4

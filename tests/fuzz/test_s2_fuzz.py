"""Mutated bytes at every codec of S2: nothing but its typed errors comes out, whatever the split.

Rounds are seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable

import pytest
import zstandard

from millpond.transports.http.s2 import s2_pb2 as pb
from millpond.transports.http.s2.codecs import config as config_form
from millpond.transports.http.s2.codecs import info as info_form
from millpond.transports.http.s2.codecs import json as json_form
from millpond.transports.http.s2.codecs import protobuf as protobuf_form
from millpond.transports.http.s2.codecs import sse as events
from millpond.transports.http.s2.codecs import tokens as token_form
from millpond.transports.http.s2.codecs.compression import Compression, read_body
from millpond.transports.http.s2.codecs.json import Format
from millpond.transports.http.s2.codecs.s2s import Decoder, Frame, encode
from millpond.transports.http.s2.errors import CodedError, S2Error
from millpond.transports.http.s2.model import AppendInput, check_append
from millpond.transports.http.s2.read_query import read_query
from tests.fuzz.mutation import mutated, split

pytestmark = pytest.mark.wire

NORMAL, FULL = 1_500, 60_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
EDGES = b'\0\x01\x0a\x12\x1a\x22\x7f\x80\xff{}[]",:0-.e\\'


def protobuf(rng: random.Random) -> bytes:
    """An AppendInput."""
    return pb.AppendInput(
        records=[
            pb.AppendRecord(
                body=rng.randbytes(rng.choice((0, 3, 130))),
                headers=[pb.Header(name=b"", value=b"trim")] if rng.random() < 0.2 else [],
                timestamp=rng.choice((None, 0, 2**64 - 1)),
            )
            for _ in range(rng.randint(0, 4))
        ],
        fencing_token=rng.choice((None, "", "é")),
    ).SerializeToString()


def text(value: object) -> Callable[[random.Random], bytes]:
    wire = json.dumps(value).encode()
    return lambda _: wire


APPEND = {
    "records": [{"timestamp": 2**64 - 1, "headers": [["YQ==", "Yg=="]], "body": "YWJj"}, {}],
    "match_seq_num": 1,
    "fencing_token": "é",
}
STREAM = {
    "storage_class": "standard",
    "retention_policy": {"age": 9},
    "timestamping": {"mode": "arrival", "uncapped": None},
    "delete_on_empty": {"min_age_secs": 3},
}
BASIN = {"default_stream_config": STREAM, "stream_cipher": None, "create_stream_on_read": True}
TOKEN = {
    "id": "t",
    "scope": {"streams": {"prefix": "a"}, "ops": ["read"], "op_groups": {"basin": {"read": True}}},
    "expires_at": "2030-01-31T12:00:00.5+01:00",
}


def append(data: bytes, read: Callable[[bytes], AppendInput]) -> None:
    found = read(data)
    count = len(found.bodies)
    assert found.headers is None or len(found.headers) == count
    assert found.timestamps is None or len(found.timestamps) == count
    check_append(found)


def query(data: bytes) -> None:
    name, _, value = data.decode("utf-8", "surrogateescape").partition("=")
    read_query([(name, value)])
    info_form.read_list_query([(name, value)])


def compressed(how: Compression) -> Callable[[random.Random], bytes]:
    data = b"abc" * 500
    made = gzip.compress(data) if how is Compression.GZIP else zstandard.compress(data)
    return lambda _: made


TARGETS: dict[str, tuple[Callable[[random.Random], bytes], Callable[[bytes], object]]] = {
    "protobuf": (protobuf, lambda data: append(data, protobuf_form.decode_input)),
    "raw": (
        text(APPEND),
        lambda data: append(data, lambda each: json_form.decode_input(each, Format.RAW)),
    ),
    "base64": (
        text(APPEND),
        lambda data: append(data, lambda each: json_form.decode_input(each, Format.BASE64)),
    ),
    "stream": (text(STREAM), config_form.read_put_stream),
    "stream to make": (text({"stream": "s", "config": STREAM}), config_form.read_post_stream),
    "basin": (text({"config": BASIN, "location": "x"}), config_form.read_put_basin),
    "basin to make": (text({"basin": "some-basin", "config": BASIN}), config_form.read_post_basin),
    "token": (text(TOKEN), token_form.read_token),
    "event id": (lambda _: b"12,34,56", lambda data: events.read_id(data.decode("latin-1"))),
    "query": (lambda rng: rng.choice((b"seq_num=12", b"clamp=true", b"limit=5")), query),
    "zstd": (compressed(Compression.ZSTD), lambda data: read_body(data, "zstd", 1600)),
    "gzip": (compressed(Compression.GZIP), lambda data: read_body(data, "gzip", 1600)),
}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("target", TARGETS)
def test_only_typed_errors_come_of_mutated_input(target: str, rounds: int) -> None:
    """A.9: a refusal has a status below 500, and a text that can be written."""
    rng = random.Random(11)
    make, read = TARGETS[target]
    refused = 0
    for _ in range(rounds):
        wire = mutated(rng, make(rng), EDGES)
        try:
            read(wire)
        except CodedError as error:
            refused += 1
            assert 400 <= error.status < 500, wire
            assert json.loads(error.body)["message"], wire
    assert rounds // 50 < refused < rounds


def read_all(pieces: list[bytes]) -> tuple[list[Frame], str, bool]:
    decoder = Decoder()
    found = [frame for piece in pieces for frame in decoder.feed(piece)]
    return found, str(decoder.error or ""), decoder.is_midway


@pytest.mark.parametrize("rounds", ROUNDS)
def test_frames_are_the_same_whatever_the_split(rounds: int) -> None:
    """A.7: the frames before an error, the error, and whether more is expected."""
    rng = random.Random(12)
    broken = midway = messages = 0
    for _ in range(rounds):
        hows = [rng.choice(list(Compression)) for _ in range(rng.randint(1, 5))]
        sizes = [rng.choice((0, 9, 1500)) for _ in hows]
        wire = mutated(
            rng,
            b"".join(encode([bytes(size)], how) for size, how in zip(sizes, hows, strict=True)),
            EDGES,
        )
        found = read_all([wire])
        assert read_all(split(rng, wire)) == found, wire
        broken += found[1] != ""
        midway += found[2]
        for frame in found[0]:
            try:
                messages += len(frame.message()) >= 0
            except S2Error as error:
                assert error.status == 400, wire
    assert broken > rounds // 20 and midway > rounds // 20 and messages > rounds

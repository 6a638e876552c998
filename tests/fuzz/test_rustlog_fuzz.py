"""Mutated frames at RustLog's codecs: the fast reader means what the exact one means, whatever the
split, and nothing but typed errors comes out.

Rounds are seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import base64
import json
import random

import pytest

from millpond.transports.rustlog import binary_codec
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_messages import BinaryError, RecordRun, TopicWatermarks
from millpond.transports.rustlog.client_codec import ResponseDecoder
from millpond.transports.rustlog.codec import (
    RustlogLimits,
    decode_request,
    encode_response,
    framed,
)
from millpond.transports.rustlog.decoder import Decoder
from millpond.transports.rustlog.json_fallback import (
    DecodedJson,
    MalformedJson,
    MalformedRequest,
    decode_fallback,
)
from tests.fuzz.mutation import fed, mutated, split

pytestmark = pytest.mark.wire

NORMAL, FULL = 3_000, 300_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
EDGES = b'\0\x01\x7f\x80\xc3\xed\xff{}[]",:0-.e\\u9=+/ \n'
BINARY_EDGES = b"\0\1\2\3\4\5\6\7\x08\x09\x0a{\x7f\x80\xfe\xff"
LIMITS = RustlogLimits(frame_bytes_max=4096, records_max=5, partitions_max=9, group_bytes_max=12)
NAMES = ("orders", "a-b_c", "", "\u00e9", "\ud83d\ude00", "x" * 300, "a/b", '"', "\\")
NUMBERS = (0, 1, 9, 10, 2**31, 2**32, 2**53, 2**64 - 1, 2**64, -1, 1.5, True, None, "1")


def request(rng: random.Random) -> bytes:
    """A request of any type, of which a field is now and then wrong, missing or unknown."""
    topic = rng.choice(NAMES[:3])
    fields: dict[str, object]
    match rng.randint(0, 8):
        case 0 | 1:
            bodies = [rng.randbytes(rng.choice((0, 3, 60))) for _ in range(rng.randint(0, 6))]
            records = [base64.b64encode(body).decode() for body in bodies]
            fields = {"type": "Produce", "topic": topic, "partition": 0, "records": records}
        case 2:
            fields = {"type": "Fetch", "topic": topic, "partition": 1, "offset": 7}
            fields |= {"max_bytes": 99} if rng.random() < 0.5 else {}
            fields |= {"group_id": "g"} if rng.random() < 0.5 else {}
        case 3:
            fields = {"type": "OffsetCommit", "group": "g", "topic": topic, "partition": 0}
            fields["offset"] = 3
        case 4:
            fields = {"type": "OffsetFetch", "group": "g", "topic": topic, "partition": 0}
        case 5:
            fields = {"type": "CreateTopic", "topic": topic, "partition_count": 3}
        case 6:
            fields = {"type": "DescribeTopic", "topic": topic}
        case 7:
            fields = {"type": "DescribePartition", "topic": topic, "partition": 2}
        case _:
            fields = {"type": rng.choice(("ListTopics", "MetricsFetch", "Ping"))}
    if rng.random() < 0.3:
        fields[rng.choice([*fields, "more"])] = rng.choice(
            (*NAMES, *NUMBERS, [], {}, [{}], ["YQ=="])
        )
    if rng.random() < 0.1:
        del fields[rng.choice([*fields])]
    return json.dumps(fields, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def outcome(payload: bytes) -> DecodedJson | str:
    try:
        return decode_request(payload, LIMITS)
    except MalformedRequest as error:
        return error.answer
    except MalformedJson:
        return "the connection ends"


def exact_outcome(payload: bytes) -> DecodedJson | str:
    try:
        return decode_fallback(payload, LIMITS.records_max)
    except MalformedRequest as error:
        return error.answer
    except MalformedJson:
        return "the connection ends"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_the_fast_reader_and_the_exact_one_agree(rounds: int) -> None:
    """RL-04 to RL-10: an accepted request is the exact reader's. A refusal has a text, and an ended
    connection is ended by both."""
    rng = random.Random(31)
    accepted = refused = ended = 0
    for _ in range(rounds):
        payload = mutated(rng, request(rng), EDGES)
        found, exact = outcome(payload), exact_outcome(payload)
        match found:
            case str():
                ended += 1
                assert exact == found, payload
            case r.Error(code=code, message=message):
                refused += 1
                assert code and message, payload
                encode_response(found)
            case _:
                accepted += 1
                assert exact == found, payload
    assert min(accepted, refused, ended) > rounds // 20


@pytest.mark.parametrize("rounds", ROUNDS)
def test_frames_are_the_same_whatever_the_split(rounds: int) -> None:
    """RL-01 to RL-03: the requests before an error, and the error."""
    rng = random.Random(32)
    broken = requests = 0
    for _ in range(rounds):
        wire = b"".join([framed(request(rng)) for _ in range(rng.randint(2, 4))])
        if rng.random() < 0.7:
            wire = mutated(rng, wire, EDGES)
        found = fed(Decoder(LIMITS), [wire])
        assert fed(Decoder(LIMITS), split(rng, wire)) == found, wire
        requests += len(found[0])
        broken += found[1] is not None
    assert broken > rounds // 20 and requests > rounds // 2


RESPONSES = {
    "json": [
        encode_response(each)
        for each in (
            r.Error(r.INVALID_REQUEST, "no", {"a": 1}),
            r.FetchResponse([r.FetchedRecord(3, 1_700_000_000_000_000, b"abc")], 4),
            r.OffsetFetchResponse(7),
        )
    ],
    "binary": [
        binary_codec.encode_response(each)
        for each in (
            BinaryError(10, "no topic"),
            RecordRun([b"abc", b""], 4),
            r.OffsetFetchResponse(7),
            TopicWatermarks("t", [(0, 9), (1, 0)]),
            r.ListTopicsResponse([r.TopicRow("t", 3)]),
        )
    ],
}
DECODERS = {"json": ResponseDecoder, "binary": binary_codec.BinaryResponseDecoder}


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("form", RESPONSES)
def test_a_client_reads_or_refuses_any_answer(rounds: int, form: str) -> None:
    """A client of a broken server gets whole responses, and then a typed error."""
    rng = random.Random(33)
    broken = responses = 0
    for _ in range(rounds):
        wire = b"".join(rng.choices(RESPONSES[form], k=rng.randint(1, 3)))
        wire = mutated(rng, wire, EDGES if form == "json" else BINARY_EDGES)
        found, error = fed(DECODERS[form](4096), [wire])
        parts, other = fed(DECODERS[form](4096), split(rng, wire))
        assert (parts, other is None) == (found, error is None), wire
        responses += len(found)
        broken += error is not None
    assert broken > rounds // 20 and responses > rounds // 2

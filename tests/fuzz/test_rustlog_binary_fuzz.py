"""Mutated frames of RustLog's binary form, mixed with JSON: whatever the split the same requests,
and nothing but typed errors (RB-02, RB-08).

Rounds are seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import random

import pytest

from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.binary_codec import (
    encode_request,
    encode_response,
)
from millpond.transports.rustlog.binary_messages import (
    BinaryError,
    BinaryRequest,
)
from millpond.transports.rustlog.codec import RustlogLimits, framed
from millpond.transports.rustlog.decoder import Decoder
from tests.fuzz.mutation import fed, mutated, split

pytestmark = pytest.mark.wire

NORMAL, FULL = 3_000, 300_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
EDGES = b"\0\1\2\3\4\5\6\7\x08\x09\x0a{\x7f\x80\xfe\xff"
LIMITS = RustlogLimits(frame_bytes_max=4096, binary_records_max=5, partitions_max=9)


def request(rng: random.Random) -> bytes:
    """A frame of either form."""
    topic = rng.choice(("orders", "a/b", "", "\u00e9"))
    bodies = [rng.randbytes(rng.choice((0, 1, 4, 60))) for _ in range(rng.randint(0, 6))]
    choices: tuple[r.Request, ...] = (
        r.Produce(topic, 1, bodies),
        r.Fetch(topic, 0, 7, 99, rng.choice(("", "g"))),
        r.OffsetCommit("g", topic, 0, 2**64 - 1),
        r.OffsetFetch("", topic, 2**32 - 1),
        r.CreateTopic(topic, rng.choice((0, 1, 9, 10))),
        r.ListTopics(),
        r.DescribeTopic(topic),
        r.DescribePartition(topic, 0),
        r.MetricsFetch(),
        r.Ping(),
    )
    if rng.random() < 0.1:
        return framed(b'{"type":"Ping"}')
    return encode_request(rng.choice(choices))


@pytest.mark.parametrize("rounds", ROUNDS)
def test_frames_are_the_same_whatever_the_split(rounds: int) -> None:
    rng = random.Random(51)
    requests = refused = broken = 0
    for _ in range(rounds):
        wire = b"".join([request(rng) for _ in range(rng.randint(1, 4))])
        if rng.random() < 0.7:
            wire = mutated(rng, wire, EDGES)
        found, error = fed(Decoder(LIMITS), [wire])
        assert fed(Decoder(LIMITS), split(rng, wire)) == (found, error), wire
        for each in found:
            if isinstance(each, BinaryRequest) and isinstance(each.request, BinaryError):
                refused += 1
                assert each.request.code in (2, 12, 500), wire
                assert len(encode_response(each.request)) <= 9 + 200
            else:
                requests += 1
        broken += error is not None
    assert min(broken, refused) > rounds // 20 and requests > rounds // 2


@pytest.mark.parametrize("rounds", ROUNDS)
def test_what_is_accepted_is_what_its_bytes_say(rounds: int) -> None:
    """A request that is read and written again is a beginning of the payload that it came in."""
    rng = random.Random(52)
    accepted = 0
    for _ in range(rounds):
        payload = mutated(rng, request(rng)[4:], EDGES)
        if not payload:
            continue
        found, error = fed(Decoder(LIMITS), [framed(payload)])
        if error is not None or not isinstance(found[0], BinaryRequest):
            continue
        decoded = found[0].request
        if not isinstance(decoded, BinaryError):
            accepted += 1
            assert payload.startswith(encode_request(decoded)[4:]), payload
    assert accepted > rounds // 5

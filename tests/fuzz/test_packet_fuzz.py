"""Mutated bytes at every P2P codec: nothing but a WireError comes out, and nothing is misread.

Each round is seeded, so a failure names the input that caused it and repeats.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from millpond.actors.errors import Code, RequestError
from millpond.actors.messages import (
    Ack,
    Credit,
    Durability,
    Get,
    GetAck,
    List,
    ListAck,
    Mode,
    Msg,
    Nack,
    NackReason,
    Put,
    PutAck,
    Role,
    Touch,
    TouchAck,
)
from millpond.transports.errors import MalformedHandshake, MalformedPacket, WireError
from millpond.transports.p2p import handshake as h
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.nacks import (
    correlation_number,
    decode_refused,
    encode_malformed,
    encode_refusal,
)

pytestmark = pytest.mark.wire

NORMAL, FULL = 20_000, 1_000_000
ROUNDS = [pytest.param(NORMAL, id="normal"), pytest.param(FULL, id="full", marks=pytest.mark.full)]
ID = 0x1BA3CA3A0FC05007
EDGES = (0x00, 0x01, 0x02, 0x30, 0x50, 0x7F, 0x80, 0x84, 0x88, 0xFE, 0xFF)

PACKETS = [
    p.encode(value)
    for value in (
        Put(1, 60, b"hi"),
        PutAck(1, 60, ID),
        Msg(ID, 1, b"hi"),
        Ack(ID),
        Get(ID),
        GetAck(ID, b"hi"),
        List(5, 1, 0),
        ListAck([1, ID]),
        Nack(ID, NackReason.LATER, 5000),
        Nack(ID, NackReason.REJECT),
        Touch(ID, 1000),
        TouchAck(ID, 1000),
        Credit(8),
        p.Ping(7),
        p.Pong((7, 8, 9)),
        p.Admin(1, 2, b"\x80"),
        p.AdminReply(1, 2, b"\x80"),
        p.Close(goodbye=True),
    )
] + [
    p.encode_msgx(Msg(ID, 3, b"hi")),
    encode_refusal(p.PUT, Code.SLOW_DOWN, bytes(4), 5000),
    encode_refusal(p.GET, Code.NOT_FOUND, bytes(8)),
]

HELLOS = [
    h.encode_hello(h.Hello()),
    h.encode_hello(
        h.Hello(
            channel=b"chat/1",
            public_key=b"k" * 32,
            nonce=b"n" * 32,
            role=Role.BOTH,
            extensions=p.EXTENSIONS,
            window=32,
            mode=Mode.QUEUE,
            user_agent=b"me",
        )
    ),
]
READIES = [
    h.encode_ready(h.Ready(packet_max=2**20, keep_alive_ms=20_000)),
    h.encode_ready(h.Ready(window=8, mode=Mode.PAIR, durability=Durability.DISK, resume_after=1)),
]
CHALLENGES = [h.encode_challenge(h.Challenge(1, b"k" * 32, b"n" * 32, b"s" * 64, b"h" * 32))]
AUTHS = [h.encode_auth(h.Auth(b"s" * 64))]


def rewritten(value: p.Packet, packet_type: int) -> bytes:
    """The packet encoded again; a push that had its attempt has it again."""
    if packet_type == p.MSGX and isinstance(value, Msg):
        return p.encode_msgx(value)
    return p.encode(value)


def mutated(rng: random.Random, seeds: list[bytes]) -> bytes:
    """A seed after one to three of: a byte changed, cut, doubled or put in, or another's tail."""
    raw = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(raw))
        match rng.randint(0, 5):
            case 0 if place < len(raw):
                raw[place] ^= 1 << rng.randint(0, 7)
            case 1 if place < len(raw):
                raw[place] = rng.choice(EDGES)
            case 2:
                del raw[place:]
            case 3:
                del raw[place : place + rng.randint(1, 4)]
            case 4:
                raw[place:place] = rng.randbytes(rng.randint(1, 9))
            case _:
                raw[place:] = rng.choice(seeds)[place:]
    return bytes(raw)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_packets_are_read_or_refused_and_mean_one_thing(rounds: int) -> None:
    """P2P-21, PA-23: what was understood is written as bytes that mean the same."""
    rng = random.Random(1)
    understood = malformed = 0
    for _ in range(rounds):
        raw = mutated(rng, PACKETS)
        try:
            value = p.decode(raw)
        except MalformedPacket as error:
            malformed += 1
            answer = encode_malformed(error)
            assert len(answer) <= 11 and p.decode(answer) != p.Close(goodbye=True), raw.hex()
            continue
        understood += not isinstance(value, p.Unknown)
        assert p.decode(rewritten(value, raw[0])) == value, raw.hex()
        if isinstance(value, p.Refused):
            assert isinstance(decode_refused(value), RequestError), raw.hex()
            correlation_number(value)
    assert understood > rounds // 20 and malformed > rounds // 20


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize(
    ("seeds", "decode", "encode"),
    [
        pytest.param(HELLOS, h.decode_hello, h.encode_hello, id="HELLO"),
        pytest.param(READIES, h.decode_ready, h.encode_ready, id="READY"),
        pytest.param(CHALLENGES, h.decode_challenge, h.encode_challenge, id="CHALLENGE"),
        pytest.param(AUTHS, h.decode_auth, h.encode_auth, id="AUTH"),
    ],
)
def test_handshakes_are_read_or_refused_and_mean_one_thing(
    rounds: int,
    seeds: list[bytes],
    decode: Callable[[bytes], Any],
    encode: Callable[[Any], bytes],
) -> None:
    """PS-07."""
    rng = random.Random(2)
    refused = 0
    for _ in range(rounds):
        raw = mutated(rng, seeds)
        try:
            value = decode(raw)
        except MalformedHandshake:
            refused += 1
            continue
        assert decode(encode(value)) == value, raw.hex()
    assert 0 < refused < rounds


@pytest.mark.parametrize("rounds", ROUNDS)
def test_noise_is_read_or_refused(rounds: int) -> None:
    """Random bytes, at every decoder."""
    rng = random.Random(3)
    decoders: list[Callable[[bytes], object]] = [
        p.decode,
        h.decode_hello,
        h.decode_challenge,
        h.decode_auth,
        h.decode_ready,
    ]
    for _ in range(rounds // len(decoders)):
        raw = rng.choice((b"", p.HELLO_MAGIC, b"\x83\x01", b"\xff")) + rng.randbytes(
            rng.randint(0, 40)
        )
        for decode in decoders:
            try:
                decode(raw)
            except WireError:
                pass


@pytest.mark.parametrize("rounds", ROUNDS)
def test_broken_streams_read_alike_in_any_split(rounds: int) -> None:
    """P2P-18, PA-24, PA-34: same packets, same error, and never more kept than came."""
    rng = random.Random(4)
    seeds = [LengthPrefixed(64).frame([raw] * count) for raw in PACKETS for count in (1, 2, 12)]
    broken = 0
    for _ in range(rounds):
        wire = mutated(rng, seeds)
        whole, pieces = LengthPrefixed(64), LengthPrefixed(64)
        expected = whole.feed(wire)
        found: list[bytes] = []
        start = 0
        while start < len(wire):
            end = start + rng.randint(1, 60)
            found += pieces.feed(wire[start:end])
            start = end
        assert found == expected, wire.hex()
        assert repr(pieces.error) == repr(whole.error), wire.hex()
        assert wire.startswith(whole.frame(expected)), wire.hex()
        assert all(0 < len(packet) <= 64 for packet in expected)
        broken += whole.error is not None
    assert broken > rounds // 20

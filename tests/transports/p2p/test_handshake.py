"""HELLO, CHALLENGE, AUTH and READY: worked bytes, every tag, and all that is refused."""

from __future__ import annotations

import pytest

from millpond.actors.messages import Durability, Mode, Role
from millpond.transports.errors import MalformedHandshake
from millpond.transports.p2p.handshake import (
    HANDSHAKE_BYTES_MAX,
    VERSION,
    Auth,
    Challenge,
    Hello,
    Ready,
    decode_auth,
    decode_challenge,
    decode_hello,
    decode_ready,
    encode_auth,
    encode_challenge,
    encode_hello,
    encode_ready,
    transcript,
    without_signature,
)
from millpond.transports.p2p.packets import CREDIT, MSGX, TOUCH

pytestmark = pytest.mark.wire

HEAD = "80 50325042 01 01 01"
HELLO_3I = bytes.fromhex("80 50325042 01 01 03 01 0006 636861742f31 04 0001 03 07 0002 0020")
READY_3I = bytes.fromhex("83 01 08 0004 00100000 09 0004 00004e20")
KEY, NONCE, SIGNATURE, HASH = b"k" * 32, b"n" * 32, b"s" * 64, b"h" * 32

FULL_HELLO = Hello(
    version_min=1,
    version_max=3,
    want_push=False,
    duplex=True,
    ordered=True,
    channel=b"chat/1",
    public_key=KEY,
    nonce=NONCE,
    role=Role.WORKER,
    extensions=frozenset({MSGX, CREDIT, TOUCH}),
    token=b"secret",
    window=0,
    packet_max=2**20,
    keep_alive_ms=20_000,
    list_mode=1,
    resume_after=2**64 - 1,
    certificate_hash=HASH,
    mode=Mode.QUEUE,
    user_agent=b"millpond/0.1",
    delivery_proof=bytes(range(32)),
    name="wörker".encode(),
)
FULL_READY = Ready(
    want_push=True,
    duplex=True,
    ordered=True,
    packet_max=2**20,
    keep_alive_ms=20_000,
    window=8,
    extensions=frozenset({CREDIT}),
    mode=Mode.PAIR,
    durability=Durability.DISK,
    list_mode=0,
    resume_after=7,
    user_agent=b"millpond",
)


def tlv(tag: int, value: bytes) -> bytes:
    return bytes((tag,)) + len(value).to_bytes(2, "big") + value


def hello(*tags: bytes) -> bytes:
    return bytes.fromhex(HEAD) + b"".join(tags)


def test_worked_hello_in_both_directions() -> None:
    """3i."""
    value = Hello(duplex=True, channel=b"chat/1", role=Role.BOTH, window=32)
    assert decode_hello(HELLO_3I) == value
    assert encode_hello(value) == HELLO_3I
    assert (value.version_min, value.version_max) == (VERSION, VERSION)


def test_worked_ready_in_both_directions() -> None:
    """3i."""
    value = Ready(packet_max=2**20, keep_alive_ms=20_000)
    assert decode_ready(READY_3I) == value
    assert encode_ready(value) == READY_3I


def test_every_tag_survives() -> None:
    assert decode_hello(encode_hello(FULL_HELLO)) == FULL_HELLO
    assert decode_ready(encode_ready(FULL_READY)) == FULL_READY
    assert decode_hello(encode_hello(Hello())) == Hello()
    assert decode_ready(encode_ready(Ready(want_push=False))) == Ready(want_push=False)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_delivery_proof_has_32_bytes(size: int) -> None:
    """Tag 82, which nodes of earlier versions skip."""
    assert encode_hello(Hello(delivery_proof=bytes(32))) == hello(tlv(0x82, bytes(32)))
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(tlv(0x82, bytes(size))))


def test_no_token_is_in_the_repr_of_a_hello() -> None:
    assert "secret" not in repr(Hello(channel=b"chat/1", token=b"secret"))


def test_tags_ascend_and_extensions_are_sorted() -> None:
    raw = encode_hello(Hello(extensions=frozenset({MSGX, CREDIT, TOUCH}), role=Role.CONSUMER))
    assert raw == hello(tlv(0x04, b"\x02"), tlv(0x05, bytes((CREDIT, TOUCH, MSGX))))


def test_mode_and_durability_of_ready() -> None:
    """3b, PS-05: tags 0e and 81."""
    raw = bytes.fromhex("83 01 0e 0001 02 81 0001 01")
    assert decode_ready(raw) == Ready(mode=Mode.QUEUE, durability=Durability.OS)


def test_the_transcript_of_worked_packets() -> None:
    """PS-01: whole packets, each behind its length; the digests were worked out elsewhere."""
    alice = bytes.fromhex("8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c")
    node = bytes.fromhex("8139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394")
    nonce = bytes(range(32))
    asked = hello(tlv(0x01, b"chat/1"), tlv(0x02, alice), tlv(0x03, nonce))
    answered = b"\x81\x01" + tlv(0x02, node) + tlv(0x03, nonce[::-1])
    assert transcript(b"\x80P2PB", b"\x81\x01").hex() == (
        "60f68ff82f7b0d288f52050561184385d7a07d1e6c6aa90224958f1ad4fd6dc6"
    )
    assert transcript(asked, answered).hex() == (
        "fba588db7ddce779a3dfacc49143fc5ca6eda2949d693164a50a2609d99a6ba1"
    )


def test_a_challenge_without_its_signature_is_otherwise_the_same() -> None:
    """PS-01: at any place, and with unknown tags."""
    head, signature = b"\x81\x01", tlv(0x0A, SIGNATURE)
    others = [tlv(0x02, KEY), tlv(0x03, NONCE), tlv(0x99, b"unknown"), tlv(0x98, b"")]
    for place in range(len(others) + 1):
        before, behind = b"".join(others[:place]), b"".join(others[place:])
        assert without_signature(head + before + signature + behind) == head + before + behind
    assert without_signature(head + b"".join(others)) == head + b"".join(others)


def test_challenge_and_auth_in_both_directions() -> None:
    """PS-01."""
    raw = b"\x81\x01" + tlv(0x02, KEY) + tlv(0x03, NONCE) + tlv(0x0A, SIGNATURE) + tlv(0x0D, HASH)
    value = Challenge(1, KEY, NONCE, SIGNATURE, HASH)
    assert decode_challenge(raw) == value
    assert encode_challenge(value) == raw
    assert decode_auth(b"\x82" + SIGNATURE) == Auth(SIGNATURE)
    assert encode_auth(Auth(SIGNATURE)) == b"\x82" + SIGNATURE


def test_the_transcript_takes_a_challenge_without_its_signature() -> None:
    """3b: the server signs what it will send, less tag 0a."""
    raw = encode_challenge(Challenge(1, KEY, NONCE))
    assert raw == b"\x81\x01" + tlv(0x02, KEY) + tlv(0x03, NONCE)
    with pytest.raises(MalformedHandshake):
        decode_challenge(raw)


@pytest.mark.parametrize("missing", [0x02, 0x03, 0x0A])
def test_a_challenge_proves_who_sent_it(missing: int) -> None:
    """PS-01."""
    tags = {0x02: KEY, 0x03: NONCE, 0x0A: SIGNATURE}
    raw = b"\x81\x01" + b"".join(tlv(tag, value) for tag, value in tags.items() if tag != missing)
    with pytest.raises(MalformedHandshake):
        decode_challenge(raw)


def test_a_public_key_needs_a_nonce() -> None:
    """PS-01; a nonce alone is harmless."""
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(tlv(0x02, KEY)))
    assert decode_hello(hello(tlv(0x03, NONCE))).nonce == NONCE


def test_unknown_tags_are_fatal_below_80_and_skipped_above() -> None:
    """3b."""
    assert decode_hello(hello(tlv(0x8F, b"later"), tlv(0xFF, b""))) == Hello()
    for tag in (0x00, 0x0F, 0x7F):
        with pytest.raises(MalformedHandshake):
            decode_hello(hello(tlv(tag, b"")))


def test_unknown_flags_are_skipped() -> None:
    raw = bytes.fromhex("80 50325042 01 01 f9")
    assert decode_hello(raw) == Hello()


@pytest.mark.parametrize(
    ("tag", "size"),
    [
        (0x02, 32),
        (0x03, 32),
        (0x04, 1),
        (0x07, 2),
        (0x08, 4),
        (0x09, 4),
        (0x0A, 64),
        (0x0B, 1),
        (0x0C, 8),
        (0x0D, 32),
        (0x0E, 1),
        (0x81, 1),
    ],
)
def test_a_known_tag_has_its_one_length(tag: int, size: int) -> None:
    """PS-07."""
    nonce = b"" if tag == 0x03 else tlv(0x03, NONCE)
    decode_hello(hello(nonce, tlv(tag, b"\x01" * size)))
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(MalformedHandshake):
            decode_hello(hello(nonce, tlv(tag, b"\x01" * wrong)))


def test_a_name_has_128_bytes_at_most() -> None:
    assert decode_hello(hello(tlv(0x83, b"n" * 128))).name == b"n" * 128
    assert decode_hello(hello(tlv(0x83, b""))).name == b""
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(tlv(0x83, b"n" * 129)))


@pytest.mark.parametrize("size", [0, 256, 4000])
def test_a_channel_has_1_to_255_bytes(size: int) -> None:
    """3b, tag 01."""
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(tlv(0x01, b"c" * size)))
    with pytest.raises(MalformedHandshake):
        encode_hello(Hello(channel=b"c" * size))
    assert decode_hello(encode_hello(Hello(channel=b"c" * 255))).channel == b"c" * 255


@pytest.mark.parametrize("repeated", [tlv(0x01, b"c"), tlv(0x80, b"me"), tlv(0x90, b"")])
def test_a_tag_comes_once(repeated: bytes) -> None:
    """PS-07."""
    decode_hello(hello(repeated))
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(repeated, repeated))


@pytest.mark.parametrize("tail", ["07", "07 00", "07 0002", "07 0002 00", "80 ffff 00", "01 0007"])
def test_a_tag_ends_where_the_packet_ends(tail: str) -> None:
    """PS-07."""
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(bytes.fromhex(tail)))
    with pytest.raises(MalformedHandshake):
        decode_ready(b"\x83\x01" + bytes.fromhex(tail))


@pytest.mark.parametrize(
    "raw",
    [
        hello(tlv(0x04, b"\x00")),
        hello(tlv(0x04, b"\x05")),
        hello(tlv(0x0E, b"\x03")),
        bytes.fromhex("80 50325042 02 01 00"),
        bytes.fromhex("80 50325042 01 01"),
        bytes.fromhex("80 50325043 01 01 00"),
        READY_3I,
        b"\x80",
        b"",
    ],
    ids=["role 0", "role 5", "PS-05 mode 3", "versions", "short", "magic", "READY", "80", "empty"],
)
def test_other_hellos_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedHandshake):
        decode_hello(raw)


def test_a_hello_has_at_most_4_kib() -> None:
    """3b."""
    size = HANDSHAKE_BYTES_MAX - len(hello()) - 3
    value = Hello(token=b"t" * size)
    assert len(encode_hello(value)) == 4096
    assert decode_hello(encode_hello(value)) == value
    with pytest.raises(MalformedHandshake):
        decode_hello(hello(tlv(0x06, b"t" * (size + 1))))
    with pytest.raises(MalformedHandshake):
        encode_hello(Hello(token=b"t" * (size + 1)))


@pytest.mark.parametrize(
    "value",
    [
        Hello(window=2**16),
        Hello(packet_max=2**32),
        Hello(resume_after=-1),
        Hello(public_key=b"short", nonce=NONCE),
        Hello(user_agent=b"u" * 4096),
    ],
)
def test_requests_above_limits_are_not_written(value: Hello) -> None:
    with pytest.raises(MalformedHandshake):
        encode_hello(value)


@pytest.mark.parametrize("raw", [b"", b"\x83", b"\x81\x01", HELLO_3I])
def test_other_readies_are_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedHandshake):
        decode_ready(raw)


def test_a_ready_of_an_unknown_promise_is_malformed() -> None:
    for tail in ("81 0001 04", "0e 0001 04"):
        with pytest.raises(MalformedHandshake):
            decode_ready(b"\x83\x01" + bytes.fromhex(tail))


@pytest.mark.parametrize("size", [0, 63, 65])
def test_a_signature_has_64_bytes(size: int) -> None:
    with pytest.raises(MalformedHandshake):
        decode_auth(b"\x82" + bytes(size))
    with pytest.raises(MalformedHandshake):
        encode_auth(Auth(bytes(size)))


def test_a_packet_of_another_type_is_no_challenge_and_no_auth() -> None:
    with pytest.raises(MalformedHandshake):
        decode_challenge(b"\x83\x01" + tlv(0x02, KEY) + tlv(0x03, NONCE) + tlv(0x0A, SIGNATURE))
    with pytest.raises(MalformedHandshake):
        decode_auth(b"\x81" + SIGNATURE)

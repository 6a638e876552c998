"""NACK codes: every code both ways, its correlation, and the delay that may follow."""

from __future__ import annotations

import pytest

from millpond.actors.errors import ERRORS, BufferFull, Code, KeyReused, OutcomeUnknown, SlowDown
from millpond.actors.messages import (
    Ack,
    Attach,
    Credit,
    Drain,
    Failed,
    Get,
    List,
    Nack,
    NackReason,
    Put,
    Request,
    Touch,
)
from millpond.actors.streams.messages import Describe
from millpond.transports.errors import MalformedPacket
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.nacks import (
    CODES,
    HelloCode,
    UnknownRefusal,
    correlation_number,
    decode_refused,
    encode_failed,
    encode_hello_refusal,
    encode_malformed,
    encode_refusal,
)

pytestmark = pytest.mark.wire

ID = 0x1BA3CA3A0FC05007
PUT = Put(0x0A0B0C0D, 60, b"hi")
DESCRIBE = Describe(7)


def refused(raw: bytes) -> p.Refused:
    value = p.decode(raw)
    assert isinstance(value, p.Refused)
    return value


@pytest.mark.parametrize(
    ("request_", "code", "delay_ms", "wire"),
    [
        (Get(ID), Code.NOT_FOUND, None, "ff 04 02 1ba3ca3a0fc05007"),
        (PUT, Code.KEY_REUSED, None, "ff 06 22 0a0b0c0d"),
        (PUT, Code.TTL_REFUSED, None, "ff 06 20 0a0b0c0d"),
        (PUT, Code.EMPTY_DATA, None, "ff 06 23 0a0b0c0d"),
        (PUT, Code.DATA_TOO_LARGE, None, "ff 06 24 0a0b0c0d"),
        (PUT, Code.WRONG_ROLE, None, "ff 06 25 0a0b0c0d"),
        (PUT, Code.BUFFER_FULL, None, "ff 06 26 0a0b0c0d"),
        (PUT, Code.BUFFER_FULL, 250, "ff 06 26 0a0b0c0d 000000fa"),
        (PUT, Code.SLOW_DOWN, 5000, "ff 06 a0 0a0b0c0d 00001388"),
        (PUT, Code.IDS_EXHAUSTED, None, "ff 06 e0 0a0b0c0d"),
        (PUT, Code.STORAGE_FAILED, None, "ff 06 e1 0a0b0c0d"),
        (PUT, Code.MALFORMED, None, "ff 06 f0 0a0b0c0d"),
        (PUT, Code.NOT_ALLOWED, None, "ff 06 f6 0a0b0c0d"),
        (PUT, Code.OUTCOME_UNKNOWN, None, "ff 06 fe 0a0b0c0d"),
        (Get(ID), Code.TOO_LARGE_FOR_PEER, None, "ff 04 27 1ba3ca3a0fc05007"),
        (List(0, 9, 3), Code.BAD_RANGE, None, "ff 08 21"),
        (List(0, 0, 0), Code.SLOW_DOWN, 1, "ff 08 a0 00000001"),
        (Touch(ID, 1), Code.LEASE_LOST, None, "ff 86 28 1ba3ca3a0fc05007"),
        (Touch(ID, 1), Code.NOT_NEGOTIATED, None, "ff 86 f2 1ba3ca3a0fc05007"),
        (Ack(ID), Code.NOT_ALLOWED, None, "ff 03 f6 1ba3ca3a0fc05007"),
        (Credit(1), Code.NOT_NEGOTIATED, None, "ff 84 f2"),
        (Nack(ID, NackReason.BUSY), Code.LEASE_LOST, None, "ff ff 28 1ba3ca3a0fc05007"),
        (Attach(), Code.NOT_ALLOWED, None, "ff 80 f6"),
        (DESCRIBE, Code.STREAM_EXISTS, None, "ff 92 40 00000007"),
        (DESCRIBE, Code.UNKNOWN_STREAM, None, "ff 92 41 00000007"),
        (DESCRIBE, Code.NON_MONOTONIC_ID, None, "ff 92 42 00000007"),
        (DESCRIBE, Code.TRIMMED, None, "ff 92 43 00000007"),
        (DESCRIBE, Code.SEQUENCE_MISMATCH, None, "ff 92 44 00000007"),
        (DESCRIBE, Code.FENCED, None, "ff 92 45 00000007"),
        (DESCRIBE, Code.PART_OF_TOPIC, None, "ff 92 46 00000007"),
        (DESCRIBE, Code.GROUPS_FULL, None, "ff 92 47 00000007"),
    ],
)
def test_a_failed_request_becomes_its_nack_and_a_typed_error(
    request_: Request, code: Code, delay_ms: int | None, wire: str
) -> None:
    """P2P-16, 3c."""
    raw = encode_failed(Failed(request_, code, delay_ms))
    assert raw == bytes.fromhex(wire)
    error = decode_refused(refused(raw))
    assert type(error) is ERRORS[code]
    assert error.delay_ms == delay_ms


def test_every_code_has_a_byte_and_only_the_internal_ones_share_it() -> None:
    """Besides an encrypted stream, which is not allowed to others than S2's clients."""
    assert set(CODES) == set(Code)
    assert CODES[Code.ENCRYPTED] == CODES[Code.NOT_ALLOWED]
    own = [byte for code, byte in CODES.items() if byte != 0xFE and code is not Code.ENCRYPTED]
    assert len(set(own)) == len(own)
    assert {code for code in Code if CODES[code] == 0xFE} == {
        Code.OUTCOME_UNKNOWN,
        Code.QUARANTINED,
    }


def test_a_quarantined_channel_looks_like_an_unknown_outcome() -> None:
    """3k: the wrong guess costs a retry with the same key, no message."""
    error = decode_refused(refused(encode_failed(Failed(PUT, Code.QUARANTINED))))
    assert isinstance(error, OutcomeUnknown)


def test_no_code_can_be_taken_for_a_farewell() -> None:
    """P2P-18: `ff ff 00` and `ff ff ff` are the only packets that close."""
    for code in Code:
        assert isinstance(p.decode(encode_refusal(p.NACK, code)), p.Refused)


@pytest.mark.parametrize(
    ("wire", "number"),
    [
        ("ff 06 22 0a0b0c0d", 0x0A0B0C0D),
        ("ff 06 a0 0a0b0c0d 00001388", 0x0A0B0C0D),
        ("ff 04 02 000000000000002a", 42),
        ("ff 86 28 1ba3ca3a0fc05007", ID),
        ("ff 90 f6 00000007", 7),
        ("ff 92 41 00000007", 7),
        ("ff 06 f0 0a0b", None),
        ("ff 04 f0", None),
        ("ff 08 21", None),
        ("ff 08 a0 00001388", None),
        ("ff 63 77 0102", None),
    ],
)
def test_a_client_finds_the_request_that_failed(wire: str, number: int | None) -> None:
    assert correlation_number(refused(bytes.fromhex(wire))) == number


@pytest.mark.parametrize(
    ("wire", "error", "delay_ms"),
    [
        ("ff 06 a0 0a0b0c0d 00001388", SlowDown, 5000),
        ("ff 06 26 0a0b0c0d", BufferFull, None),
        ("ff 06 26", BufferFull, None),
        ("ff 06 26 0a0b0c0d 0013", BufferFull, None),
        ("ff 06 22 0a0b0c0d aabbccddee", KeyReused, None),
    ],
)
def test_a_delay_counts_only_when_it_is_whole(
    wire: str, error: type[Exception], delay_ms: int | None
) -> None:
    found = decode_refused(refused(bytes.fromhex(wire)))
    assert (type(found), found.delay_ms) == (error, delay_ms)


def test_an_unknown_code_is_a_failure_one_can_recover_from() -> None:
    """3c, last line."""
    error = decode_refused(p.Refused(p.PUT, 0x77, bytes(4) + bytes.fromhex("00001388")))
    assert isinstance(error, UnknownRefusal)
    assert (error.byte, error.delay_ms, error.code) == (0x77, 5000, Code.OUTCOME_UNKNOWN)
    assert "0x77" in str(error)


@pytest.mark.parametrize(
    ("wire", "answer"),
    [
        ("06 0a0b", "ff 06 f0 0a0b"),
        ("06 0a0b0c0d", "ff 06 f0 0a0b0c0d"),
        ("04 1ba3ca3a0fc05007 00", "ff 04 f0 1ba3ca3a0fc05007"),
        ("08 00", "ff 08 f0"),
        ("00 00", "ff 00 f0"),
        ("84", "ff 84 f0"),
        ("90 00000007", "ff 90 f0 00000007"),
        ("92 00000007", "ff 92 f0 00000007"),
    ],
)
def test_a_malformed_packet_is_answered_with_the_correlation_it_had(wire: str, answer: str) -> None:
    """PA-23, PS-12."""
    with pytest.raises(MalformedPacket) as caught:
        p.decode(bytes.fromhex(wire))
    assert encode_malformed(caught.value) == bytes.fromhex(answer)


@pytest.mark.parametrize(
    ("code", "wire"),
    [
        (HelloCode.NO_COMMON_VERSION, "ff 80 01"),
        (HelloCode.MALFORMED, "ff 80 f0"),
        (HelloCode.AUTHENTICATION_FAILED, "ff 80 f5"),
        (HelloCode.NOT_ALLOWED, "ff 80 f6"),
        (HelloCode.TOO_MANY_CONNECTIONS, "ff 80 f7"),
    ],
)
def test_handshake_refusals(code: HelloCode, wire: str) -> None:
    """3c, row 80."""
    assert encode_hello_refusal(code) == bytes.fromhex(wire)
    assert HelloCode(refused(bytes.fromhex(wire)).code) is code


def test_nothing_is_answered_without_a_request() -> None:
    with pytest.raises(AssertionError):
        encode_failed(Failed(Drain(), Code.NOT_ALLOWED))


@pytest.mark.parametrize(
    ("wire", "words"),
    [
        ("ff 92 26 00000007", "the stream or the node is full"),
        ("ff 06 26 0a0b0c0d", "the channel or the node is full; retry later"),
    ],
)
def test_pa_35_a_full_channel_or_node_has_its_own_code(wire: str, words: str) -> None:
    error = decode_refused(refused(bytes.fromhex(wire)))
    assert isinstance(error, BufferFull) and str(error) == words

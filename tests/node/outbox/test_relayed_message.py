"""The bytes of a relayed message (docs/internals/peers.md): one vector both ways, and whatever else
is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from millpond.node.outbox.relayed_message import (
    DEADLINE_MAX,
    HOPS_MAX,
    OVERHEAD_BYTES,
    OVERHEAD_BYTES_V1,
    MalformedRelayedMessage,
    RelayedMessage,
    decode_relayed_message,
    encode_relayed_message,
    relayed_deadline,
    relayed_idempotency_key,
)
from millpond.node.peers.envelope import VERSION

UUID = bytes(range(0x10, 0x20))
ENVELOPE = VERSION + b"kid4" + b"E" * 32 + UUID + b"c" * (32 + 64 + 64 + 16)
RELAYED = RelayedMessage(2, 0x65000000, b"R" * 32, b"notes", ENVELOPE)
BYTES = bytes.fromhex("e301 02 65000000") + b"R" * 32 + bytes.fromhex("0005") + b"notes" + ENVELOPE


def test_a_relayed_message_as_it_is_on_the_wire() -> None:
    """P2P-31: what a buffer sees of a sealed message."""
    assert encode_relayed_message(RELAYED) == BYTES
    assert decode_relayed_message(BYTES) == RELAYED
    assert len(BYTES) == OVERHEAD_BYTES_V1 + len(b"notes") + len(ENVELOPE)


@given(
    st.integers(0, HOPS_MAX),
    st.integers(0, DEADLINE_MAX),
    st.binary(min_size=32, max_size=32),
    st.binary(min_size=1, max_size=250),
)
def test_what_is_written_is_what_is_read(
    hops: int, deadline: int, recipient: bytes, channel: bytes
) -> None:
    relayed = RelayedMessage(hops, deadline, recipient, channel, ENVELOPE)
    assert decode_relayed_message(encode_relayed_message(relayed)) == relayed


@given(st.integers(0, len(BYTES) - 1))
def test_no_part_of_a_relayed_message_is_one(length: int) -> None:
    with pytest.raises(MalformedRelayedMessage):
        decode_relayed_message(BYTES[:length])


@given(st.binary(max_size=400))
def test_other_bytes_are_refused(data: bytes) -> None:
    if not data.startswith(BYTES[:2]):
        with pytest.raises(MalformedRelayedMessage):
            decode_relayed_message(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xe3\x03" + BYTES[2:],
        b"\xe3\x02" + BYTES[2:],
        BYTES[:2] + bytes((HOPS_MAX + 1,)) + BYTES[3:],
        BYTES[:39] + b"\0\0" + ENVELOPE,
        encode_relayed_message(replace(RELAYED, channel=b"n" * 256)),
        encode_relayed_message(replace(RELAYED, envelope=ENVELOPE + b"c")),
        encode_relayed_message(replace(RELAYED, envelope=b"not sealed at all")),
        BYTES[:39] + b"\xff\xff" + BYTES[41:],
    ],
    ids=[
        "version",
        "other form",
        "hops",
        "no channel",
        "long channel",
        "cut off",
        "clear",
        "beyond the end",
    ],
)
def test_what_no_node_would_have_written_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRelayedMessage):
        decode_relayed_message(data)


def test_the_key_is_of_the_envelope_and_the_same_everywhere() -> None:
    """PA-08: two ways, one key; where it is taken for something else there are others."""
    assert relayed_idempotency_key(RELAYED) == 0x10111213
    keys = [relayed_idempotency_key(RELAYED, attempt) for attempt in range(4)]
    assert len(set(keys)) == 4
    assert keys == [
        relayed_idempotency_key(decode_relayed_message(BYTES), each) for each in range(4)
    ]
    assert all(0 <= key < 2**32 for key in keys)


SEALED = b"\xe2\x02" + b"kid8kid8" + b"E" * 32 + b"c" * (512 + 16)
HOURS = 491_000
RELAYED_V2 = RelayedMessage(1, HOURS * 3600, b"R" * 32, b"", SEALED)
BYTES_V2 = b"\xe3\x02" + b"\x01" + HOURS.to_bytes(4, "big") + b"R" * 32 + SEALED


def test_a_relayed_message_of_version_2_as_it_is_on_the_wire() -> None:
    """Recipient, hours and a padded size: that is all."""
    assert encode_relayed_message(RELAYED_V2) == BYTES_V2
    assert decode_relayed_message(BYTES_V2) == RELAYED_V2
    assert len(BYTES_V2) == OVERHEAD_BYTES + len(SEALED)


@pytest.mark.parametrize(
    "data", [BYTES_V2[:-1], BYTES_V2 + b"c", BYTES_V2[:39], BYTES_V2[:39] + ENVELOPE]
)
def test_no_other_size_and_no_other_envelope_is_of_version_2(data: bytes) -> None:
    with pytest.raises(MalformedRelayedMessage):
        decode_relayed_message(data)


def test_a_deadline_is_rounded_up_to_an_hour() -> None:
    assert relayed_deadline(7200.0) == 7200
    assert relayed_deadline(7200.1) == 10_800

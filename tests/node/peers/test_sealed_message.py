"""Sealed messages of version 2 (docs/reference/sealed-messages.md): vectors, and refusals."""

from __future__ import annotations

import os
from hashlib import sha256

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.envelope import CannotOpen, Reason, UnusablePrekey
from millpond.node.peers.identity import Identity, verify
from millpond.node.peers.sealed_message import (
    LISTED_MAX,
    PADDED_BYTES_MIN,
    ContactKey,
    Content,
    Kind,
    OpenedMessage,
    Seen,
    kid_in,
    kid_of,
    message_hash,
    open_message,
    padded_size,
    seal_message,
    sealed_size_max,
)

ALICE = Identity.from_seed(sha256(b"alice").digest())
BOB = Identity.from_seed(sha256(b"bob").digest())
EVE = Identity.from_seed(sha256(b"eve").digest())
PRIVATE = sha256(b"prekey").digest()
PREKEY = X25519PrivateKey.from_private_bytes(PRIVATE).public_key().public_bytes_raw()
CONTENT = Content(
    kind=Kind.MESSAGE,
    channel=b"notes",
    deadline=1_764_288_000_000,
    sent_at=1_763_683_200_000,
    uuid=bytes(range(16)),
    line=b"line-one",
    began=1_763_683_000_000,
    counter=7,
    settled=5,
    seen=(Seen(b"line-two", 1_763_600_000_000, 9, bytes(32), 9, (4,), (8,)),),
    floor=0,
    key=ContactKey(EVE.public, 3, 1_763_683_000_000, 1_764_460_000_000),
    body=b"hello bob",
)


def time_field(ms: int) -> str:
    return f"cf{ms:016x}"


ENCODED = "".join(
    (
        "9d01c4056e6f746573",  # kind, channel
        time_field(1_764_288_000_000) + time_field(1_763_683_200_000),  # deadline, sent at
        "c410000102030405060708090a0b0c0d0e0f",  # uuid
        "c4086c696e652d6f6e65" + time_field(1_763_683_000_000) + "0705",  # line, counter, settled
        "9197c4086c696e652d74776f" + time_field(1_763_600_000_000),  # seen: line
        "09c420" + "00" * 32 + "0991049108",  # highest, hash, up to, missing, refused
        "0094c420" + EVE.public.hex() + "03",  # floor, key
        time_field(1_763_683_000_000) + time_field(1_764_460_000_000),
        "c40968656c6c6f20626f62",  # body
    )
)
"""The content by hand, field by field."""
SEALED_SHA256 = "551c2082bc6874592428721abf2955a56ccf4301b4f7c801767fdaee508f671c"


def entropy(size: int) -> bytes:
    return sha256(b"ephemeral").digest()[:size]


def seal(content: Content = CONTENT, sender: Identity = ALICE, prekey: bytes = PREKEY) -> bytes:
    return seal_message(
        content, sender=sender, recipient=BOB.public, prekey=prekey, entropy=entropy
    )


def unseal(
    sealed: bytes, recipient: Identity = BOB, private: bytes | None = PRIVATE
) -> OpenedMessage:
    return open_message(sealed, recipient=recipient, prekey_of=lambda kid: private)


SEALED = seal()


def test_the_bytes_of_a_sealed_message() -> None:
    """Both ways: with one ephemeral key they are always the same."""
    assert sha256(SEALED).hexdigest() == SEALED_SHA256
    assert SEALED[:2] == b"\xe2\x02"
    assert SEALED[2:10] == sha256(PREKEY).digest()[:8] == kid_of(PREKEY) == kid_in(SEALED)
    opened = unseal(SEALED)
    assert (opened.sender, opened.content) == (ALICE.public, CONTENT)
    assert opened.hash == message_hash(ALICE.public, BOB.public, CONTENT)


def test_the_bytes_by_the_text_alone() -> None:
    """As another program reads them, by the reference page and the primitives."""
    head, ciphertext = SEALED[:42], SEALED[42:]
    bound = head + BOB.public
    private = X25519PrivateKey.from_private_bytes(PRIVATE)
    shared = private.exchange(X25519PublicKey.from_public_bytes(head[10:]))
    derived = HKDF(SHA256(), 44, head[10:] + PREKEY, b"millpond seal v2\0" + bound).derive(shared)
    inner = ChaCha20Poly1305(derived[:32]).decrypt(derived[32:], ciphertext, bound)
    length = int.from_bytes(inner[96:100], "big")
    content = inner[100 : 100 + length]
    assert inner[:32] == ALICE.public and len(inner) == 512 and not any(inner[100 + length :])
    signed = b"millpond message v2\0" + sha256(bound + content).digest()
    assert verify(ALICE.public, inner[32:96], signed)
    assert content.hex() == ENCODED


def test_the_bytes_of_a_content() -> None:
    assert msgspec.msgpack.encode(CONTENT).hex() == ENCODED


def test_the_hash_is_of_what_stays_when_a_message_is_sealed_again() -> None:
    again = msgspec.structs.replace(CONTENT, seen=(), key=None, floor=5, settled=7)
    assert message_hash(ALICE.public, BOB.public, again) == unseal(SEALED).hash
    for change in ({"body": b"x"}, {"counter": 8}, {"channel": b"x"}, {"deadline": 1}):
        other = msgspec.structs.replace(CONTENT, **change)
        assert message_hash(ALICE.public, BOB.public, other) != unseal(SEALED).hash
    assert message_hash(EVE.public, BOB.public, CONTENT) != unseal(SEALED).hash


@given(st.integers(0, len(SEALED) * 8 - 1))
def test_any_flipped_bit_is_refused(bit: int) -> None:
    altered = bytearray(SEALED)
    altered[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CannotOpen):
        unseal(bytes(altered))


@given(st.integers(0, len(SEALED) - 1))
def test_no_part_is_opened(length: int) -> None:
    with pytest.raises(CannotOpen):
        unseal(SEALED[:length])


@given(st.binary(max_size=1200))
def test_other_bytes_are_refused(data: bytes) -> None:
    for each in (data, SEALED[:2] + data, SEALED[:42] + data):
        with pytest.raises(CannotOpen):
            unseal(each)


@given(
    st.binary(max_size=5000),
    st.binary(min_size=1, max_size=255),
    st.integers(1, 2**53),
    st.integers(0, 2**53),
)
def test_what_is_sealed_is_what_is_opened(
    body: bytes, channel: bytes, counter: int, deadline: int
) -> None:
    content = msgspec.structs.replace(
        CONTENT, body=body, channel=channel, counter=counter, deadline=deadline
    )
    sealed = seal_message(
        content, sender=ALICE, recipient=BOB.public, prekey=PREKEY, entropy=os.urandom
    )
    assert unseal(sealed).content == content
    assert len(sealed) <= sealed_size_max(len(body), len(channel))


@pytest.mark.parametrize(
    ("recipient", "private", "reason"),
    [
        (EVE, PRIVATE, Reason.NOT_AUTHENTIC),
        (BOB, sha256(b"other").digest(), Reason.UNKNOWN_PREKEY),
        (BOB, None, Reason.UNKNOWN_PREKEY),
    ],
    ids=["other recipient", "other prekey", "no prekey"],
)
def test_nobody_else_opens_it(recipient: Identity, private: bytes | None, reason: Reason) -> None:
    with pytest.raises(CannotOpen) as caught:
        unseal(SEALED, recipient, private)
    assert caught.value.reason is reason


class Impostor(Identity):
    """One that signs as itself, and says that it is Alice."""

    def __init__(self) -> None:
        super().__init__(EVE.seed)
        self.public = ALICE.public


def test_nobody_signs_for_another() -> None:
    with pytest.raises(CannotOpen) as caught:
        unseal(seal(sender=Impostor()))
    assert caught.value.reason is Reason.BAD_SIGNATURE


def test_a_low_order_point_is_no_prekey() -> None:
    with pytest.raises(UnusablePrekey):
        seal(prekey=bytes(32))


@pytest.mark.parametrize(
    "change",
    [
        {"kind": 3},
        {"kind": Kind.RECEIPT},
        {"channel": b""},
        {"channel": b"n" * 256},
        {"counter": 0},
        {"counter": 2**53 + 1},
        {"counter": -1},
        {"uuid": bytes(15)},
        {"line": bytes(9)},
        {"seen": CONTENT.seen * 5},
        {"seen": (msgspec.structs.replace(CONTENT.seen[0], missing=(1,) * (LISTED_MAX + 1)),)},
        {"key": ContactKey(bytes(31), 1, 0, 1)},
        {"body": "text"},
    ],
    ids=str,
)
def test_a_content_that_no_node_writes_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(CannotOpen) as caught:
        unseal(seal(msgspec.structs.replace(CONTENT, **change)))
    assert caught.value.reason is Reason.MALFORMED


def test_a_body_is_not_shown_in_errors() -> None:
    assert "hello" not in repr(CONTENT) and "hello" not in repr(unseal(SEALED))


@given(st.integers(1, 2**24))
def test_sizes_are_few(size: int) -> None:
    padded = padded_size(size)
    assert padded >= max(size, PADDED_BYTES_MIN)
    assert size <= PADDED_BYTES_MIN or padded <= size * 1.12
    assert padded_size(padded) == padded


def test_short_messages_and_receipts_have_one_size() -> None:
    receipt = msgspec.structs.replace(
        CONTENT, kind=Kind.RECEIPT, channel=b"", line=bytes(8), began=0, counter=0, body=b""
    )
    sizes = {len(seal(msgspec.structs.replace(CONTENT, body=b"x" * n))) for n in range(150)}
    assert sizes == {len(seal(receipt))} == {42 + PADDED_BYTES_MIN + 16}

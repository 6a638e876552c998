"""Envelopes (docs/internals/peers.md, P2P-31): their bytes, and all that has to keep one closed.

`written` and `read` are an implementation of their own, made from the text; the vectors in
vectors/envelopes.json came out of it.
"""

from __future__ import annotations

import hmac
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.peers.envelope import (
    CannotOpen,
    OpenedEnvelope,
    Reason,
    UnusablePrekey,
    envelope_uuid,
    is_usable,
    open_envelope,
    seal,
)
from millpond.node.peers.identity import Identity

VECTORS = json.loads((Path(__file__).parent / "vectors" / "envelopes.json").read_text("ascii"))
MIB = 1024 * 1024
SIZES = (0, 1, 62, 63, 64, 65, 127, 128, 1000, 65_535, MIB - 230, MIB - 1, MIB)

ALICE = Identity.from_seed(sha256(b"alice").digest())
BOB = Identity.from_seed(sha256(b"bob").digest())
EVE = Identity.from_seed(sha256(b"eve").digest())
PRIVATE = sha256(b"prekey").digest()
PREKEY = X25519PrivateKey.from_private_bytes(PRIVATE).public_key().public_bytes_raw()
UUID = bytes(range(16))
CHANNEL = b"chat"

LOW_ORDER = [
    bytes.fromhex(text)
    for text in (
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0100000000000000000000000000000000000000000000000000000000000000",
        "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
        "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
]


def derived(shared: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF-SHA256, 44 bytes (RFC 5869)."""
    prk = hmac.digest(salt, shared, "sha256")
    first = hmac.digest(prk, info + b"\x01", "sha256")
    return (first + hmac.digest(prk, first + info + b"\x02", "sha256"))[:44]


def written(
    padded: bytes,
    signed: bytes,
    *,
    sender: bytes = ALICE.seed,
    recipient: bytes = BOB.public,
    prekey: bytes = PREKEY,
    ephemeral: bytes = bytes(range(32)),
    channel: bytes = CHANNEL,
    uuid: bytes = UUID,
    version: bytes = b"\xe2\x01",
) -> bytes:
    """An envelope for what is padded already; the signature is of `signed`."""
    secret = X25519PrivateKey.from_private_bytes(ephemeral)
    eph = secret.public_key().public_bytes_raw()
    head = version + sha256(prekey).digest()[:4] + eph + uuid
    aad = head + len(channel).to_bytes(2, "big") + channel + recipient
    shared = secret.exchange(X25519PublicKey.from_public_bytes(prekey))
    okm = derived(shared, eph + prekey, b"p2pbuf e2e v1\x00" + aad)
    author = Ed25519PrivateKey.from_private_bytes(sender)
    signature = author.sign(b"p2pbuf msg v1\x00" + sha256(aad + signed).digest())
    inner = author.public_key().public_bytes_raw() + signature + padded
    return head + ChaCha20Poly1305(okm[:32]).encrypt(okm[32:], inner, aad)


def padded(clear: bytes) -> bytes:
    out = clear + b"\x80"
    while len(out) % 64:
        out += b"\x00"
    return out


def read(envelope: bytes, recipient: bytes, private: bytes, channel: bytes) -> tuple[bytes, bytes]:
    """The author and the content; InvalidTag or InvalidSignature otherwise."""
    assert envelope[:2] == b"\xe2\x01"
    eph = envelope[6:38]
    secret = X25519PrivateKey.from_private_bytes(private)
    prekey = secret.public_key().public_bytes_raw()
    assert envelope[2:6] == sha256(prekey).digest()[:4]
    aad = envelope[:54] + len(channel).to_bytes(2, "big") + channel + recipient
    shared = secret.exchange(X25519PublicKey.from_public_bytes(eph))
    okm = derived(shared, eph + prekey, b"p2pbuf e2e v1\x00" + aad)
    inner = ChaCha20Poly1305(okm[:32]).decrypt(okm[32:], envelope[54:], aad)
    clear = inner[96 : inner.rindex(b"\x80")]
    said = b"p2pbuf msg v1\x00" + sha256(aad + clear).digest()
    Ed25519PublicKey.from_public_bytes(inner[:32]).verify(inner[32:96], said)
    return inner[:32], clear


def sealed(clear: bytes, entropy: Callable[[int], bytes] = os.urandom) -> bytes:
    return seal(
        clear,
        sender=ALICE,
        recipient=BOB.public,
        prekey=PREKEY,
        channel=CHANNEL,
        uuid=UUID,
        entropy=entropy,
    )


def opened(
    envelope: bytes, recipient: Identity = BOB, channel: bytes = CHANNEL, private: bytes = PRIVATE
) -> OpenedEnvelope:
    return open_envelope(
        envelope, recipient=recipient, prekey_of=lambda kid: private, channel=channel
    )


def reason_of(envelope: bytes, **where: Any) -> Reason:
    with pytest.raises(CannotOpen) as refused:
        opened(envelope, **where)
    return refused.value.reason


@pytest.mark.parametrize("vector", VECTORS["sealed"], ids=lambda each: each["name"])
def test_the_bytes_of_an_envelope_are_those_of_the_vectors(vector: dict[str, str]) -> None:
    """P2P-31, docs/internals/peers.md: both ways."""
    given = {name: bytes.fromhex(text) for name, text in vector.items() if name != "name"}
    recipient = Identity.from_seed(given["recipient_seed"])
    prekey = X25519PrivateKey.from_private_bytes(given["prekey_private"]).public_key()
    asked: list[bytes] = []

    def prekey_of(kid: bytes) -> bytes:
        asked.append(kid)
        return given["prekey_private"]

    envelope = seal(
        given["clear"],
        sender=Identity.from_seed(given["sender_seed"]),
        recipient=recipient.public,
        prekey=prekey.public_bytes_raw(),
        channel=given["channel"],
        uuid=given["uuid"],
        entropy=lambda size: given["ephemeral_private"][:size],
    )
    assert envelope == given["envelope"]
    found = open_envelope(
        envelope, recipient=recipient, prekey_of=prekey_of, channel=given["channel"]
    )
    assert found.plaintext == given["clear"]
    assert found.sender == Identity.from_seed(given["sender_seed"]).public
    assert found.uuid == envelope_uuid(envelope) == given["uuid"]
    assert asked == [given["envelope"][2:6]]


@pytest.mark.parametrize("vector", VECTORS["refused"], ids=lambda each: each["name"])
def test_envelopes_that_stay_closed(vector: dict[str, str]) -> None:
    """Well-made ones too: a sender who holds the right keys and pads or signs wrongly."""
    envelope, channel, seed, private = (
        bytes.fromhex(vector[name])
        for name in ("envelope", "channel", "recipient_seed", "prekey_private")
    )
    recipient = Identity.from_seed(seed)
    where = {"recipient": recipient, "channel": channel, "private": private}
    assert reason_of(envelope, **where) is Reason[vector["reason"]]


@given(st.binary(max_size=2000))
def test_another_reader_of_the_text_opens_what_is_sealed_here(clear: bytes) -> None:
    assert read(sealed(clear), BOB.public, PRIVATE, CHANNEL) == (ALICE.public, clear)


@given(st.binary(max_size=2000))
def test_what_another_writer_sealed_is_opened_here(clear: bytes) -> None:
    assert opened(written(padded(clear), clear)) == OpenedEnvelope(ALICE.public, UUID, clear)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fill", [b"\x00", b"\x80", b"\xff"])
def test_up_to_a_mebibyte_of_anything_comes_back(size: int, fill: bytes) -> None:
    """Also what ends like padding does."""
    assert opened(sealed(fill * size)).plaintext == fill * size


@settings(max_examples=10, deadline=None)
@given(st.integers(0, MIB), st.integers(0, 255))
def test_any_size_up_to_a_mebibyte_comes_back(size: int, last: int) -> None:
    clear = sha256(b"%d" % size).digest() * (size // 32 + 1)
    clear = clear[:size] + bytes([last])
    assert opened(sealed(clear)).plaintext == clear


def test_a_size_tells_no_more_than_a_multiple_of_64() -> None:
    sizes = [len(sealed(bytes(size))) for size in range(200)]
    assert {size - clear for clear, size in enumerate(sizes)} == set(range(167, 231))
    assert {size % 64 for size in sizes} == {230 % 64}
    assert sizes == sorted(sizes)


def test_no_two_envelopes_are_alike() -> None:
    first, second = sealed(b"hi"), sealed(b"hi")
    assert first[:6] == second[:6] and first[38:54] == second[38:54]
    assert first[6:38] != second[6:38] and first[54:] != second[54:]


def test_nothing_of_the_sender_or_the_text_can_be_seen() -> None:
    envelope = sealed(b"meet me at nine" * 10)
    assert ALICE.public not in envelope and b"meet" not in envelope


def test_an_envelope_with_any_flipped_bit_stays_closed() -> None:
    envelope = sealed(b"hi")
    for bit in range(len(envelope) * 8):
        flipped = bytearray(envelope)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CannotOpen):
            opened(bytes(flipped))


@given(st.binary(min_size=1, max_size=300), st.data())
def test_an_envelope_with_any_other_bytes_stays_closed(clear: bytes, data: st.DataObject) -> None:
    envelope = sealed(clear)
    at = data.draw(st.integers(0, len(envelope) - 1))
    other = data.draw(st.binary(min_size=1, max_size=40).filter(lambda each: any(each)))
    changed = bytearray(envelope)
    for place, mask in enumerate(other[: len(envelope) - at], at):
        changed[place] ^= mask
    if bytes(changed) != envelope:
        with pytest.raises(CannotOpen):
            opened(bytes(changed))


def test_an_envelope_cut_off_anywhere_stays_closed() -> None:
    envelope = sealed(bytes(200))
    for size in range(len(envelope)):
        with pytest.raises(CannotOpen):
            opened(envelope[:size])
    for size in (1, 63, 64, 128):
        with pytest.raises(CannotOpen):
            opened(envelope + bytes(size))


@given(st.binary(max_size=400))
def test_what_is_no_envelope_stays_closed(data: bytes) -> None:
    with pytest.raises(CannotOpen):
        opened(data)
    with pytest.raises(CannotOpen):
        opened(b"\xe2\x01" + data)


@pytest.mark.parametrize("channel", [b"", b"chat2", b"cha", b"Chat", b"chat" + BOB.public])
def test_in_another_channel_it_stays_closed(channel: bytes) -> None:
    assert reason_of(sealed(b"hi"), channel=channel) is Reason.NOT_AUTHENTIC


def test_the_length_of_the_channel_is_bound() -> None:
    """Else bytes could move between the end of the channel and the recipient's key."""
    key = BOB.public
    envelope = written(padded(b"hi"), b"hi", recipient=key, channel=b"chat" + key[:1])
    assert reason_of(envelope, channel=b"chat") is Reason.NOT_AUTHENTIC


def test_for_another_recipient_it_stays_closed() -> None:
    """Also for one who has the prekey's private half."""
    assert reason_of(sealed(b"hi"), recipient=EVE) is Reason.NOT_AUTHENTIC
    assert reason_of(sealed(b"hi"), private=sha256(b"x").digest()) is Reason.NOT_AUTHENTIC


def test_without_the_prekey_it_stays_closed() -> None:
    with pytest.raises(CannotOpen) as refused:
        open_envelope(sealed(b"hi"), recipient=BOB, prekey_of=lambda kid: None, channel=CHANNEL)
    assert refused.value.reason is Reason.UNKNOWN_PREKEY


def test_what_was_sealed_for_us_cannot_be_handed_on_as_if_for_another() -> None:
    """Bob opens it, and seals text and signature again, for Eve: she is not fooled."""
    signature = opened_inner(sealed(b"I owe you 5"))[32:96]
    for_eve = bytes.fromhex("e201") + sha256(PREKEY).digest()[:4]
    secret = X25519PrivateKey.from_private_bytes(bytes(range(32)))
    eph = secret.public_key().public_bytes_raw()
    for_eve += eph + UUID
    aad = for_eve + len(CHANNEL).to_bytes(2, "big") + CHANNEL + EVE.public
    shared = secret.exchange(X25519PublicKey.from_public_bytes(PREKEY))
    okm = derived(shared, eph + PREKEY, b"p2pbuf e2e v1\x00" + aad)
    inner = ALICE.public + signature + padded(b"I owe you 5")
    forged = for_eve + ChaCha20Poly1305(okm[:32]).encrypt(okm[32:], inner, aad)
    assert reason_of(forged, recipient=EVE) is Reason.BAD_SIGNATURE


def opened_inner(envelope: bytes) -> bytes:
    secret = X25519PrivateKey.from_private_bytes(PRIVATE)
    eph = envelope[6:38]
    aad = envelope[:54] + len(CHANNEL).to_bytes(2, "big") + CHANNEL + BOB.public
    shared = secret.exchange(X25519PublicKey.from_public_bytes(eph))
    okm = derived(shared, eph + PREKEY, b"p2pbuf e2e v1\x00" + aad)
    return ChaCha20Poly1305(okm[:32]).decrypt(okm[32:], envelope[54:], aad)


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_low_order_points_are_refused_at_both_ends(point: bytes) -> None:
    envelope = sealed(b"hi")
    assert reason_of(envelope[:6] + point + envelope[38:]) is Reason.LOW_ORDER_POINT
    assert not is_usable(point)
    with pytest.raises(UnusablePrekey):
        seal(
            b"hi",
            sender=ALICE,
            recipient=BOB.public,
            prekey=point,
            channel=CHANNEL,
            uuid=UUID,
            entropy=os.urandom,
        )


def test_a_prekey_that_works_is_usable_and_one_of_another_length_is_not() -> None:
    assert is_usable(PREKEY)
    assert not any(map(is_usable, (b"", PREKEY[:-1], PREKEY + b"\x00")))


def test_the_uuid_is_read_without_a_key_and_only_from_an_envelope() -> None:
    """PA-32: it names the message on every way it takes."""
    envelope = sealed(b"hi")
    assert envelope_uuid(envelope) == UUID
    for other in (b"", b"\xe2", envelope[:229], b"\xe2\x02" + envelope[2:], b"hello" * 46):
        with pytest.raises(CannotOpen):
            envelope_uuid(other)


def test_neither_text_nor_secrets_get_into_a_log() -> None:
    found = opened(sealed(b"meet me at nine"))
    assert "meet" not in repr(found) and "15 bytes" in repr(found)

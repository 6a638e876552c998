"""Envelopes: a message sealed for one recipient, bound to its channel (docs/internals/peers.md).

    e2 01 | kid4 | ephemeral X25519 public32 | uuid16 | ciphertext | tag16
    ciphertext = ChaCha20-Poly1305 of: sender's Ed25519 public32 | signature64 | clear | 80 00*

Authenticated with it: those first 54 bytes, the channel (u16 length first), the recipient's Ed25519
public key. Sealing and opening are pure and take a few hundred microseconds, more for large
messages: do them in a worker thread, never in a cell.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import Enum
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from millpond.node.peers.identity import Identity, verify

VERSION = b"\xe2\x01"
KEY_BYTES = 32
KID_BYTES = 4
UUID_BYTES = 16
CHANNEL_BYTES_MAX = 0xFFFF

_HEAD = struct.Struct(f">2s{KID_BYTES}s{KEY_BYTES}s{UUID_BYTES}s")
_SIGNATURE_BYTES = 64
_TAG_BYTES = 16
_NONCE_BYTES = 12
_BLOCK = 64
_FIXED = _HEAD.size + KEY_BYTES + _SIGNATURE_BYTES + _TAG_BYTES
_DERIVED = b"p2pbuf e2e v1\0"
_SIGNED = b"p2pbuf msg v1\0"
_ANY = X25519PrivateKey.from_private_bytes(bytes(KEY_BYTES))
"""Any private key: with a low-order point the result is zeros."""


class Reason(Enum):
    """The reasons why an envelope cannot be opened."""

    WRONG_VERSION = "it is not an envelope of a version that is known here"
    WRONG_SIZE = "no envelope has this size: it was cut off, or is something else"
    UNKNOWN_PREKEY = "the key it was sealed for is not, or no longer, here"
    LOW_ORDER_POINT = "its ephemeral key is one that yields no secret"
    NOT_AUTHENTIC = "it was altered, or sealed for another recipient or channel"
    BAD_PADDING = "what was sealed is not padded as it has to be"
    BAD_SIGNATURE = "its sender did not sign it for this recipient and channel"
    MALFORMED = "what was sealed is not a message of this version"
    WRONG_SENDER = "it was sealed with a key that another peer was given"


class CannotOpen(Exception):
    """An envelope that cannot be opened; another attempt does not help."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.value)
        self.reason = reason


class UnusablePrekey(ValueError):
    """A prekey that cannot be used: a low-order point."""


class OpenedEnvelope(msgspec.Struct, frozen=True):
    """An opened envelope, with the verified signature of `sender`.

    Whether `sender` is known and trusted is checked by the caller.
    """

    sender: bytes
    uuid: bytes
    plaintext: bytes

    def __repr__(self) -> str:
        # The plaintext must not get into a log by way of an error message.
        return (
            f"OpenedEnvelope({self.sender.hex()}, {self.uuid.hex()}, {len(self.plaintext)} bytes)"
        )


def kid_of(prekey: bytes) -> bytes:
    """The 4 bytes that identify a prekey in an envelope."""
    return sha256(prekey).digest()[:KID_BYTES]


def is_usable(prekey: bytes) -> bool:
    """True for a usable prekey: 32 bytes, and not a low-order point."""
    return len(prekey) == KEY_BYTES and shared_secret(_ANY, prekey) is not None


def seal(
    plaintext: bytes,
    *,
    sender: Identity,
    recipient: bytes,
    prekey: bytes,
    channel: bytes,
    uuid: bytes,
    entropy: Callable[[int], bytes],
) -> bytes:
    """The envelope, 167 to 230 bytes longer than `plaintext`.

    `recipient` is an Ed25519 public key, `prekey` an X25519 public key that it signed, `uuid` 16
    bytes never used before. No two envelopes are alike: what is sent again must be the same bytes,
    not sealed again. UnusablePrekey when the prekey is a low-order point.
    """
    assert len(recipient) == len(prekey) == KEY_BYTES and len(uuid) == UUID_BYTES
    ephemeral = X25519PrivateKey.from_private_bytes(entropy(KEY_BYTES))
    public = ephemeral.public_key().public_bytes_raw()
    head = _HEAD.pack(VERSION, kid_of(prekey), public, uuid)
    bound = _bound(head, channel, recipient)
    shared = shared_secret(ephemeral, prekey)
    if shared is None:
        raise UnusablePrekey("the prekey is a low-order point")
    cipher, nonce = _cipher(shared, public + prekey, bound)
    signature = sender.sign(_SIGNED + _digest(bound, plaintext))
    padding = b"\x80".ljust(_BLOCK - len(plaintext) % _BLOCK, b"\0")
    inner = b"".join((sender.public, signature, plaintext, padding))
    return head + cipher.encrypt(nonce, inner, bound)


def open_envelope(
    envelope: bytes,
    *,
    recipient: Identity,
    prekey_of: Callable[[bytes], bytes | None],
    channel: bytes,
) -> OpenedEnvelope:
    """The opened envelope for `recipient` in `channel`. Raises CannotOpen.

    `prekey_of` gives the X25519 private key (32 bytes) behind a kid, or None.
    """
    _, kid, public, uuid = _head(envelope)
    secret = prekey_of(kid)
    if secret is None:
        raise CannotOpen(Reason.UNKNOWN_PREKEY)
    prekey = X25519PrivateKey.from_private_bytes(secret)
    shared = shared_secret(prekey, public)
    if shared is None:
        raise CannotOpen(Reason.LOW_ORDER_POINT)
    bound = _bound(envelope[: _HEAD.size], channel, recipient.public)
    cipher, nonce = _cipher(shared, public + prekey.public_key().public_bytes_raw(), bound)
    try:
        inner = cipher.decrypt(nonce, envelope[_HEAD.size :], bound)
    except InvalidTag:
        raise CannotOpen(Reason.NOT_AUTHENTIC) from None
    sender, signature = inner[:KEY_BYTES], inner[KEY_BYTES : KEY_BYTES + _SIGNATURE_BYTES]
    plaintext = _unpadded(inner[KEY_BYTES + _SIGNATURE_BYTES :])
    if not verify(sender, signature, _SIGNED + _digest(bound, plaintext)):
        raise CannotOpen(Reason.BAD_SIGNATURE)
    return OpenedEnvelope(sender, uuid, plaintext)


def envelope_uuid(envelope: bytes) -> bytes:
    """The uuid of the message in an envelope, the same on every node. Raises CannotOpen.

    Anybody can read them, nothing vouches for them until the envelope is opened.
    """
    uuid: bytes = _head(envelope)[3]
    return uuid


def _head(envelope: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    if not envelope.startswith(VERSION):
        raise CannotOpen(Reason.WRONG_VERSION)
    padded = len(envelope) - _FIXED
    if padded < _BLOCK or padded % _BLOCK:
        raise CannotOpen(Reason.WRONG_SIZE)
    version, kid, public, uuid = _HEAD.unpack_from(envelope)
    return version, kid, public, uuid


def _bound(head: bytes, channel: bytes, recipient: bytes) -> bytes:
    assert len(channel) <= CHANNEL_BYTES_MAX
    return b"".join((head, len(channel).to_bytes(2, "big"), channel, recipient))


def shared_secret(private: X25519PrivateKey, public: bytes) -> bytes | None:
    """None for a low-order point: the secret would be all zeros, and known to everybody."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return None


def _cipher(shared: bytes, salt: bytes, bound: bytes) -> tuple[ChaCha20Poly1305, bytes]:
    size = KEY_BYTES + _NONCE_BYTES
    derived = HKDF(SHA256(), size, salt, _DERIVED + bound).derive(shared)
    return ChaCha20Poly1305(derived[:KEY_BYTES]), derived[KEY_BYTES:]


def _digest(bound: bytes, plaintext: bytes) -> bytes:
    digest = sha256(bound)
    digest.update(plaintext)
    return digest.digest()


def _unpadded(padded: bytes) -> bytes:
    plaintext = padded.rstrip(b"\0")
    if not plaintext.endswith(b"\x80") or len(padded) - len(plaintext) >= _BLOCK:
        raise CannotOpen(Reason.BAD_PADDING)
    return plaintext[:-1]

"""Sealed messages, version 2: everything about a message but its recipient and its size is inside.

    e2 02 | kid8 | ephemeral X25519 public32 | ciphertext | tag16
    ciphertext = ChaCha20-Poly1305 of: sender's Ed25519 public32 | signature64 | length u32
                 | content | zeros up to `padded_size`

The content is a MessagePack array, the fields of `Content` in order. Authenticated with the
ciphertext: the first 42 bytes and the recipient's Ed25519 public key. The sender signs
`"millpond message v2\\0" | SHA-256(those 74 bytes | content)`.

Sealing and opening are pure and take a few hundred microseconds: do them in a worker thread.
docs/reference/sealed-messages.md has the vectors.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from millpond.node.peers.envelope import (
    KEY_BYTES,
    UUID_BYTES,
    CannotOpen,
    Reason,
    UnusablePrekey,
    shared_secret,
)
from millpond.node.peers.identity import Identity, verify

VERSION = b"\xe2\x02"
KID_BYTES = 8
LINE_BYTES = 8
HASH_BYTES = 32
COUNT_MAX = 2**53
SEEN_LINES_MAX = 4
LISTED_MAX = 256
"""The most counters in a list of `Seen`."""
PADDED_BYTES_MIN = 512
"""All short messages and receipts have this size before sealing."""

_HEAD = struct.Struct(f">2s{KID_BYTES}s{KEY_BYTES}s")
_LENGTH = struct.Struct(">I")
_SIGNATURE_BYTES = 64
_TAG_BYTES = 16
_NONCE_BYTES = 12
_INNER_FIXED = KEY_BYTES + _SIGNATURE_BYTES + _LENGTH.size
_DERIVED = b"millpond seal v2\0"
_SIGNED = b"millpond message v2\0"
_CONTENT_FIXED_MAX = 1024
"""The most bytes of a content besides its channel and its body, with `LISTED_IN_MESSAGES`."""
LISTED_IN_MESSAGES = 16
"""The most counters in each list of `Seen` in a message; receipts list up to `LISTED_MAX`."""

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
LineId = Annotated[bytes, msgspec.Meta(min_length=LINE_BYTES, max_length=LINE_BYTES)]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
Counters = Annotated[tuple[Count, ...], msgspec.Meta(max_length=LISTED_MAX)]


class Kind(IntEnum):
    """MESSAGE: for a channel. RECEIPT: for the outbox of the recipient, with an empty channel."""

    MESSAGE = 1
    RECEIPT = 2


class Seen(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The messages of one line that its recipient has.

    `hash` is that of the message `highest` (`message_hash`). Up to the counter `upto` the recipient
    has every message except the `missing` ones; it will never take the `refused` ones.
    """

    line: LineId
    began: Count
    highest: Count
    hash: Hash
    upto: Count
    missing: Counters = ()
    refused: Counters = ()


class ContactKey(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A prekey for one peer alone, sent inside a sealed message. Times in ms since 1970.

    `number` counts the keys for this peer; a higher one replaces all lower ones.
    """

    public: Key
    number: Count
    made_at: Count
    good_until: Count


class Content(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed content of a sealed message. Times in ms since 1970, by the clock of the sender.

    `line` and `began` name the line of the sender to this recipient, `counter` counts its messages
    from 1; a receipt has the counter 0. Messages of the line before `settled` are not to be
    accepted any more: they have a receipt, or their time is over. `seen` says what the sender has
    of the recipient's own messages; lines that began at `floor` or before are not accepted. `key`
    is the sender's newest key for the recipient.
    """

    kind: Kind
    channel: Annotated[bytes, msgspec.Meta(max_length=255)]
    deadline: Count
    sent_at: Count
    uuid: Annotated[bytes, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]
    line: LineId
    began: Count
    counter: Count
    settled: Count
    seen: Annotated[tuple[Seen, ...], msgspec.Meta(max_length=SEEN_LINES_MAX)]
    floor: Count
    key: ContactKey | None
    body: bytes

    def __repr__(self) -> str:
        # The body must not get into a log by way of an error message.
        return f"Content({self.kind.name}, {self.uuid.hex()}, {len(self.body)} bytes)"


class OpenedMessage(msgspec.Struct, frozen=True):
    """An opened message, signed by `sender`, and its hash.

    Whether the sender is known, and whether the message is new, is checked by the caller.
    """

    sender: bytes
    content: Content
    hash: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Content)


def kid_of(prekey: bytes) -> bytes:
    """The 8 bytes that identify a prekey in a sealed message."""
    return sha256(prekey).digest()[:KID_BYTES]


def kid_in(sealed: bytes) -> bytes:
    """The kid of a sealed message. Raises CannotOpen."""
    kid: bytes = _head(sealed)[1]
    return kid


def padded_size(size: int) -> int:
    """The size to which so many bytes are padded: `PADDED_BYTES_MIN`, above it by Padmé, which
    adds at most 12 % and leaves few sizes to be told apart."""
    if size <= PADDED_BYTES_MIN:
        return PADDED_BYTES_MIN
    exponent = size.bit_length() - 1
    mask = (1 << (exponent - exponent.bit_length())) - 1
    return (size + mask) & ~mask


def sealed_size_max(body: int, channel: int) -> int:
    """The most bytes of a sealed message with a body and a channel name of these sizes."""
    inner = _INNER_FIXED + _CONTENT_FIXED_MAX + channel + body
    return _HEAD.size + padded_size(inner) + _TAG_BYTES


def message_hash(sender: bytes, recipient: bytes, content: Content) -> bytes:
    """The hash of a message, the same at each attempt: of sender, recipient and all that does not
    change when a message is sealed again."""
    fixed = (
        sender,
        recipient,
        int(content.kind),
        content.channel,
        content.deadline,
        content.sent_at,
        content.uuid,
        content.line,
        content.began,
        content.counter,
        sha256(content.body).digest(),
    )
    return sha256(_encoder.encode(fixed)).digest()


def seal_message(
    content: Content,
    *,
    sender: Identity,
    recipient: bytes,
    prekey: bytes,
    entropy: Callable[[int], bytes],
) -> bytes:
    """The sealed message for the holder of `prekey` (X25519), whose identity is `recipient`.

    No two results are alike. Raises UnusablePrekey for a low-order point.
    """
    ephemeral = X25519PrivateKey.from_private_bytes(entropy(KEY_BYTES))
    public = ephemeral.public_key().public_bytes_raw()
    head = _HEAD.pack(VERSION, kid_of(prekey), public)
    bound = head + recipient
    shared = shared_secret(ephemeral, prekey)
    if shared is None:
        raise UnusablePrekey("the prekey is a low-order point")
    encoded = _encoder.encode(content)
    signature = sender.sign(_SIGNED + sha256(bound + encoded).digest())
    inner = b"".join((sender.public, signature, _LENGTH.pack(len(encoded)), encoded))
    cipher, nonce = _cipher(shared, public + prekey, bound)
    return head + cipher.encrypt(nonce, inner.ljust(padded_size(len(inner)), b"\0"), bound)


def open_message(
    sealed: bytes, *, recipient: Identity, prekey_of: Callable[[bytes], bytes | None]
) -> OpenedMessage:
    """The opened message for `recipient`. Raises CannotOpen.

    `prekey_of` gives the X25519 private key (32 bytes) behind a kid, or None.
    """
    _, kid, public = _head(sealed)
    secret = prekey_of(kid)
    if secret is None:
        raise CannotOpen(Reason.UNKNOWN_PREKEY)
    private = X25519PrivateKey.from_private_bytes(secret)
    prekey = private.public_key().public_bytes_raw()
    if kid_of(prekey) != kid:
        raise CannotOpen(Reason.UNKNOWN_PREKEY)
    shared = shared_secret(private, public)
    if shared is None:
        raise CannotOpen(Reason.LOW_ORDER_POINT)
    bound = sealed[: _HEAD.size] + recipient.public
    cipher, nonce = _cipher(shared, public + prekey, bound)
    try:
        inner = cipher.decrypt(nonce, sealed[_HEAD.size :], bound)
    except InvalidTag:
        raise CannotOpen(Reason.NOT_AUTHENTIC) from None
    sender, encoded = inner[:KEY_BYTES], _unpadded(inner)
    signature = inner[KEY_BYTES : KEY_BYTES + _SIGNATURE_BYTES]
    if not verify(sender, signature, _SIGNED + sha256(bound + encoded).digest()):
        raise CannotOpen(Reason.BAD_SIGNATURE)
    content = _decoded(encoded)
    return OpenedMessage(sender, content, message_hash(sender, recipient.public, content))


def _head(sealed: bytes) -> tuple[bytes, bytes, bytes]:
    if not sealed.startswith(VERSION):
        raise CannotOpen(Reason.WRONG_VERSION)
    padded = len(sealed) - _HEAD.size - _TAG_BYTES
    if padded < PADDED_BYTES_MIN or padded_size(padded) != padded:
        raise CannotOpen(Reason.WRONG_SIZE)
    version, kid, public = _HEAD.unpack_from(sealed)
    return version, kid, public


def _cipher(shared: bytes, salt: bytes, bound: bytes) -> tuple[ChaCha20Poly1305, bytes]:
    size = KEY_BYTES + _NONCE_BYTES
    derived = HKDF(SHA256(), size, salt, _DERIVED + bound).derive(shared)
    return ChaCha20Poly1305(derived[:KEY_BYTES]), derived[KEY_BYTES:]


def _unpadded(inner: bytes) -> bytes:
    """The encoded content; the padding has to be zeros, and as long as it is made."""
    (length,) = _LENGTH.unpack_from(inner, KEY_BYTES + _SIGNATURE_BYTES)
    end = _INNER_FIXED + length
    if padded_size(end) != len(inner) or inner[end:].strip(b"\0"):
        raise CannotOpen(Reason.BAD_PADDING)
    return inner[_INNER_FIXED:end]


def _decoded(encoded: bytes) -> Content:
    try:
        content = _decoder.decode(encoded)
    except msgspec.MsgspecError:
        raise CannotOpen(Reason.MALFORMED) from None
    is_message = content.kind is Kind.MESSAGE
    if is_message != bool(content.channel and content.counter):
        raise CannotOpen(Reason.MALFORMED)
    return content

"""Both halves of a proof of identity, made anew from the specification
(docs/reference/wire-protocol.md, PS-01).

The node's own code is checked against these bytes, so none of it is used here.
"""

from __future__ import annotations

from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tests.conformance import packets as p

SIGNATURE, CERTIFICATE_HASH = 0x0A, 0x0D


class Key:
    """An identity of the test: `seed` is any byte."""

    def __init__(self, seed: int) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(bytes((seed,)) * 32)
        self.public = self._key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)


NODE, ALICE, BOB, MALLORY = map(Key, (1, 2, 3, 4))
NONCE = bytes(range(32))


def hello(
    key: Key = ALICE,
    channel: bytes = b"chat/1",
    tags: p.Tags | None = None,
    nonce: bytes = NONCE,
) -> bytes:
    return p.hello(channel, {p.PUBLIC_KEY: key.public, p.NONCE: nonce} | (tags or {}))


def tags_of(packet: bytes, start: int = 2) -> list[tuple[int, bytes]]:
    """The tags of a CHALLENGE, or of a HELLO with `start` 8, in their order."""
    found = []
    while start < len(packet):
        end = start + 3 + int.from_bytes(packet[start + 1 : start + 3], "big")
        found.append((packet[start], packet[start + 3 : end]))
        start = end
    return found


def transcript(hello: bytes, challenge: bytes) -> bytes:
    """The digest that both sign, of a HELLO and a CHALLENGE with or without its signature."""
    others = [p.tlv(tag, value) for tag, value in tags_of(challenge) if tag != SIGNATURE]
    unsigned = challenge[:2] + b"".join(others)
    sized = p.u32(len(hello)) + hello + p.u32(len(unsigned)) + unsigned
    return sha256(b"p2pbuf auth v1\0" + sized).digest()


def challenge(
    hello: bytes,
    key: Key = NODE,
    *,
    shown: bytes | None = None,
    nonce: bytes = NONCE[::-1],
    tags: p.Tags | None = None,
    role: bytes = b"S",
    version: int = 1,
) -> bytes:
    """The CHALLENGE of a node with this key; `shown` is the key that it shows instead."""
    told = {p.PUBLIC_KEY: shown or key.public, p.NONCE: nonce} | (tags or {})
    head = bytes((0x81, version))
    unsigned = head + b"".join(p.tlv(tag, value) for tag, value in sorted(told.items()))
    told[SIGNATURE] = key.sign(role + transcript(hello, unsigned))
    return head + b"".join(p.tlv(tag, value) for tag, value in sorted(told.items()))


def auth(hello: bytes, challenge: bytes, key: Key = ALICE, role: bytes = b"C") -> bytes:
    return b"\x82" + key.sign(role + transcript(hello, challenge))


def is_signed(hello: bytes, challenge: bytes, public: bytes) -> bool:
    """Whether this key signed the CHALLENGE; InvalidSignature if it was another one."""
    told = dict(tags_of(challenge))
    Ed25519PublicKey.from_public_bytes(public).verify(
        told[SIGNATURE], b"S" + transcript(hello, challenge)
    )
    return told[p.PUBLIC_KEY] == public

"""HELLO, CHALLENGE, AUTH and READY: fixed bytes, then tag u8, length u16, value
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from hashlib import sha256
from typing import Protocol, TypeVar

import msgspec

from millpond.actors.messages import Durability, Mode, Role
from millpond.transports.errors import MalformedHandshake
from millpond.transports.p2p import packets as packet

VERSION = 1
HANDSHAKE_BYTES_MAX = 4096
NONCE_BYTES = 32

BY_SERVER, BY_CLIENT = b"S", b"C"
"""Prefixes of the transcript that each side signs, so that a signature cannot be sent back."""


class Signer(Protocol):
    """An identity key whose secret half this process holds."""

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""

    def sign(self, data: bytes) -> bytes:
        """The signature of any bytes, 64 bytes."""


class Tag(IntEnum):
    """Tags of the TLVs. An unknown tag is fatal below 80 and skipped from there on."""

    CHANNEL = 0x01
    PUBLIC_KEY = 0x02
    NONCE = 0x03
    ROLE = 0x04
    EXTENSIONS = 0x05
    TOKEN = 0x06
    WINDOW = 0x07
    PACKET_MAX = 0x08
    KEEP_ALIVE_MS = 0x09
    SIGNATURE = 0x0A
    LIST_MODE = 0x0B
    RESUME_AFTER = 0x0C
    CERTIFICATE_HASH = 0x0D
    MODE = 0x0E
    USER_AGENT = 0x80
    DURABILITY = 0x81
    DELIVERY_PROOF = 0x82
    NAME = 0x83


class _Flag(IntFlag):
    WANT_PUSH = 1
    DUPLEX = 2
    ORDERED = 4


NAME_BYTES_MAX = 128
"""The longest name of a client."""

_BYTES_MAX = {
    Tag.CHANNEL: 255,
    Tag.EXTENSIONS: 255,
    Tag.TOKEN: 4096,
    Tag.USER_AGENT: 4096,
    Tag.NAME: NAME_BYTES_MAX,
}
_BYTES = {
    Tag.PUBLIC_KEY: 32,
    Tag.NONCE: 32,
    Tag.ROLE: 1,
    Tag.WINDOW: 2,
    Tag.PACKET_MAX: 4,
    Tag.KEEP_ALIVE_MS: 4,
    Tag.SIGNATURE: 64,
    Tag.LIST_MODE: 1,
    Tag.RESUME_AFTER: 8,
    Tag.CERTIFICATE_HASH: 32,
    Tag.MODE: 1,
    Tag.DURABILITY: 1,
    Tag.DELIVERY_PROOF: 32,
}

_KNOWN = frozenset(Tag)
_Values = dict[Tag, bytes | int | None]
_Member = TypeVar("_Member", bound=IntEnum)


class Hello(msgspec.Struct, frozen=True, gc=False):
    """HELLO, the client's request; None: left to the server. Sizes in bytes, window in messages."""

    version_min: int = VERSION
    version_max: int = VERSION
    want_push: bool = True
    duplex: bool = False
    ordered: bool = False
    channel: bytes | None = None
    public_key: bytes | None = None
    nonce: bytes | None = None
    role: Role | None = None
    extensions: frozenset[int] = frozenset()
    token: bytes | None = None
    window: int | None = None
    packet_max: int | None = None
    keep_alive_ms: int | None = None
    list_mode: int | None = None
    resume_after: int | None = None
    certificate_hash: bytes | None = None
    mode: Mode | None = None
    user_agent: bytes = b""
    delivery_proof: bytes | None = None
    name: bytes = b""

    def __repr__(self) -> str:
        """Without the token: this may end up in a log."""
        identity = "-" if self.public_key is None else self.public_key.hex()
        return f"<Hello {identity} for {self.channel!r}>"


class Challenge(msgspec.Struct, frozen=True, gc=False):
    """The server's identity; `signature` is empty only while its transcript is being made."""

    version: int
    public_key: bytes
    nonce: bytes
    signature: bytes = b""
    certificate_hash: bytes | None = None


class Auth(msgspec.Struct, frozen=True, gc=False):
    """The client's proof of its identity, 64 bytes."""

    signature: bytes


class Ready(msgspec.Struct, frozen=True, gc=False):
    """READY, the server's answer; None: not given."""

    want_push: bool = True
    duplex: bool = False
    ordered: bool = False
    packet_max: int | None = None
    keep_alive_ms: int | None = None
    window: int | None = None
    extensions: frozenset[int] = frozenset()
    mode: Mode | None = None
    durability: Durability | None = None
    list_mode: int | None = None
    resume_after: int | None = None
    user_agent: bytes = b""


def encode_hello(hello: Hello) -> bytes:
    """The first packet of a client. Raises MalformedHandshake for what no server would take."""
    tags: _Values = {
        Tag.CHANNEL: hello.channel,
        Tag.PUBLIC_KEY: hello.public_key,
        Tag.NONCE: hello.nonce,
        Tag.ROLE: hello.role,
        Tag.EXTENSIONS: bytes(sorted(hello.extensions)) or None,
        Tag.TOKEN: hello.token,
        Tag.WINDOW: hello.window,
        Tag.PACKET_MAX: hello.packet_max,
        Tag.KEEP_ALIVE_MS: hello.keep_alive_ms,
        Tag.LIST_MODE: hello.list_mode,
        Tag.RESUME_AFTER: hello.resume_after,
        Tag.CERTIFICATE_HASH: hello.certificate_hash,
        Tag.MODE: hello.mode,
        Tag.USER_AGENT: hello.user_agent or None,
        Tag.DELIVERY_PROOF: hello.delivery_proof,
        Tag.NAME: hello.name or None,
    }
    flags = _flags(hello.want_push, hello.duplex, hello.ordered)
    versions = bytes((hello.version_min, hello.version_max))
    return _write(packet.HELLO_MAGIC + versions + bytes((flags,)), tags)


def decode_hello(raw: bytes) -> Hello:
    """Raises MalformedHandshake (PS-01, PS-05, PS-07)."""
    if len(raw) < 8 or not raw.startswith(packet.HELLO_MAGIC):
        raise MalformedHandshake("no HELLO")
    version_min, version_max, flags = raw[5:8]
    if version_min > version_max:
        raise MalformedHandshake(f"versions from {version_min} to {version_max}")
    tags = _Tags(raw, 8)
    public_key, nonce = tags.get(Tag.PUBLIC_KEY), tags.get(Tag.NONCE)
    if public_key is not None and nonce is None:
        raise MalformedHandshake("a public key without a nonce")
    return Hello(
        version_min=version_min,
        version_max=version_max,
        want_push=bool(flags & _Flag.WANT_PUSH),
        duplex=bool(flags & _Flag.DUPLEX),
        ordered=bool(flags & _Flag.ORDERED),
        channel=tags.get(Tag.CHANNEL),
        public_key=public_key,
        nonce=nonce,
        role=tags.member(Tag.ROLE, Role),
        extensions=frozenset(tags.get(Tag.EXTENSIONS) or b""),
        token=tags.get(Tag.TOKEN),
        window=tags.number(Tag.WINDOW),
        packet_max=tags.number(Tag.PACKET_MAX),
        keep_alive_ms=tags.number(Tag.KEEP_ALIVE_MS),
        list_mode=tags.number(Tag.LIST_MODE),
        resume_after=tags.number(Tag.RESUME_AFTER),
        certificate_hash=tags.get(Tag.CERTIFICATE_HASH),
        mode=tags.member(Tag.MODE, Mode),
        user_agent=tags.get(Tag.USER_AGENT) or b"",
        delivery_proof=tags.get(Tag.DELIVERY_PROOF),
        name=tags.get(Tag.NAME) or b"",
    )


def encode_challenge(challenge: Challenge) -> bytes:
    """The server's answer to a HELLO with an identity; raises MalformedHandshake."""
    tags: _Values = {
        Tag.PUBLIC_KEY: challenge.public_key,
        Tag.NONCE: challenge.nonce,
        Tag.SIGNATURE: challenge.signature or None,
        Tag.CERTIFICATE_HASH: challenge.certificate_hash,
    }
    return _write(bytes((packet.CHALLENGE, challenge.version)), tags)


def decode_challenge(raw: bytes) -> Challenge:
    """Raises MalformedHandshake, also when key, nonce or signature is missing (PS-01)."""
    if len(raw) < 2 or raw[0] != packet.CHALLENGE:
        raise MalformedHandshake("no CHALLENGE")
    tags = _Tags(raw, 2)
    public_key, nonce = tags.get(Tag.PUBLIC_KEY), tags.get(Tag.NONCE)
    signature = tags.get(Tag.SIGNATURE)
    if public_key is None or nonce is None or signature is None:
        raise MalformedHandshake("a CHALLENGE without key, nonce or signature")
    return Challenge(raw[1], public_key, nonce, signature, tags.get(Tag.CERTIFICATE_HASH))


def transcript(hello: bytes, unsigned: bytes) -> bytes:
    """The 32 bytes that both sides sign, of a HELLO and a CHALLENGE without its signature (PS-01).

    Whole packets with their type byte, as they were sent, without the length of TCP.
    """
    parts = [b"p2pbuf auth v1\0"]
    for raw in (hello, unsigned):
        parts += [len(raw).to_bytes(4, "big"), raw]
    return sha256(b"".join(parts)).digest()


def without_signature(challenge: bytes) -> bytes:
    """A CHALLENGE that was decoded before, without its tag 0a; everything else as it is."""
    offset = 2
    while offset < len(challenge):
        end = offset + 3 + int.from_bytes(challenge[offset + 1 : offset + 3], "big")
        if challenge[offset] == Tag.SIGNATURE:
            return challenge[:offset] + challenge[end:]
        offset = end
    return challenge


def encode_auth(auth: Auth) -> bytes:
    """Type byte and signature, 65 bytes; raises MalformedHandshake for another length."""
    if len(auth.signature) != 64:
        raise MalformedHandshake("a signature is 64 bytes")
    return bytes((packet.AUTH,)) + auth.signature


def decode_auth(raw: bytes) -> Auth:
    """Raises MalformedHandshake."""
    if len(raw) != 65 or raw[0] != packet.AUTH:
        raise MalformedHandshake("no AUTH")
    return Auth(raw[1:])


def encode_ready(ready: Ready) -> bytes:
    """The packet after which the connection is open; raises MalformedHandshake."""
    tags: _Values = {
        Tag.EXTENSIONS: bytes(sorted(ready.extensions)) or None,
        Tag.WINDOW: ready.window,
        Tag.PACKET_MAX: ready.packet_max,
        Tag.KEEP_ALIVE_MS: ready.keep_alive_ms,
        Tag.LIST_MODE: ready.list_mode,
        Tag.RESUME_AFTER: ready.resume_after,
        Tag.MODE: ready.mode,
        Tag.USER_AGENT: ready.user_agent or None,
        Tag.DURABILITY: ready.durability,
    }
    flags = _flags(ready.want_push, ready.duplex, ready.ordered)
    return _write(bytes((packet.READY, flags)), tags)


def decode_ready(raw: bytes) -> Ready:
    """Raises MalformedHandshake."""
    if len(raw) < 2 or raw[0] != packet.READY:
        raise MalformedHandshake("no READY")
    flags, tags = raw[1], _Tags(raw, 2)
    return Ready(
        want_push=bool(flags & _Flag.WANT_PUSH),
        duplex=bool(flags & _Flag.DUPLEX),
        ordered=bool(flags & _Flag.ORDERED),
        packet_max=tags.number(Tag.PACKET_MAX),
        keep_alive_ms=tags.number(Tag.KEEP_ALIVE_MS),
        window=tags.number(Tag.WINDOW),
        extensions=frozenset(tags.get(Tag.EXTENSIONS) or b""),
        mode=tags.member(Tag.MODE, Mode),
        durability=tags.member(Tag.DURABILITY, Durability),
        list_mode=tags.number(Tag.LIST_MODE),
        resume_after=tags.number(Tag.RESUME_AFTER),
        user_agent=tags.get(Tag.USER_AGENT) or b"",
    )


def _flags(want_push: bool, duplex: bool, ordered: bool) -> int:
    return want_push * _Flag.WANT_PUSH | duplex * _Flag.DUPLEX | ordered * _Flag.ORDERED


def _write(head: bytes, values: _Values) -> bytes:
    parts = [head]
    for tag, value in sorted(values.items()):
        if value is None:
            continue
        content = value if isinstance(value, bytes) else _number_bytes(tag, value)
        _check_size(tag, len(content))
        parts.append(bytes((tag,)) + len(content).to_bytes(2, "big") + content)
    raw = b"".join(parts)
    if len(raw) > HANDSHAKE_BYTES_MAX:
        raise MalformedHandshake(f"{len(raw)} bytes, at most {HANDSHAKE_BYTES_MAX} are allowed")
    return raw


def _number_bytes(tag: Tag, value: int) -> bytes:
    try:
        return value.to_bytes(_BYTES[tag], "big")
    except OverflowError:
        raise MalformedHandshake(f"{tag.name} cannot be {value}") from None


def _check_size(tag: Tag, size: int) -> None:
    fixed = _BYTES.get(tag)
    if size != fixed if fixed else size > _BYTES_MAX[tag]:
        raise MalformedHandshake(f"{tag.name} of {size} bytes")
    if tag is Tag.CHANNEL and not size:
        raise MalformedHandshake("a channel without a name")


class _Tags:
    """The TLVs of one packet, each checked for its size."""

    def __init__(self, raw: bytes, offset: int) -> None:
        if len(raw) > HANDSHAKE_BYTES_MAX:
            raise MalformedHandshake(f"{len(raw)} bytes, at most {HANDSHAKE_BYTES_MAX} are allowed")
        self._values: dict[int, bytes] = {}
        while offset < len(raw):
            tag, start = raw[offset], offset + 3
            offset = start + int.from_bytes(raw[offset + 1 : start], "big")
            if start > len(raw) or offset > len(raw):
                raise MalformedHandshake(f"tag {tag:02x} reaches past the end")
            if tag in self._values:
                raise MalformedHandshake(f"tag {tag:02x} is repeated")
            if tag in _KNOWN:
                _check_size(Tag(tag), offset - start)
            elif tag < 0x80:
                raise MalformedHandshake(f"unknown tag {tag:02x}")
            self._values[tag] = raw[start:offset]

    def get(self, tag: Tag) -> bytes | None:
        return self._values.get(tag)

    def number(self, tag: Tag) -> int | None:
        value = self._values.get(tag)
        return None if value is None else int.from_bytes(value, "big")

    def member(self, tag: Tag, kind: type[_Member]) -> _Member | None:
        number = self.number(tag)
        if number is None:
            return None
        try:
            return kind(number)
        except ValueError:
            raise MalformedHandshake(f"{tag.name} cannot be {number}") from None

"""What is in packets 94 and 95: MessagePack maps, whose fields docs/reference/wire-protocol.md
lists."""

from __future__ import annotations

from enum import IntEnum

import msgspec

PAGE_MAX = 200
"""Peers in one answer."""


class PeerOperation(IntEnum):
    """What a node can be asked about peers."""

    WHO = 1
    PEERS = 2
    PEER_ADD = 3
    PEER_REMOVE = 4
    SEND = 5
    OPEN = 6
    CHAT_SEND = 7
    CHATS = 8
    CHAT_READ = 9


class Nothing(msgspec.Struct):
    """No fields."""


class WhoAnswer(msgspec.Struct):
    """This node: what to compare with, and what to give away."""

    id: str
    key: bytes
    fingerprint: str
    words: str
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    card: str


class PeersRequest(msgspec.Struct):
    """Up to `limit` peers after the name `after`, by name; `peer`: only this one."""

    after: str = ""
    limit: int = PAGE_MAX
    peer: str | None = None


class PeerInfo(msgspec.Struct):
    """`seen_at`: seconds since 1970, None when not in this run; `queued`: letters that wait here;
    `can_seal`: a message can be sealed now."""

    name: str
    id: str
    key: bytes
    trust: str
    fingerprint: str
    words: str
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    here: bool
    seen_at: float | None
    queued: int
    can_seal: bool


class PeersAnswer(msgspec.Struct):
    """`more`: ask again with the last name in `after`."""

    peers: list[PeerInfo]
    more: bool


class AddRequest(msgspec.Struct):
    """By a card, or by the peer id in `key`; addresses and relays come on top of the card's."""

    name: str
    key: str | None = None
    card: str | None = None
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()


class AddAnswer(msgspec.Struct):
    """The peer's id, or why it was not added."""

    id: str | None
    error: str | None = None


class RemoveRequest(msgspec.Struct):
    """A name or a peer id."""

    peer: str


class SendRequest(msgspec.Struct):
    """`peer`: a name or a peer id; `ttl` in seconds, 0 is as long as possible; `uuid` 16 bytes."""

    peer: str
    channel: bytes
    data: bytes
    ttl: float = 0.0
    uuid: bytes | None = None


class SendAnswer(msgspec.Struct):
    """What is kept here."""

    uuid: bytes
    id: int
    ttl: int


class OpenRequest(msgspec.Struct):
    channel: bytes
    envelope: bytes


class OpenAnswer(msgspec.Struct):
    """`data` is None where `reason` says why: also where a stranger signed it, or a key that was
    revoked. `name` and `trust` are the peer book's, of `sender`, who signed it."""

    uuid: bytes
    data: bytes | None = None
    sender: str | None = None
    name: str | None = None
    trust: str = "unknown"
    reason: str | None = None


def write_body(answer: msgspec.Struct) -> bytes:
    """The body of an answer."""
    return msgspec.msgpack.encode(answer)

"""The bodies of packets 94 and 95: MessagePack maps, whose fields docs lists (wire protocol)."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec

PAGE_MAX = 200
"""Peers in one reply."""


class PeerOperation(IntEnum):
    """The operations on peers and chats."""

    WHO = 1
    PEERS = 2
    PEER_ADD = 3
    PEER_REMOVE = 4
    SEND = 5
    OPEN = 6
    CHAT_SEND = 7
    CHATS = 8
    CHAT_READ = 9
    CHAT_REQUESTS = 12
    CHAT_ACCEPT = 13
    CHAT_REFUSE = 14
    DELIVERY_KEYS = 15
    TAKE_PREKEYS = 16
    GIVE_PREKEYS = 17
    INVITE = 24
    INVITES = 25
    CANCEL_INVITE = 26
    ACCEPT_INVITE = 27
    PEER_BLOCK = 28
    PEER_VERIFY = 29
    CHAT_SEARCH = 30
    CHAT_TYPING = 31
    GROUP_CREATE = 40
    GROUP_INFO = 41
    GROUP_CHANGE = 42
    GROUP_ANSWER = 43
    FILE_BEGIN = 50
    FILE_CHUNKS = 51
    FILE_SEND = 52
    FILE_READ = 53
    FILE_TRANSFERS = 54
    FILE_OFFER = 55
    FILE_PUT = 56
    FILE_GET = 57
    FILE_LEAVES = 58
    FILE_DROP = 59
    CARD = 60
    DISCOVERED = 61


class Nothing(msgspec.Struct):
    """A body without fields."""


class WhoAnswer(msgspec.Struct):
    """The identity of this node: its fingerprint to compare, and its card to give away.

    `reach`: where the card leads to the node from: nowhere, machine, network or anywhere.
    """

    id: str
    key: bytes
    fingerprint: str
    words: str
    addresses: tuple[str, ...]
    relays: tuple[str, ...]
    card: str
    reach: str = ""


class CardAnswer(msgspec.Struct):
    """The contact card of this node, for others on its network."""

    card: str


class DiscoveredNode(msgspec.Struct):
    """A node on the network that has proved its key. `name`: in the address book, or None."""

    id: str
    name: str | None
    fingerprint: str
    words: str
    address: str
    version: str
    found_at: float
    card: str


class DiscoveredAnswer(msgspec.Struct):
    """The found nodes, in the order in which they were found."""

    nodes: list[DiscoveredNode]


class PeersRequest(msgspec.Struct):
    """A page of up to `limit` peers after the name `after`, by name, or only `peer`."""

    after: str = ""
    limit: int = PAGE_MAX
    peer: str | None = None


class PeerInfo(msgspec.Struct):
    """A peer. `here`: it is online; `seen_at`: seconds since 1970, None if not in this run.

    `safety_number` is None in lists of several peers: it takes 10 ms for each. So are `code`, which
    has the number for the peer to scan, and its QR code, of `qr_size` modules. `key_changed`: the
    key took the place of another one, and nobody has compared the new safety number. `queued` is
    the number of messages that wait for it, `unconfirmed` that of messages without a receipt;
    `can_seal`: a message can be sealed now. `version` is that of messages to it.
    """

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
    version: int
    unconfirmed: int
    safety_number: str | None = None
    key_changed: bool = False
    code: str | None = None
    qr_size: int = 0
    qr_path: str = ""


class PeersAnswer(msgspec.Struct):
    """A page of peers. `more`: the next page follows the last name."""

    peers: list[PeerInfo]
    more: bool


class AddRequest(msgspec.Struct):
    """A peer to be added, by a card or by the peer id in `key`; addresses and relays extend the
    card."""

    name: str
    key: str | None = None
    card: str | None = None
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()


class AddAnswer(msgspec.Struct):
    """The id of the peer, or the reason why it was not added. `reach`: where its addresses and
    relays lead to it from (`WhoAnswer`)."""

    id: str | None
    error: str | None = None
    reach: str = ""


class RemoveRequest(msgspec.Struct):
    """A peer to be removed, by name or peer id."""

    peer: str


class BlockRequest(msgspec.Struct):
    """A peer to be blocked, by name or peer id."""

    peer: str


class VerifyRequest(msgspec.Struct):
    """The safety number that a person has heard or read from a peer (name or peer id), or the code
    that its node shows."""

    peer: str
    number: str


class VerifyAnswer(msgspec.Struct):
    """The level of trust of the peer now. `error`: the number is another one, or none."""

    trust: str
    error: str | None = None


class SendRequest(msgspec.Struct):
    """A message to `peer` (name or peer id); `ttl` in seconds, 0: the longest; `uuid`: 16 bytes."""

    peer: str
    channel: bytes
    data: bytes
    ttl: float = 0.0
    uuid: bytes | None = None


class SendAnswer(msgspec.Struct):
    """The stored message."""

    uuid: bytes
    id: int
    ttl: int


class GivenKey(msgspec.Struct, frozen=True):
    """A delivery key (32 bytes), good until a time in seconds since 1970; None: until it is
    replaced."""

    key: bytes
    until: float | None = None


class DeliveryKeysRequest(msgspec.Struct):
    """All delivery keys of the client's own mailbox; they replace those that it gave before."""

    keys: tuple[GivenKey, ...]


class TakePrekeysRequest(msgspec.Struct):
    """Up to `count` one-time prekeys of the owner of the channel that the client reads."""

    count: int


class TakePrekeysAnswer(msgspec.Struct):
    """One-time prekeys as they are published, which this node gives to nobody else."""

    keys: list[bytes]


class GivePrekeysRequest(msgspec.Struct):
    """One-time prekeys of the client to be handed out. Of those given before only the numbers in
    `known` stay."""

    known: tuple[int, ...] = ()
    keys: tuple[bytes, ...] = ()


class GivePrekeysAnswer(msgspec.Struct):
    """The numbers of the one-time prekeys that can be handed out, and of those that were removed
    and are with nobody."""

    left: list[int]
    removed: list[int]


class FileOffer(msgspec.Struct):
    """A file of `size` bytes for the owner of the mailbox that the client is connected to, offered
    `until` (seconds since 1970), with its leaves in a row."""

    root: bytes
    size: int
    leaves: bytes
    until: float


class FileOfferAnswer(msgspec.Struct):
    """The number of chunks that are there. `state`: `wanted`; `unknown`, no message has announced
    the file yet; or `refused`, for a `reason`."""

    state: str
    next: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    reason: str = ""


class FilePut(msgspec.Struct):
    """Chunks of an offered file, from number `first` on."""

    root: bytes
    first: int
    chunks: list[bytes]


class FilePutAnswer(msgspec.Struct):
    """The number of chunks that are stored: the next one to be sent."""

    next: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class FileGet(msgspec.Struct):
    """Up to `count` chunks of a file, from number `first` on."""

    root: bytes
    first: int
    count: int


class FileGetAnswer(msgspec.Struct):
    """Chunks; fewer, or none, if no more are there."""

    chunks: list[bytes]


class FileRoot(msgspec.Struct):
    """A file, by its root."""

    root: bytes


class FileLeavesAnswer(msgspec.Struct):
    """A file: its size, its leaves in a row, and the number of chunks that are there."""

    size: int
    leaves: bytes
    next: int


class OpenRequest(msgspec.Struct):
    """An envelope to be opened, from `channel`."""

    channel: bytes
    envelope: bytes


class OpenAnswer(msgspec.Struct):
    """An opened envelope, or the `reason` why `data` is None.

    `sender` has signed the message; `name` and `trust` are from the address book. A message that a
    stranger, a relay or a blocked key has signed has no `data`.
    """

    uuid: bytes
    data: bytes | None = None
    sender: str | None = None
    name: str | None = None
    trust: str = "unknown"
    reason: str | None = None


def write_body(answer: msgspec.Struct) -> bytes:
    """The body of a reply."""
    return msgspec.msgpack.encode(answer)

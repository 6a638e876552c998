"""Operations that the node answers later: packets 0x90 and 0x91.

Those on channels other than that of the connection, from 6 on, need a right in the channel that
they name, and not the right `admin` in that of the connection. The deletion of a subscription is
for the operator of the node. All bodies are MessagePack maps; docs/reference/wire-protocol.md has
the table.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, Literal

import msgspec

PATTERNS_MAX = 16
PATTERN_BYTES_MAX = 250
PAGE_MAX = 500
MEMBERS_MAX = 100
"""The consumers, and the subscribers, in a reply."""
RIGHTS_MAX = 100
"""The channels of a request for rights."""


class ChannelOperation(IntEnum):
    """Operations on channels, numbered with those on the node."""

    LIST = 6
    CREATE = 7
    DELETE = 8
    PURGE = 9
    PUT = 10
    MEMBERS = 18
    RIGHTS = 25


DELETE_SUBSCRIPTION = 24
"""The operation that deletes a subscription of Durable Streams."""
OPERATIONS = frozenset({*ChannelOperation, DELETE_SUBSCRIPTION})

Name = Annotated[bytes, msgspec.Meta(min_length=1, max_length=255)]
Pattern = Annotated[bytes, msgspec.Meta(min_length=1, max_length=PATTERN_BYTES_MAX)]
ModeName = Literal["pair", "fanout", "queue"]

U32 = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
U64 = Annotated[int, msgspec.Meta(ge=0)]
"""msgspec accepts no integer beyond 64 bits."""


class ListBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Channels whose names match one of the patterns, above the name `after`; or `channel` alone;
    or those of `names` that are there, in their order.

    `known`: nothing is listed while the node's number of changes is this one.
    """

    patterns: Annotated[list[Pattern], msgspec.Meta(max_length=PATTERNS_MAX)] = []
    channel: Name | None = None
    after: bytes = b""
    limit: Annotated[int, msgspec.Meta(ge=1, le=PAGE_MAX)] = 100
    names: Annotated[list[Name], msgspec.Meta(max_length=PAGE_MAX)] = []
    known: int | None = None


class ChannelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A channel of a node. `created`: its mode stays. `size` is that of its messages, in bytes;
    `leased` of them are with a consumer. `receivers`: connections that messages are pushed to.
    `subscribers`: identities that get messages that are put while they are away (fanout).
    `paused`: a queue whose jobs are not pushed. `oldest`: the id of the oldest message; 0: there is
    none, or it is not in memory. `kept` and `acked` count messages since the channel was loaded."""

    name: bytes
    mode: ModeName
    created: bool
    messages: int
    size: int = msgspec.field(name="bytes")
    leased: int
    connections: int
    receivers: int
    subscribers: int
    paused: bool = False
    oldest: int = 0
    kept: int = 0
    acked: int = 0


class ListReply(msgspec.Struct, frozen=True):
    """A page, in the order of the names. `changes`: a number that changes with every channel that
    is made. `more`: ask again, after the last name. `last_id`: new messages of the node have ids
    above it (0: a node that does not tell)."""

    page: list[ChannelInfo]
    more: bool
    changes: int
    last_id: int = 0


class CreateBody(msgspec.Struct, frozen=True):
    """The channel gets this mode for good."""

    channel: Name
    mode: ModeName


class ClearBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """Delete or purge: the messages up to the id `until`; 0: those that are there now."""

    channel: Name
    until: U64 = 0


class ClearReply(msgspec.Struct, frozen=True):
    """So many messages of so many bytes were removed. `more`: ask again, with this `until`."""

    messages: int
    bytes: int
    more: bool
    until: int


class RightsBody(msgspec.Struct, frozen=True):
    """The rights of the client in channels, of which none needs to be there."""

    channels: Annotated[list[Name], msgspec.Meta(min_length=1, max_length=RIGHTS_MAX)]


class RightsReply(msgspec.Struct, frozen=True):
    """The names of the rights in each channel, in the order of the request."""

    rights: list[list[str]]


class MembersBody(msgspec.Struct, frozen=True):
    """The consumers and subscribers of a channel."""

    channel: Name


class ConsumerInfo(msgspec.Struct, frozen=True):
    """A connection of a channel. `peer` is its address, `identity` its public key. `receives`:
    messages are pushed to it, `window` at a time. `lag`: messages that an anonymous subscriber has
    not acknowledged (fanout). `name`: how the client calls itself."""

    connection: int
    peer: str
    listener: str
    identity: bytes | None
    role: str
    receives: bool
    window: int
    leased: int
    lag: int
    name: bytes = b""


class SubscriberInfo(msgspec.Struct, frozen=True):
    """An identity that gets messages that are put while it is away (fanout). `connections` of it
    receive now; `lag` messages are not acknowledged."""

    identity: bytes
    connections: int
    lag: int


class MembersReply(msgspec.Struct, frozen=True):
    """The first consumers and subscribers. `more`: there are others."""

    consumers: list[ConsumerInfo]
    subscribers: list[SubscriberInfo]
    more: bool


class PutBody(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message for another channel. `listener`: only if another connection receives there."""

    channel: Name
    key: U32
    data: bytes
    ttl: U32 = 0
    listener: bool = False


class PutReply(msgspec.Struct, frozen=True):
    """The receipt: the id, and the ttl that was granted."""

    id: int
    ttl: int


class DeleteSubscriptionBody(msgspec.Struct, frozen=True):
    """The subscription with this id is no more."""

    id: Name


class DeleteSubscriptionReply(msgspec.Struct, frozen=True):
    """`deleted`: there was one."""

    deleted: bool

"""What operations 7 to 9 of packets 94 and 95 carry (docs/guides/chat.md): MessagePack maps."""

from __future__ import annotations

import msgspec

PAGE_MAX = 500
"""Conversations in one answer."""
PREVIEW_CHARS = 120


class ChatSendRequest(msgspec.Struct):
    """`peer`: a name or a peer id. `uuid` (16 bytes) names the message: asked again under the same
    one, it is the same message."""

    peer: str
    text: str
    uuid: bytes | None = None


class ChatSendAnswer(msgspec.Struct):
    """The message is record `sequence` of the stream of the conversation, and will be sent."""

    uuid: bytes
    sequence: int


class ChatsRequest(msgspec.Struct):
    """Up to `limit` conversations after the name `after`, by name; `peer`: only this one."""

    after: str = ""
    limit: int = PAGE_MAX
    peer: str | None = None


class LastMessage(msgspec.Struct):
    """The last message: `kind` is `out` or `in`, `text` its beginning, `at` milliseconds."""

    kind: str
    text: str
    at: int


class ChatInfo(msgspec.Struct):
    """A conversation: with whom, and how it stands.

    It is kept in the stream `stream`, whose next sequence is `tail`: 0 while nothing was said.
    `read` is the sequence of the first record that was not read; `unread` messages came since.
    `waiting` messages of ours are not sealed yet. `here` and `seen_at` as in PEERS.
    """

    name: str
    id: str
    stream: str
    trust: str
    here: bool
    seen_at: float | None
    tail: int
    read: int
    unread: int
    waiting: int
    last: LastMessage | None


class ChatsAnswer(msgspec.Struct):
    """Of every peer that is not revoked. `more`: ask again with the last name in `after`."""

    chats: list[ChatInfo]
    more: bool


class ChatReadRequest(msgspec.Struct):
    """Everything up to record `sequence` of the conversation, itself included, was seen."""

    peer: str
    sequence: int


class ChatReadAnswer(msgspec.Struct):
    """So many messages are still unread."""

    unread: int

"""The bodies of operations 7 to 9, 12 to 14, 30 and 31 of packets 94 and 95 (docs/guides/chat.md):
MessagePack maps."""

from __future__ import annotations

import msgspec

PAGE_MAX = 500
"""Conversations in one reply."""
PREVIEW_CHARS = 120


class ChatSendRequest(msgspec.Struct):
    """A message to `peer` (name or peer id).

    `uuid` (16 bytes) identifies the message: a second request with it sends nothing new. `action`
    is empty or one of `actions`, about the message with the uuid `about`.
    """

    peer: str
    text: str
    uuid: bytes | None = None
    action: str = ""
    about: bytes = b""


class ChatSendAnswer(msgspec.Struct):
    """The stored message: record `sequence` of the stream of the conversation."""

    uuid: bytes
    sequence: int


class ChatsRequest(msgspec.Struct):
    """A page of up to `limit` conversations after the name `after`, by name, or only `peer`."""

    after: str = ""
    limit: int = PAGE_MAX
    peer: str | None = None


class LastMessage(msgspec.Struct):
    """The last message: `kind` is `out` or `in`, `text` its beginning (empty: it was deleted), `at`
    in milliseconds. `by`: the name of its author, in a group."""

    kind: str
    text: str
    at: int
    by: str = ""


class GroupSummary(msgspec.Struct):
    """The group of a conversation. `status` of this node: joined, invited, left or removed;
    `members`: those that take part; `invited` those that have not answered; `forks`: no admin has
    settled them. `names`: those of all members there ever were, by peer id; only in the answer for
    one conversation. `typing`: the names of those that write now."""

    status: str
    members: int
    invited: int
    forks: int
    admin: bool
    invited_by: str = ""
    names: dict[str, str] = {}
    typing: list[str] = []


class ChatInfo(msgspec.Struct):
    """A conversation.

    It is stored in the stream `stream`, whose next sequence is `tail`: 0 for an empty conversation.
    `read` is the sequence of the first unread record, followed by `unread` messages of the peer.
    `waiting` messages of this node are not sealed yet. `typing`: the peer writes now, or a member.
    `here`, `seen_at` and `key_changed` as in PEERS. `accepted` is False as long as nothing that the
    peer has signed for this node has come. `group`: it is that of a group, whose `trust` is
    `group`.
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
    accepted: bool = True
    key_changed: bool = False
    typing: bool = False
    group: GroupSummary | None = None


class ChatsAnswer(msgspec.Struct):
    """Conversations with peers that are neither blocked nor relays. `more`: the next page follows
    the last name."""

    chats: list[ChatInfo]
    more: bool


class ChatReadRequest(msgspec.Struct):
    """Everything up to and including record `sequence` was read."""

    peer: str
    sequence: int


class ChatReadAnswer(msgspec.Struct):
    """The number of messages that are still unread."""

    unread: int


class MessageRequestText(msgspec.Struct):
    """A text of a message request: written at `sent_at` by the clock of its sender, received at
    `at` (ms)."""

    uuid: bytes
    text: str
    sent_at: int
    at: int


class MessageRequestInfo(msgspec.Struct):
    """A message request of the peer id `id`; its key is not verified."""

    id: str
    fingerprint: str
    words: str
    texts: list[MessageRequestText]


class MessageRequestsAnswer(msgspec.Struct):
    """All message requests, the oldest first. `on`: the node keeps them (`message_requests`)."""

    on: bool
    requests: list[MessageRequestInfo]


class AcceptRequest(msgspec.Struct):
    """The sender of a message request, by its peer id, becomes a contact with this name."""

    id: str
    name: str


class RefuseRequest(msgspec.Struct):
    """The message request of a peer id is removed. `block`: its key is blocked."""

    id: str
    block: bool = False


class InviteRequest(msgspec.Struct):
    """A new invite for the peer that will have this name, for at most `life` seconds (0: as long as
    possible)."""

    name: str
    life: float = 0.0


class InviteAnswer(msgspec.Struct):
    """An invite: its `link`, and its end (seconds since 1970); or the reason why there is none.

    `reach` says where the addresses and relays lead to this node from (`WhoAnswer`). `qr_path` is
    the QR code of the link as the path of an SVG image with `qr_size` units on each side.
    """

    link: str | None
    error: str | None = None
    until: int = 0
    addresses: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    reach: str = ""
    qr_size: int = 0
    qr_path: str = ""


class OpenInvite(msgspec.Struct):
    """An open invite. Times are in seconds since 1970."""

    name: str
    made_at: float
    until: float


class InvitesAnswer(msgspec.Struct):
    """All open invites, the oldest first."""

    invites: list[OpenInvite]


class CancelInviteRequest(msgspec.Struct):
    """The open invite for this name ends."""

    name: str


class AcceptInviteRequest(msgspec.Struct):
    """The maker of an invite becomes a contact with this name, and is told."""

    link: str
    name: str


class ChatSearchRequest(msgspec.Struct):
    """Messages with the words of `query`, in all conversations or in that with `peer`: up to
    `limit`, after the first `offset`."""

    query: str
    peer: str | None = None
    limit: int = 50
    offset: int = 0


class FoundText(msgspec.Struct):
    """A message that was found: record `sequence` of the stream of the conversation with `peer`,
    at `at` (ms), with the part of its text around the words. In a group, whose name is then in
    `peer`, `by` is the name of its author, if that is another member."""

    peer: str
    id: str
    kind: str
    uuid: bytes
    sequence: int
    at: int
    text: str
    by: str = ""


class ChatSearchAnswer(msgspec.Struct):
    """Messages, the newest first. `more`: there are others behind them. `indexing`: not all is
    searched yet, ask again. `left_out`: the oldest are not searched."""

    found: list[FoundText]
    more: bool
    indexing: bool
    left_out: bool


class ChatTypingRequest(msgspec.Struct):
    """Somebody writes a message to `peer` at this moment."""

    peer: str


class GroupCreateRequest(msgspec.Struct):
    """A new group with this name, and these contacts (names or peer ids)."""

    name: str
    members: tuple[str, ...] = ()


class GroupAnswer(msgspec.Struct):
    """The id of a group, or the reason why nothing was done."""

    id: str | None
    error: str | None = None


class GroupInfoRequest(msgspec.Struct):
    """All about the group with this name or id."""

    group: str


class GroupMember(msgspec.Struct):
    """A member: `status` is joined, invited or left; `trust` that of the peer book (`unknown`: it
    is not there). `reachable` is False if nothing that is sent from here gets to it."""

    id: str
    name: str
    admin: bool
    status: str
    trust: str
    you: bool
    reachable: bool


class GroupFork(msgspec.Struct):
    """Two changes that were made at the same time: `kept` is followed here, `other` is not."""

    id: str
    kept: str
    other: str


class GroupInfoAnswer(msgspec.Struct):
    """A group."""

    id: str
    name: str
    status: str
    epoch: int
    members: list[GroupMember]
    forks: list[GroupFork]


class GroupChangeRequest(msgspec.Struct):
    """A change of a group: add, remove, admin, member, rename, leave or settle. `members` are names
    or peer ids; `text` is a new name. `settle` drops all branches that this node does not follow.
    """

    group: str
    change: str
    members: tuple[str, ...] = ()
    text: str = ""


class GroupAnswerRequest(msgspec.Struct):
    """The answer to the invitation into a group."""

    group: str
    accept: bool

"""Signed records and messages of groups (docs/reference/peer-formats.md, Groups).

Each is a MessagePack array with a signature of its author, the same for all members. The hash of a
record or message is SHA-256 of its array under its label.
"""

from __future__ import annotations

from enum import IntEnum
from hashlib import sha256
from typing import Annotated, Literal, TypeVar

import msgspec

from millpond.node.peers.envelope import KEY_BYTES, UUID_BYTES
from millpond.node.peers.identity import Identity, verify

VERSION: Literal[1] = 1
HASH_BYTES = 32
SIGNATURE_BYTES = 64
MEMBERS_MAX = 200
LABEL_CHARS_MAX = 64
COUNT_MAX = 2**53
NONCE_BYTES = 16
SEEN_MAX = 8
BODY_BYTES_MAX = 128 * 1024
"""The largest body of a message: a text of 16 KiB in JSON."""

_RECORD_LABEL = b"millpond group v1\0"
_MESSAGE_LABEL = b"millpond group message v1\0"

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]
Key = Annotated[bytes, msgspec.Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
Hash = Annotated[bytes, msgspec.Meta(min_length=HASH_BYTES, max_length=HASH_BYTES)]
HashOrNone = Annotated[bytes, msgspec.Meta(max_length=HASH_BYTES)]
Label = Annotated[str, msgspec.Meta(max_length=LABEL_CHARS_MAX)]
Uuid = Annotated[bytes, msgspec.Meta(min_length=UUID_BYTES, max_length=UUID_BYTES)]


class BadRecord(ValueError):
    """A record or message that is malformed, is not signed by its author, or breaks the rules."""


class Change(IntEnum):
    """The changes of a group. JOIN and LEAVE are statements of a member about itself, outside of
    the chain; the others are records of the chain, by admins."""

    CREATE = 1
    ADD = 2
    REMOVE = 3
    ADMIN = 4
    MEMBER = 5
    RENAME = 6
    SETTLE = 7
    JOIN = 8
    LEAVE = 9


STATEMENTS = frozenset({Change.JOIN, Change.LEAVE})


class GroupRecord(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A change of a group, by the key `by`, at `at` (ms).

    `previous` is the hash of the record before it: none in CREATE; in a statement that of the
    record that has added the member. `members` are those that it is about, each with the name that
    the admin has for it. `text` is the name of the group in CREATE and RENAME. `other` is a random
    number in CREATE, and in SETTLE the hash of the record that is dropped, with its branch.
    """

    version: Literal[1]
    group: HashOrNone
    epoch: Count
    previous: HashOrNone
    by: Key
    at: Count
    change: Change
    members: Annotated[tuple[tuple[Key, Label], ...], msgspec.Meta(max_length=MEMBERS_MAX)] = ()
    text: Label = ""
    other: HashOrNone = b""


class SeenHead(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The last message that somebody has of the author `by`: number `n` of its `line`."""

    by: Key
    line: Annotated[str, msgspec.Meta(max_length=8)]
    n: Count
    hash: Hash


class GroupMessage(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A message to all members, by the key `by`, in the state of the group after the record `head`,
    which is the `epoch`-th. `previous`: the hash of the author's message before. `body`: a text, or
    a receipt for the author of the texts that it names, as in conversations of two."""

    version: Literal[1]
    group: Hash
    epoch: Count
    head: Hash
    by: Key
    uuid: Uuid
    previous: HashOrNone
    seen: Annotated[tuple[SeenHead, ...], msgspec.Meta(max_length=SEEN_MAX)]
    body: Annotated[bytes, msgspec.Meta(max_length=BODY_BYTES_MAX)]

    def __repr__(self) -> str:
        """Without the body: this may end up in a log."""
        return f"<GroupMessage {self.uuid.hex()}>"


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(GroupRecord)
_messages = msgspec.msgpack.Decoder(GroupMessage)
SignedT = TypeVar("SignedT", GroupRecord, GroupMessage)


def sign(what: GroupRecord | GroupMessage, identity: Identity) -> bytes:
    """The signed bytes; `identity` is that of the author."""
    assert identity.public == what.by
    body = _encoder.encode(what)
    return body + identity.sign(_label(what) + body)


def read_record(signed: bytes) -> GroupRecord:
    """The record in signed bytes. Raises BadRecord."""
    return _read(signed, _records)


def read_message(signed: bytes) -> GroupMessage:
    """The message in signed bytes. Raises BadRecord."""
    return _read(signed, _messages)


def record_hash(record: GroupRecord) -> bytes:
    """The hash of a record; that of a CREATE is the id of the group."""
    return sha256(_RECORD_LABEL + _encoder.encode(record)).digest()


def message_hash(message: GroupMessage) -> bytes:
    """The hash of a message."""
    return sha256(_MESSAGE_LABEL + _encoder.encode(message)).digest()


def _label(what: GroupRecord | GroupMessage) -> bytes:
    return _RECORD_LABEL if isinstance(what, GroupRecord) else _MESSAGE_LABEL


def _read(signed: bytes, decoder: msgspec.msgpack.Decoder[SignedT]) -> SignedT:
    body, signature = signed[:-SIGNATURE_BYTES], signed[-SIGNATURE_BYTES:]
    try:
        what = decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRecord(str(error)) from error
    if _encoder.encode(what) != body:
        raise BadRecord("not encoded as it has to be")
    if not verify(what.by, signature, _label(what) + body):
        raise BadRecord("not signed by its author")
    return what

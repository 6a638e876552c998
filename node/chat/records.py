"""Records of a conversation in the stream `chat/<peer id>`, each in JSON.

    {"v":1,"kind":"out","uuid":"...","at":1763683200000,"text":"hi","state":"waiting","n":1,...}

A `held` is a message of a group that waits for earlier ones, or for a record of the group.
An `out` is a message of this node and an `in` one of the peer; a `state` is the new state of an
earlier `out`, and a `note` is a line for people. An `invite` is an invite of the peer that was
accepted here: it has states like an `out`. A `file-out` or `file-in` is the new state of the file
of an `out` or `in`. Times are milliseconds since 1970.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from millpond.node.peers.file_format import File
from millpond.node.peers.identity import peer_id

VERSION = 1
COUNT_MAX = 2**53
PREFIX = b"chat/"


class Kind(Enum):
    """The kinds of records."""

    OUT = "out"
    IN = "in"
    STATE = "state"
    NOTE = "note"
    INVITE = "invite"
    HELD = "held"
    FILE_OUT = "file-out"
    FILE_IN = "file-in"


class Transfer(Enum):
    """The states of a file.

    STORED: it is complete at a relay of the peer. The others are final. RECEIVED: the recipient has
    all of it. REFUSED: the recipient does not take it. EXPIRED: it was not fetched in time, or the
    sender has it no more.
    """

    STORED = "stored"
    RECEIVED = "received"
    REFUSED = "refused"
    EXPIRED = "expired"


class State(Enum):
    """The states of a message of this node.

    WAITING: stored, not sealed yet. KEPT: sealed and in the outbox. SENT: the peer or a relay has
    it. DELIVERED: the node of the peer has stored it. READ: a person has read it. EXPIRED: nobody
    fetched it in time. REFUSED: it will never arrive.
    """

    WAITING = "waiting"
    KEPT = "kept"
    SENT = "sent"
    EXPIRED = "expired"
    REFUSED = "refused"
    DELIVERED = "delivered"
    READ = "read"


_RANKS = {state: rank for rank, state in enumerate(State)}


def is_newer(state: State, than: State) -> bool:
    """True if the state follows `than`: a message that was reported as lost can still arrive."""
    return _RANKS[state] > _RANKS[than]


Uuid = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{32})?$")]
Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """A record. `uuid` has 32 hexadecimal digits.

    `n` counts the messages of a sender within a `line`, which is new when the sender's history is.
    An `in` has `sent_at`, by the clock of the sender, and is `late` after a reported gap.
    `missing` has the first and the last `n` of a gap, in a note. `secret` is that of an accepted
    invite. An `in` or `out` with an `action` is `about` another message (`actions`). `payload` is
    that of a message that this version does not understand, in a note. `file` is that of a message;
    `transfer` its new state, with the reason in `text`.

    In a group `by` is the peer id of the author (of an `in`, a note and a `held`), `hash` that of
    the message, and `signed` the message as it is passed on: to all (`out`), or to the keys in
    `targets` (`in`). A `state` names the `members` that it is about, or the `count` of those to
    whom a message was sent.
    """

    v: int
    kind: Kind
    at: Count
    uuid: Uuid = ""
    text: str = ""
    state: State | None = None
    n: Count = 0
    line: str = ""
    sent_at: Count = 0
    late: bool = False
    missing: tuple[Count, Count] | None = None
    secret: str = ""
    action: str = ""
    about: str = ""
    payload: str = ""
    by: str = ""
    hash: str = ""
    signed: bytes = b""
    targets: bytes = b""
    members: tuple[str, ...] = ()
    count: Count = 0
    file: File | None = None
    transfer: Transfer | None = None


class Unreadable(ValueError):
    """The body of a record that this version cannot read."""


_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


def encode_record(record: Record) -> bytes:
    """The body of a record in the stream."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> Record:
    """The record in a body. Raises Unreadable; readers skip such a record."""
    try:
        record = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if record.v != VERSION:
        raise Unreadable(f"a record of version {record.v}")
    return record


def conversation_stream(public: bytes) -> bytes:
    """The stream of the conversation with this peer, and the channel in which its messages
    arrive."""
    return PREFIX + peer_id(public).encode()

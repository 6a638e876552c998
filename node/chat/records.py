"""What is kept of a conversation: records of the stream `chat/<peer id>`, JSON each.

    {"v":1,"kind":"out","uuid":"...","at":1763683200000,"text":"hi","state":"waiting","n":1,...}

An `out` is a message of ours and an `in` one of the peer's; a `state` tells what became of an
earlier `out`, and a `note` is a line for people. Times are milliseconds since 1970.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec

from millpond.node.peers.identity import peer_id

VERSION = 1
COUNT_MAX = 2**53
PREFIX = b"chat/"


class Kind(Enum):
    """What a record tells."""

    OUT = "out"
    IN = "in"
    STATE = "state"
    NOTE = "note"


class State(Enum):
    """How far a message of ours got.

    WAITING: kept here, not sealed yet. KEPT: sealed. SENT: it left for the peer or a relay.
    DELIVERED: the peer's node keeps it. READ: somebody saw it. EXPIRED: nobody fetched it in time.
    REFUSED: it will never arrive.
    """

    WAITING = "waiting"
    KEPT = "kept"
    SENT = "sent"
    EXPIRED = "expired"
    REFUSED = "refused"
    DELIVERED = "delivered"
    READ = "read"


_RANKS = {state: rank for rank, state in enumerate(State)}


def is_news(state: State, than: State) -> bool:
    """Does it say more than what was known? A message that is said to be lost, and is found to be
    there after all, is there."""
    return _RANKS[state] > _RANKS[than]


Count = Annotated[int, msgspec.Meta(ge=0, le=COUNT_MAX)]


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One of them. `uuid` is 32 hexadecimal digits.

    `n` counts the messages of a sender within a `line`, which is new when the sender's history is.
    An `in` has `sent_at`, the sender's clock, and is `late` if others had to be shown before it.
    `missing` are the first and the last `n` that a note finds missing.
    """

    v: int
    kind: Kind
    at: Count
    uuid: str = ""
    text: str = ""
    state: State | None = None
    n: Count = 0
    line: str = ""
    sent_at: Count = 0
    late: bool = False
    missing: tuple[Count, Count] | None = None


class Unreadable(ValueError):
    """The body of a record is nothing that this version wrote."""


_decoder = msgspec.json.Decoder(Record)
_encoder = msgspec.json.Encoder()


def encode_record(record: Record) -> bytes:
    """The body of a record in the stream."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> Record:
    """Raises Unreadable; whoever reads a history passes over such a record."""
    try:
        record = _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unreadable(str(error)) from error
    if record.v != VERSION:
        raise Unreadable(f"a record of version {record.v}")
    return record


def conversation_stream(public: bytes) -> bytes:
    """The stream of the conversation with this peer; the channel in which its messages arrive."""
    return PREFIX + peer_id(public).encode()

"""Replies of an S3P server as typed values: ids, records, errors."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from millpond.actors.errors import (
    Malformed,
    NonMonotonicId,
    OutcomeUnknown,
    RequestError,
    StreamExists,
    UnknownStream,
)
from millpond.actors.store.changes import Position
from millpond.node.client.requests.errors import BadReply, LimitExceeded
from millpond.transports.s3p.client_codec import ErrorReply, Id, Ok, Records, Reply

U64_MAX = 2**64 - 1


class RecordId(NamedTuple):
    """The id of a record: milliseconds, and a number within them. `str()` as on the wire."""

    ms: int
    seq: int

    def __str__(self) -> str:
        return f"{self.ms}-{self.seq}"

    @staticmethod
    def parse(text: str) -> RecordId:
        """Read `<ms>-<seq>`; ValueError."""
        ms, dash, seq = text.partition("-")
        parts = (ms, seq)
        if not dash or not all(part.isascii() and part.isdigit() for part in parts):
            raise ValueError(f"{text!r} is no id; one is <ms>-<seq>")
        return RecordId(int(ms), int(seq))

    @property
    def next(self) -> RecordId:
        """The lowest id above this one."""
        return RecordId(self.ms, self.seq + 1) if self.seq < U64_MAX else RecordId(self.ms + 1, 0)


class S3pRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of a stream."""

    id: RecordId
    data: bytes


FIRST = RecordId(0, 0)
IdLike = RecordId | tuple[int, int] | str

SOFT: dict[str, type[RequestError]] = {
    "ERR_STREAM_EXISTS": StreamExists,
    "ERR_UNKNOWN_STREAM": UnknownStream,
    "ERR_NON_MONOTONIC_ID": NonMonotonicId,
}
FATAL: dict[str, type[RequestError]] = {"ERR_BAD_FORMAT": Malformed, "ERR_LIMITS": LimitExceeded}


def closing_error(reply: Reply, is_waiting: bool) -> RequestError | None:
    """The error after which the server closes, and does no request behind it (section 9)."""
    if isinstance(reply, ErrorReply) and reply.code in FATAL:
        return FATAL[reply.code](_text(reply))
    return None


def _refusal(reply: Reply) -> RequestError | BadReply:
    if not isinstance(reply, ErrorReply):
        return BadReply(f"the server answers with {type(reply).__name__}")
    error = SOFT.get(reply.code) or FATAL.get(reply.code)
    if error is None:
        return OutcomeUnknown(_text(reply))
    return error(_text(reply))


def _text(reply: ErrorReply) -> str:
    return f"{reply.code} {reply.text}".rstrip()


def read_ok(reply: Reply) -> None:
    """`+OK`."""
    if not isinstance(reply, Ok):
        raise _refusal(reply)


def read_id(reply: Reply) -> RecordId:
    """The id of the last record appended."""
    if not isinstance(reply, Id):
        raise _refusal(reply)
    return RecordId(reply.id.ms, reply.id.seq)


def read_ids(reply: Reply, _: int, count: int) -> list[RecordId]:
    """The ids of an APPEND. The reply has the last; they share their ms, and are consecutive."""
    last = read_id(reply)
    first = last.seq - count + 1
    if first < 0:
        raise BadReply(f"the server gives {count} records ids up to {last}")
    return [RecordId(last.ms, seq) for seq in range(first, last.seq + 1)]


def read_records(reply: Reply) -> list[S3pRecord]:
    """The records of a READ."""
    if not isinstance(reply, Records):
        raise _refusal(reply)
    return [S3pRecord(RecordId(id.ms, id.seq), data) for id, data in reply.pairs]


def position_of(id: IdLike) -> Position:
    """An id for the codec. Raises ValueError."""
    ms, seq = RecordId.parse(id) if isinstance(id, str) else id
    if not (0 <= ms <= U64_MAX and 0 <= seq <= U64_MAX):
        raise ValueError(f"{ms}-{seq} is no id: its parts are u64")
    return Position(ms, seq)

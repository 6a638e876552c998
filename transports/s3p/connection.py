"""An S3P client's connection: commands in, requests to streams, replies in order (specs/s3p 13)."""

from __future__ import annotations

from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, Rights, StreamReply
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.streams.messages import (
    Append,
    Appended,
    Create,
    Delete,
    Done,
    Read,
    RecordFilter,
    Records,
    StreamFailed,
    Trim,
)
from millpond.actors.streams.names import stream_cell
from millpond.transports.s3p.commands import (
    LIMITS,
    NON_MONOTONIC_ID,
    STREAM_EXISTS,
    UNKNOWN_STREAM,
    AppendRecords,
    Command,
    CreateStream,
    DeleteStream,
    ReadRecords,
    S3pLimits,
    TrimBelow,
    printable,
)
from millpond.transports.s3p.decoder import (
    NOTHING,
    OK,
    Decoder,
    encode_error,
    encode_id,
    encode_records,
)
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import FlowSettings, StreamConnection, Turned
from millpond.transports.server.refusals import Refusal


class S3pSettings(msgspec.Struct, frozen=True):
    """Limits of an S3P connection; docs/reference/limits.md. A READ gives at most about
    `reply_bytes_max`."""

    limits: S3pLimits = S3pLimits()
    flow: FlowSettings = FlowSettings()
    reply_bytes_max: int = 2**22


VIEW = RecordFilter(empty=False, commands=False)
"""S3P cannot spell a record without a byte (section 3), nor one that is a command of S2's."""


class S3pConnection(StreamConnection[Command]):
    """One client of S3P."""

    LISTENER = "s3p"

    __slots__ = ("_cell", "_decoder", "_holds_up", "_name", "_settings")

    def __init__(self, number: int, host: NodeServices, settings: S3pSettings) -> None:
        super().__init__(number, host, settings.flow)
        self._settings = settings
        self._decoder = Decoder(settings.limits)
        self._name = self._cell = b""
        """The latest stream, and its cell: a look-up computes the hash of a new name each time."""
        self._holds_up = False
        """A READ or a TRIM is under way. The stream may have to look for what it asks for, and what
        comes behind must not pass it; nor is known what the answer to a READ will weigh."""

    def _decode(self, data: bytes) -> list[Command]:
        commands = self._decoder.feed(data)
        error = self._decoder.error
        if error is not None:
            self._is_malformed()
            self._end(encode_error(error.code, error.text))
        return commands

    def _turning_away(self, why: Turned) -> bytes:
        return encode_error(LIMITS, why.value)

    def _hand_over(self, requests: list[Command], at: int) -> int:
        """Consecutive commands for one stream go to it together; a READ or a TRIM is the last of
        its batch, and holds up what comes behind (S3P-46)."""
        if self._holds_up:
            return at
        name = requests[at].name
        if not (self._is_free or self._may(_needed(requests[at]), name)):
            return self._refuse(requests)
        if name != self._name:
            self._name, self._cell = name, stream_cell(name)
        messages: list[CellMessage] = []
        number = self._next_number
        position = at
        for position in range(at, len(requests)):
            command = requests[position]
            if command.name != name:
                break
            if not (self._is_free or self._may(_needed(command), name)):
                break
            if type(command) is AppendRecords:
                messages.append(Append(number, command.records, command.ms))
            elif isinstance(command, ReadRecords | TrimBelow):
                self._holds_up = True
                messages.append(self._seek(number, command))
                position += 1
                break
            else:
                messages.append(_request(number, command))
            number += 1
        else:
            position += 1
        self._submit(self._cell, requests[at:position], messages, gather=not self._holds_up)
        return position

    def _refuse(self, requests: list[Command]) -> int:
        """S3P has no error for this that leaves the connection open (S3A-36): what came before is
        answered, what comes behind is not taken."""
        self._refused(Refusal.NOT_ALLOWED)
        words = self._turning_away(Turned.NOT_ADMITTED)
        self._end(words)
        self._last_words = words  # ahead of what else was wrong further behind
        return len(requests)

    def _seek(self, number: int, command: ReadRecords | TrimBelow) -> CellMessage:
        if isinstance(command, TrimBelow):
            return Trim(number, command.min_id)
        wait_until = 0.0
        if command.block_ms and not self._has_eof:
            self._cell_waited_in = self._cell
            wait_until = self._now + command.block_ms / 1000
        start = Seek(SeekBy.ID, id=command.min_id)
        return Read(number, start, command.count, self._settings.reply_bytes_max, wait_until, VIEW)

    def _answer(self, request: Command, reply: StreamReply | Failed) -> bytes:
        if type(reply) is Appended:
            return encode_id(reply.id)
        if isinstance(request, ReadRecords | TrimBelow):
            self._holds_up = False
            if self._cell_waited_in is not None:
                self._has_waited()
        match reply:
            case Done():
                return OK
            case Records():
                if not reply.spans:
                    return NOTHING
                return self._large(encode_records(reply.spans, reply.slices))
            case StreamFailed() | Failed():
                return self._tell_failure(request, reply)
            case _:
                raise AssertionError("nobody asked for this")

    def _tell_failure(self, request: Command, failed: StreamFailed | Failed) -> bytes:
        """Section 9, and what it has no word for (S3A-36)."""
        name = printable(request.name)
        match failed.code:
            case Code.STREAM_EXISTS:
                return encode_error(STREAM_EXISTS, f"stream {name} already exists")
            case Code.UNKNOWN_STREAM:
                return encode_error(UNKNOWN_STREAM, f"stream {name} does not exist")
            case Code.NON_MONOTONIC_ID:
                return encode_error(NON_MONOTONIC_ID, _too_low(request, failed))
            case Code.OUTCOME_UNKNOWN:
                self._end_now(b"")
            case code:
                self._host.counters.refused += 1
                self._end_now(encode_error(LIMITS, REASONS.get(code, "refused")))
        return b""


REASONS = {
    Code.BUFFER_FULL: "the stream or the node is full",
    Code.STORAGE_FAILED: "storage failed",
    Code.SLOW_DOWN: "too many requests",
    Code.NOT_ALLOWED: "access refused",
    Code.QUARANTINED: "the stream failed too often and is set aside",
    Code.PART_OF_TOPIC: "the stream is a partition of a topic",
    Code.CLOSED: "the stream is closed",
}
"""Why a connection ends, for what section 9 has no code for."""


def _needed(command: Command) -> Rights:
    """The right that a command takes in its stream."""
    match command:
        case AppendRecords() | CreateStream():
            return Rights.PUT
        case ReadRecords():
            return Rights.GET
        case TrimBelow() | DeleteStream():
            return Rights.ADMIN
        case _:
            assert_never(command)


def _request(number: int, command: CreateStream | AppendRecords | DeleteStream) -> CellMessage:
    match command:
        case AppendRecords():
            return Append(number, command.records, command.ms)
        case CreateStream():
            return Create(number)
        case DeleteStream():
            return Delete(number)
        case _:
            assert_never(command)


def _too_low(request: Command, failed: StreamFailed | Failed) -> str:
    ms = request.ms if isinstance(request, AppendRecords) else None
    if ms is None or not isinstance(failed, StreamFailed):
        return f"the IDs of stream {printable(request.name)} are used up"
    return f"provided timestamp ID {ms} is not greater than last appended ID {failed.last_id.ms}"

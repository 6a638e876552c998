"""An S3P client's connection: commands in, requests to streams, replies in order (specs/s3p 13)."""

from __future__ import annotations

from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Failed, Rights, StreamFailed, StreamReply
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
    MEASURE,
    NOTHING,
    OK,
    Decoder,
    encode_error,
    encode_id,
    encode_packed,
    encode_records,
)
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.pipelined import (
    ConnectionRefusal,
    FlowSettings,
    PipelinedConnection,
)
from millpond.transports.server.private_names import is_private
from millpond.transports.server.refusals import Refusal


class S3pSettings(msgspec.Struct, frozen=True):
    """Limits of an S3P connection; docs/reference/limits.md. A READ gives at most about
    `reply_bytes_max`."""

    limits: S3pLimits = S3pLimits()
    flow: FlowSettings = FlowSettings()
    reply_bytes_max: int = 2**22


APPEND_BEGIN = b"*4\r\n"
"""APPEND has four elements, and no other command has."""
READ_BEGIN = b"*3\r\n$4\r\nREAD"
VIEW = RecordFilter(empty=False, commands=False)
"""S3P cannot spell a record without a byte (section 3), nor one that is a command of S2's."""


def s3p_connection(
    number: int, node: NodeServices, settings: S3pSettings
) -> PipelinedConnection[Command]:
    """A connection that speaks S3P."""
    flow = settings.flow
    return PipelinedConnection(number, node, flow, lambda each: S3pProtocol(each, settings))


class S3pProtocol:
    """S3P on one connection: commands to requests of streams, their replies to bytes."""

    listener = "s3p"

    __slots__ = (
        "_cell",
        "_connection",
        "_is_blocked",
        "_is_private",
        "_name",
        "_settings",
        "decoder",
    )

    def __init__(self, connection: PipelinedConnection[Command], settings: S3pSettings) -> None:
        self._connection = connection
        self._settings = settings
        self.decoder = Decoder(settings.limits)
        self._name = self._cell = b""
        """The latest stream, and its cell: a look-up computes the hash of a new name each time."""
        self._is_private = False
        """No right to everything includes it (`private_names`)."""
        self._is_blocked = False
        """A READ or a TRIM is in flight. The stream may have to search for its records, and the
        commands behind it must not overtake it; the size of an answer to READ is not known."""

    def error_bytes(self) -> bytes:
        error = self.decoder.error
        assert error is not None
        return encode_error(error.code, error.text)

    def refusal_bytes(self, reason: ConnectionRefusal, data: bytes = b"") -> bytes:
        return encode_error(LIMITS, reason.value)

    def dispatch(self, requests: list[Command], start: int) -> int:
        """Consecutive commands for one stream go to it together; a READ or a TRIM is the last of
        its batch, and blocks the commands behind it (S3P-46)."""
        if self._is_blocked:
            return start
        connection = self._connection
        name = requests[start].name
        if name != self._name:
            self._use(name)
        is_free = connection.has_all_rights and not self._is_private
        if not (is_free or connection.may(_needed(requests[start]), name)):
            # S3P has no error for this that leaves the connection open (S3A-36): commands before
            # it are answered, none behind it is taken.
            connection.count_refused(Refusal.NOT_ALLOWED)
            connection.refuse_rest(self.refusal_bytes(ConnectionRefusal.NOT_ADMITTED))
            return len(requests)
        messages: list[CellMessage] = []
        number = connection.next_number
        position = start
        for position in range(start, len(requests)):
            command = requests[position]
            if command.name != name:
                break
            if not (is_free or connection.may(_needed(command), name)):
                break
            if type(command) is AppendRecords:
                messages.append(Append(number, command.records, command.ms))
            elif isinstance(command, ReadRecords | TrimBelow):
                is_read = type(command) is ReadRecords
                if is_read and not connection.may_answer(2 * self._settings.reply_bytes_max):
                    break
                self._is_blocked = True
                messages.append(self._read_or_trim(number, command))
                position += 1
                break
            elif isinstance(command, CreateStream):
                messages.append(Create(number))
            else:
                messages.append(Delete(number))
            number += 1
        else:
            position += 1
        if not messages:
            return start
        batched = not self._is_blocked
        connection.submit(self._cell, requests[start:position], messages, batched=batched)
        return position

    def dispatch_run(self, data: bytes) -> bool:
        """Appends alone, to the stream of the one before them, or the next READ of a walk over a
        stream: the straight way to that stream."""
        if self._is_blocked:
            return False
        connection = self._connection
        if not data.startswith(APPEND_BEGIN):
            return data.startswith(READ_BEGIN) and self._dispatch_read(data)
        run = self.decoder.feed_appends(data, connection.next_number)
        if run is None:
            return False
        request, messages = run
        if request.name != self._name:
            self._use(request.name)
        if not connection.has_all_rights or self._is_private:
            if not connection.may(Rights.PUT, self._name):
                return False
        connection.submit_run(self._cell, [request] * len(messages), messages, len(data))
        return True

    def _dispatch_read(self, data: bytes) -> bool:
        connection, command = self._connection, self.decoder.feed_read(data)
        if command is None or command.block_ms or command.name != self._name:
            return False
        if not connection.has_all_rights or self._is_private:
            if not connection.may(Rights.GET, self._name):
                return False
        if not connection.may_answer(2 * self._settings.reply_bytes_max):
            return False
        self._is_blocked = True
        read = self._read_or_trim(connection.next_number, command)
        connection.submit_run(self._cell, [command], [read], len(data), batched=False)
        return True

    def _use(self, name: bytes) -> None:
        """The commands that follow are for this stream."""
        self._name, self._cell = name, stream_cell(name)
        self._is_private = is_private(name)

    def _read_or_trim(self, number: int, command: ReadRecords | TrimBelow) -> CellMessage:
        if isinstance(command, TrimBelow):
            return Trim(number, command.min_id)
        connection = self._connection
        wait_until = 0.0
        if command.block_ms and not connection.has_eof:
            connection.read_blocks(self._cell)
            wait_until = connection.now + command.block_ms / 1000
        start = Seek(SeekBy.ID, id=command.min_id)
        bytes_max = self._settings.reply_bytes_max
        return Read(number, start, command.count, bytes_max, wait_until, VIEW, measure=MEASURE)

    def answer(self, request: Command, reply: StreamReply | Failed) -> bytes:
        if type(reply) is Appended:
            return encode_id(reply.id)
        if isinstance(request, ReadRecords | TrimBelow):
            self._is_blocked = False
            self._connection.read_unblocks()
            self._connection.forget_answer()
        match reply:
            case Done():
                return OK
            case Records():
                if reply.packed:
                    data = encode_packed(reply.packed)
                elif reply.spans:
                    data = encode_records(reply.spans, reply.slices)
                else:
                    return NOTHING
                return self._connection.count_large(data)
            case StreamFailed() | Failed():
                return self._answer_failure(request, reply)
            case _:
                raise AssertionError(f"{reply} answers no command")

    def _answer_failure(self, request: Command, failed: StreamFailed | Failed) -> bytes:
        """The errors of section 9, and those that it has no code for (S3A-36)."""
        name = printable(request.name)
        match failed.code:
            case Code.STREAM_EXISTS:
                return encode_error(STREAM_EXISTS, f"stream {name} already exists")
            case Code.UNKNOWN_STREAM:
                return encode_error(UNKNOWN_STREAM, f"stream {name} does not exist")
            case Code.NON_MONOTONIC_ID:
                return encode_error(NON_MONOTONIC_ID, _too_low(request, failed))
            case Code.OUTCOME_UNKNOWN:
                self._connection.close_now(b"")
            case code:
                self._connection.count_failed()
                self._connection.close_now(encode_error(LIMITS, REASONS.get(code, "refused")))
        return b""


REASONS = {
    Code.BUFFER_FULL: "the stream or the node is full",
    Code.STORAGE_FAILED: "storage failed",
    Code.SLOW_DOWN: "too many requests",
    Code.NOT_ALLOWED: "access refused",
    Code.QUARANTINED: "the stream failed too often and is quarantined",
    Code.PART_OF_TOPIC: "the stream is a partition of a topic",
    Code.CLOSED: "the stream is closed",
    Code.ENCRYPTED: "the stream is encrypted",
}
"""Texts of the error that ends a connection, for codes that section 9 does not have."""


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


def _too_low(request: Command, failed: StreamFailed | Failed) -> str:
    ms = request.ms if isinstance(request, AppendRecords) else None
    if ms is None or not isinstance(failed, StreamFailed):
        return f"the IDs of stream {printable(request.name)} are used up"
    return f"provided timestamp ID {ms} is not greater than last appended ID {failed.last_id.ms}"

"""Append sessions (A.6, A.7): frames of appends in, acks in the same order out.

One task reads, decodes and submits; another awaits the answers and writes acks. Each append
names its predecessor (`SessionAppend`): after a refused one no later one of the session is done, so
the acked appends are exactly those that were done, up to one error at the end.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing

import anyio
import anyio.lowlevel

from millpond.actors.streams import messages as m
from millpond.actors.streams.messages import DEFAULT_OPTIONS
from millpond.transports.http.cell_client import CellClient
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.s2.append import ack_of, require_commands
from millpond.transports.http.s2.auto_create import describe_or_make, failure
from millpond.transports.http.s2.codecs import protobuf as protobuf_codec
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.compression import Compression, accepted
from millpond.transports.http.s2.codecs.config import StorageClass
from millpond.transports.http.s2.codecs.tokens import Operation
from millpond.transports.http.s2.context import S2Context, S2Target
from millpond.transports.http.s2.encryption import RecordCipher
from millpond.transports.http.s2.errors import CodedError, ErrorCode, S2Error
from millpond.transports.http.s2.metadata import storage_class_of
from millpond.transports.http.s2.model import AppendInput, check_append
from millpond.transports.http.s2.read_session import NO_CACHE, S2S, cut_short

UNACKED_MAX = 1000
UNACKED_BYTES_MAX = 8 * 2**20
"""The input of a session with more unacknowledged appends waits."""
PIECE_BYTES = 65_536
FEED_BYTES = 4096
"""The bytes that are cut into frames at once; more for the rest of one frame."""
WORK_BYTES, FRAME_BYTES = 65_536, 256
"""After this many bytes of messages other tasks run; a frame counts as some bytes more."""
ACK_GATHER_PASSES = 3
"""Passes of the loop that an ack waits for others of the same piece: each write costs much."""
LAST_BYTES_S = 0.2
"""The time for the last bytes of a session to be read, when the node stops."""
DRAIN_S, DRAIN_S_MAX = 0.5, 2.0
"""A session's acks advise to reconnect until nothing has come for so long, and at most so long.

The client should end it: the published one for Python loses what it is about to send when
it is ended, and what it sends next is refused for the sequence that it wants.
"""


async def append_frames(context: S2Context, target: S2Target) -> None:
    """POST /v1/streams/{stream}/records as an S2S session."""
    key = context.encryption_key()
    context.check(Operation.APPEND, target)
    context.request.active.keep_requiring(lambda: context.may(Operation.APPEND, target))
    with context.cell_client() as cells:
        # The stream is created if need be. Errors so far come before the session begins.
        storage_class: StorageClass | None = None
        try:
            found = await describe_or_make(context, cells, target, key, is_append=True)
            cipher = key.for_stream(target.cell, found)
            storage_class = storage_class_of(found.options or DEFAULT_OPTIONS)
        finally:
            context.usage.count_append(target.basin, storage_class)
        session = _Session(context, cells, target, found.incarnation, cipher)
        try:
            headers = ((b"content-type", S2S), NO_CACHE)
            await context.writer.start(200, headers, session.final_piece)
            await session.run()
        finally:
            # The stream keeps the refused append of a session until it is detached.
            context.services.detach(target.cell, cells)


class _Session:
    """An append session: its appends in flight, in the order in which they came."""

    __slots__ = (
        "_append_type",
        "_cells",
        "_changed",
        "_cipher",
        "_compression",
        "_context",
        "_decoder",
        "_has_new_input",
        "_incarnation",
        "_is_busy",
        "_is_outcome_unknown",
        "_is_over",
        "_is_sending",
        "_is_submitting",
        "_last_acks",
        "_piece_bytes",
        "_target",
        "_unacked",
        "_unacked_bytes",
        "_work",
    )

    def __init__(
        self,
        context: S2Context,
        cells: CellClient,
        target: S2Target,
        incarnation: int,
        cipher: RecordCipher | None,
    ) -> None:
        self._context = context
        self._cipher = cipher
        self._append_type = m.SessionAppend if cipher is None else m.EncryptedSessionAppend
        self._incarnation = incarnation
        self._cells = cells
        self._target = target
        self._compression: Compression = accepted(context.header(b"accept-encoding"))
        self._decoder = frames.Decoder()
        self._unacked: deque[tuple[int, int] | S2Error | None] = deque()
        """Numbers and sizes of appends; at the end an error, or None for a good end."""
        self._unacked_bytes = 0
        """Of appends that are not acked, with the one that is about to be submitted."""
        self._piece_bytes = 0
        """The size of the piece of the body that is being cut into frames."""
        self._work = 0
        self._is_over = False
        """The end is queued: nothing is added behind it."""
        self._is_submitting = self._has_new_input = self._is_sending = False
        self._is_busy = False
        """More of the received bytes is about to be submitted."""
        self._changed: anyio.Event | None = None
        self._last_acks = b""
        self._is_outcome_unknown = False
        """The session was aborted, and the outcome of some appends is unknown."""

    async def run(self) -> None:
        """Serve the session until its end or its first error."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read)
                tasks.start_soon(self._end_when_draining)
                await self._write()
                tasks.cancel_scope.cancel()
        finally:
            self._collect_last_acks()
        await self._context.request.linger()  # behind an error, or its connection would be reset
        await self._context.writer.end()
        if self._context.request.active.is_draining:
            # With the last session its connection ends. A client that finds GOAWAY (h2 takes
            # nothing behind it) among what it has not read yet would lose the acks before it.
            await anyio.sleep(LAST_BYTES_S)

    def final_piece(self, reason: Rejection) -> bytes:
        """The last piece of an aborted session: acks that were not sent yet, and the reason."""
        if reason is Rejection.CUT_OFF and not self._is_outcome_unknown:
            reason = Rejection.DRAINING  # whatever is not acked can be sent again
        return self._last_acks + frames.encode_terminal(cut_short(reason))

    def _collect_last_acks(self) -> None:
        """Collect the acks that are known when the session ends; no more will come."""
        line, pieces = self._unacked, []
        while not self._is_sending and line and isinstance(line[0], tuple):
            reply = self._cells.peek(line[0][0])
            if not isinstance(reply, m.Appended):
                break
            line.popleft()
            pieces.append(self._ack(reply))
        self._last_acks = b"".join(pieces)
        self._is_outcome_unknown = self._is_sending or (bool(line) and isinstance(line[0], tuple))

    def _add(self, entry: tuple[int, int] | S2Error | None) -> None:
        if not self._is_over:
            self._is_over = not isinstance(entry, tuple)
            self._unacked.append(entry)
            self._notify()

    def _notify(self) -> None:
        """Wake the tasks that wait for the queue to change."""
        if self._changed is not None:
            self._changed.set()
            self._changed = None

    async def _wait_for_change(self) -> None:
        """Wait for the queue to change."""
        if self._changed is None:
            self._changed = anyio.Event()
        await self._changed.wait()

    # In.

    async def _read(self) -> None:
        decoder = self._decoder
        async with aclosing(self._context.request.chunks()) as pieces:
            async for data in pieces:
                at, view, self._piece_bytes = 0, memoryview(data), len(data)
                self._count_input()
                while at < len(data):
                    end = at + max(FEED_BYTES, decoder.missing_bytes)
                    self._is_busy = end < len(data)
                    await self._feed(view[at:end])
                    if self._is_over:
                        return
                    at = end
                del data, view  # or the session would keep them while it waits for more
                self._piece_bytes = 0
                self._count_input()
        if decoder.is_midway:
            self._add(frames.BadFrame("the session ended within a frame"))
        self._add(None)

    def _count_input(self) -> None:
        """Count what came and is not acked: appends, and the frame of which a part has come."""
        input_bytes = self._decoder.buffered_bytes + self._unacked_bytes + self._piece_bytes
        self._context.request.keep_input(input_bytes, self._decoder.clear)

    async def _feed(self, data: bytes | memoryview) -> None:
        """Submit what a piece completes, up to the first error."""
        try:
            for frame in self._decoder.feed(data):
                await self._take(frame)
                if self._is_over:
                    return
            if self._decoder.error is not None:
                raise self._decoder.error
        except S2Error as error:
            self._add(error)

    async def _take(self, frame: frames.Frame) -> None:
        """Submit one append, once there is room for it. Raises S2Error."""
        message = frame.message()
        self._work += len(message) + FRAME_BYTES
        if self._work > WORK_BYTES:
            self._work = 0
            await anyio.lowlevel.checkpoint()
        given = protobuf_codec.decode_input(message, ErrorCode.BAD_FRAME)
        size = check_append(given)
        require_commands(self._context, self._target, given.headers)
        self._unacked_bytes += size
        while self._is_full() and not self._is_over:
            self._count_input()
            await self._wait_for_change()
        if self._cipher is not None:
            given = await self._cipher.encrypted(given)
        if not self._is_over:
            await self._submit(given, size)

    def _is_full(self) -> bool:
        count = len(self._unacked)
        return count >= UNACKED_MAX or (count > 0 and self._unacked_bytes > UNACKED_BYTES_MAX)

    async def _submit(self, given: AppendInput, size: int) -> None:
        cells = self._cells
        number = cells.next_number()
        request = self._append_type(
            number,
            given.bodies,
            None,
            given.headers,
            given.timestamps,
            given.fencing_token,
            given.match_seq_num,
            self._incarnation,
            self._predecessor(),
        )
        self._is_submitting = self._has_new_input = True
        await cells.submit(self._target.cell, (request,), size, gather=True)
        self._is_submitting = False
        self._add((number, size))

    def _predecessor(self) -> int | None:
        """The append before the next one, unless that is known to be done."""
        last = self._unacked[-1] if self._unacked else None
        if not isinstance(last, tuple) or isinstance(self._cells.peek(last[0]), m.Appended):
            return None
        return last[0]

    async def _end_when_draining(self) -> None:
        await self._context.request.active.draining.wait()
        with anyio.move_on_after(DRAIN_S_MAX):
            self._has_new_input = True
            while self._has_new_input:
                self._has_new_input = False
                await anyio.sleep(DRAIN_S)
        while self._is_submitting:  # what is appended is acked
            await self._wait_for_change()
        self._add(
            CodedError(
                ErrorCode.SERVER_DRAINING, "the node is stopping; retry later or at another node"
            )
        )

    # Out.

    async def _write(self) -> None:
        writer, line = self._context.writer, self._unacked
        while True:
            while not line:
                await self._wait_for_change()
            last = line[0]
            if isinstance(last, tuple):
                for _ in range(ACK_GATHER_PASSES):
                    if self._is_busy:
                        await anyio.lowlevel.checkpoint()
                acks = await self._acks()
                self._is_sending = True
                await writer.write(acks)
                self._is_sending = False
                self._count_input()  # what is written gives back all that was kept
                continue
            if last is not None:
                await writer.write(frames.encode_terminal(last))
            return

    async def _acks(self) -> bytes:
        """The next ack, with those that are there at once behind it."""
        cells, line = self._cells, self._unacked
        pieces: list[bytes] = []
        options, size, weights = DEFAULT_OPTIONS, 0, 0
        while line and isinstance(line[0], tuple) and size < PIECE_BYTES:
            number, weight = line[0]
            if pieces and cells.peek(number) is None:
                break
            reply = await cells.reply(number)
            if not isinstance(reply, m.Appended):
                self._fail(failure(reply, self._target))
                break
            line.popleft()
            weights += weight
            options = reply.options
            pieces.append(self._ack(reply))
            size += len(pieces[-1])
        self._unacked_bytes -= weights
        appended_bytes = self._context.usage.of(self._target.basin).appended_bytes
        appended_bytes[storage_class_of(options)] += weights
        self._notify()
        return b"".join(pieces)

    def _ack(self, appended: m.Appended) -> bytes:
        body = protobuf_codec.encode_ack(ack_of(appended))
        advises = self._context.request.active.is_draining
        return frames.encode((body,), advises_reconnect=advises)

    def _fail(self, error: S2Error) -> None:
        """Queue an error as the end: later appends are neither done nor acked."""
        self._is_over = True
        self._unacked.clear()
        self._unacked.append(error)

"""The cell of a stream's state: created by the first query, it reads the stream and follows it.

It writes nothing to the store: its state is made from the stream, after a crash and after a
restart as well; records up to a checkpoint need not be read again (`Checkpointing`). It reads like
any client, through a port of its own, so it shows nothing before that is as durable as the stream
promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from math import inf
from typing import assert_never

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Failed,
    Port,
    Reply,
    StreamRequest,
)
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.runtime.cell import Effects
from millpond.actors.state.checkpoint_store import CheckpointStore
from millpond.actors.state.checkpointing import Checkpointing
from millpond.actors.state.messages import (
    TYPES_MAX,
    CheckpointLoaded,
    DescribeState,
    GetValue,
    ListValues,
    StateDescribed,
    StateInfo,
    StateLimits,
    Value,
    Values,
)
from millpond.actors.state.stats import StateUsage
from millpond.actors.state.table import StateTable
from millpond.actors.streams import messages as m
from millpond.actors.streams.cell_port import CellPort, StreamReplyReceived
from millpond.actors.streams.names import state_cell, stream_cell

log = logging.getLogger(__name__)


EVENTS = m.RecordFilter(empty=False, commands=False)
READ_COUNT, READ_BYTES = 1000, 256 * 1024
FOLLOW_S = 3600.0
PAUSE_S, PAUSE_S_MAX, RETRY_S = 0.05, 5.0, 1.0
"""Delays in seconds before the next read, after one that ended early or was refused; a query ends
them."""
SLOW_MS = 1000

Query = DescribeState | GetValue | ListValues


class StateContext(msgspec.Struct, frozen=True):
    """The parts that the state cells of a node share. `post` sends a message to a cell."""

    post: Callable[[bytes, CellMessage], None]
    limits: StateLimits
    usage: StateUsage


class StateCell:
    """The state of the stream `name`. `checkpoints` None: it is not stored."""

    __slots__ = (
        "_asked_at",
        "_checkpointing",
        "_context",
        "_first",
        "_incarnation",
        "_is_live",
        "_is_new",
        "_is_stopped",
        "_is_unused",
        "_known_incarnation",
        "_name",
        "_number",
        "_pause_s",
        "_port",
        "_position",
        "_read",
        "_refused_until",
        "_retry_at",
        "_table",
        "_waiting",
        "deadline",
    )

    def __init__(
        self, name: bytes, context: StateContext, checkpoints: CheckpointStore | None = None
    ) -> None:
        self._name = name
        self._context = context
        self._port = CellPort(state_cell(name), context.post)
        self._checkpointing = Checkpointing(name, checkpoints, context.limits.save_every)
        self._number = 0
        self._read: m.Read | m.Describe | None = None
        """The request that the stream has not answered."""
        self._known_incarnation = 0
        self._incarnation: int | None = None
        """The incarnation of the stream; None: unknown, perhaps it is another one now."""
        self._pause_s = PAUSE_S
        self._waiting: list[tuple[Port, Query, float]] = []
        """Queries that wait until the state is that of the stream, and since when."""
        self._asked_at = -inf
        self._retry_at = -inf
        self._refused_until = -inf
        self._is_stopped = False
        self._is_unused = True
        """Nothing is held and nothing is read: the cell can be forgotten."""
        self._begin()
        self.deadline = inf

    def _begin(self) -> None:
        self._table = StateTable()
        self._position = 0
        self._first = 0
        self._is_new = True
        """Nothing was read yet."""
        self._is_live = False
        self._checkpointing.reset()
        self._context.usage.set(self._name, 0)

    @property
    def is_empty(self) -> bool:
        return self._is_unused and not self._waiting

    @property
    def can_passivate(self) -> bool:
        return self.is_empty

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return [(port, request) for port, request, _ in self._waiting]

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            match message:
                case StreamReplyReceived(port=port, reply=reply):
                    if port is self._port:
                        self._take_reply(reply, now, effects)
                case CheckpointLoaded(port=port, saved=saved):
                    if port is self._port:
                        self._checkpointing.loaded(saved)
                case DescribeState() | GetValue() | ListValues() if batch.port is not None:
                    self._ask(batch.port, message, now, effects)
                case Detach():
                    self._waiting = [each for each in self._waiting if each[0] is not batch.port]
                case Drain():
                    self._is_stopped = True
                    self._checkpointing.save(self._table, self._first, is_end=True)
                    self._refuse_waiting(Code.OUTCOME_UNKNOWN, effects)
                case StreamRequest() if batch.port is not None:
                    effects.port_replies.append((batch.port, Failed(message, Code.MALFORMED)))
                case _:
                    raise AssertionError(f"{type(message).__name__} is not for states")
        self._continue(now, effects)
        return effects

    def wake(self, now: float) -> Effects:
        """Act on the time: a query waits too long, a read is due, or the state is unused."""
        effects = Effects()
        limits = self._context.limits
        late = [each for each in self._waiting if each[2] + limits.wait_s <= now]
        self._waiting = [each for each in self._waiting if each[2] + limits.wait_s > now]
        for port, request, _ in late:
            effects.port_replies.append((port, Failed(request, Code.SLOW_DOWN, SLOW_MS)))
        if not self._waiting and self._asked_at + limits.idle_s <= now:
            self._give_up(effects)
        self._continue(now, effects)
        return effects

    # Queries.

    def _ask(self, port: Port, query: Query, now: float, effects: Effects) -> None:
        self._asked_at = now
        if now < self._refused_until:
            effects.port_replies.append((port, Failed(query, Code.STATE_TOO_LARGE)))
        elif self._is_live:
            effects.port_replies.append((port, self._answer(query)))
        elif self._is_stopped or len(self._waiting) >= self._context.limits.waiting_max:
            effects.port_replies.append((port, Failed(query, Code.BUFFER_FULL, SLOW_MS)))
        else:
            self._is_unused = False
            self._retry_at = now
            self._waiting.append((port, query, now))

    def _answer(self, query: Query) -> Reply:
        number, position, table = query.number, self._position, self._table
        match query:
            case GetValue(kind=kind, key=key):
                return Value(number, position, table.state.get(kind, key))
            case ListValues(kind=kind, after=after, count=count, bytes_max=bytes_max):
                rows, more = table.page(kind, after, count, bytes_max)
                return Values(number, position, rows, more)
            case DescribeState():
                return self._describe(number)
            case _:
                assert_never(query)

    def _describe(self, number: int) -> StateDescribed:
        state, stats = self._table.state, self._table.stats
        info = StateInfo(
            self._position,
            self._first,
            {kind: len(state.get_type(kind)) for kind in state.types[:TYPES_MAX]},
            state.type_count,
            self._table.size,
            stats.changes,
            stats.controls,
            stats.resets,
            stats.snapshots,
            stats.unmatched,
            stats.missed,
            stats.in_snapshot,
            dict(stats.rejected),
        )
        return StateDescribed(number, info)

    def _refuse_waiting(self, code: Code, effects: Effects) -> None:
        row, self._waiting = self._waiting, []
        for port, query, _ in row:
            effects.port_replies.append((port, Failed(query, code)))

    # The stream.

    def _take_reply(self, reply: object, now: float, effects: Effects) -> None:
        read = self._read
        if read is None or _number_of(reply) != read.number:
            return
        self._read = None
        if self._checkpointing.candidate is not None:
            self._resume(reply, now, effects)
            return
        match reply:
            case m.Records() if isinstance(read, m.Read):
                self._take(read, reply, now, effects)
            case m.StreamDescription():
                self._described(reply.incarnation, reply.info.tail)
            case m.StreamFailed(code=Code.TRIMMED, trim_point=point):
                self._skip_trimmed(point)
            case m.StreamFailed(code=Code.UNKNOWN_STREAM) if isinstance(read, m.Read):
                self._incarnation, self._is_live = None, False  # perhaps there is another one
            case m.StreamFailed(code=code) | Failed(code=code):
                self._fail(code, now, effects)
            case _:
                raise AssertionError(f"{type(reply).__name__} answers no read")

    def _fail(self, code: Code, now: float, effects: Effects) -> None:
        self._is_live = False
        self._refuse_waiting(code, effects)
        if code is Code.UNKNOWN_STREAM:
            self._give_up(effects)
        else:
            self._retry_at = now + RETRY_S

    def _described(self, incarnation: int, tail: int) -> None:
        """The stream as it is now; perhaps not the one that was read so far."""
        if self._position and (incarnation != self._known_incarnation or tail < self._position):
            self._begin()
        self._incarnation = self._known_incarnation = incarnation
        if self._is_new:
            name, post = state_cell(self._name), self._context.post
            self._checkpointing.load(incarnation, self._port, lambda mail: post(name, mail))

    def _resume(self, reply: object, now: float, effects: Effects) -> None:
        """Continue from the checkpoint, if this is the last record that it was made of."""
        saved = self._checkpointing.compare(reply)
        if saved is not None:
            self._table = StateTable.resumed(saved.state, saved.stats, saved.size)
            self._position, self._first, self._is_new = saved.position, saved.first, False
            self._check_size(now, effects)

    def _take(self, read: m.Read, found: m.Records, now: float, effects: Effects) -> None:
        if not found.spans and now < read.wait_until:
            # It was deleted, or is closed, or the node drains.
            self._incarnation, self._is_live = None, False
            self._retry_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
            return
        if found.spans:
            self._pause_s = PAUSE_S
        self._is_new = False
        for span in found.spans:
            self._take_records(span)
        self._position = max(self._position, found.next)
        if not self._check_size(now, effects):
            return
        self._checkpointing.save(self._table, self._first)
        self._is_live = not found.spans or found.next >= found.tail
        if self._is_live:
            row, self._waiting = self._waiting, []
            effects.port_replies += [(port, self._answer(query)) for port, query, _ in row]

    def _check_size(self, now: float, effects: Effects) -> bool:
        """False: the state is too large, and given up."""
        usage, limits, size = self._context.usage, self._context.limits, self._table.size
        usage.set(self._name, size)
        is_fitting = size <= limits.bytes_max and usage.bytes <= limits.node_bytes_max
        if not is_fitting:
            self._refuse_size(now, effects)
        return is_fitting

    def _skip_trimmed(self, trim_point: int) -> None:
        """Records below were trimmed; those that were not read are missed."""
        if self._is_new:
            self._first = trim_point
        else:
            self._table.stats.missed += trim_point - self._position
        self._position = trim_point

    def _take_records(self, span: m.RecordColumns) -> None:
        take = self._table.take
        for body in span.bodies[max(0, self._position - span.first) :]:
            take(body)
        self._position = max(self._position, span.first + len(span.bodies))
        self._checkpointing.applied(span)

    def _refuse_size(self, now: float, effects: Effects) -> None:
        log.warning("state given up: stream=%r bytes=%d", self._name, self._table.size)
        self._refused_until = now + self._context.limits.retry_s
        self._refuse_waiting(Code.STATE_TOO_LARGE, effects)
        self._begin()

    def _give_up(self, effects: Effects) -> None:
        """Hold nothing and read nothing until the next query."""
        if self._read is not None:
            cancel = Batch(self._port, [m.CancelRead(self._read.number)])
            effects.forwards += ((stream_cell(self._name), cancel),)
            self._read = None
        self._checkpointing.save(self._table, self._first, is_end=True)
        self._begin()
        self._incarnation, self._is_unused = None, True

    def _continue(self, now: float, effects: Effects) -> None:
        limits = self._context.limits
        is_refused = now < self._refused_until
        is_busy = self._read is not None or self._checkpointing.is_waiting
        if not (is_busy or self._is_unused or self._is_stopped or is_refused):
            if now >= self._retry_at:
                self._read_on(now, effects)
        waits = [since + limits.wait_s for _, _, since in self._waiting[:1]]
        if self._read is None and self._retry_at > now and not self._is_unused:
            waits.append(self._retry_at)
        if not self._is_unused:
            waits.append(max(self._asked_at + limits.idle_s, now + PAUSE_S))
        self.deadline = min(waits, default=inf)

    def _read_on(self, now: float, effects: Effects) -> None:
        """Read on; at the end of the stream, wait for new records."""
        self._number += 1
        if self._incarnation is None:
            self._read = m.Describe(self._number)
        elif (comparison := self._checkpointing.comparison_read(self._number)) is not None:
            self._read = comparison
        else:
            self._read = m.Read(
                self._number,
                Seek(SeekBy.SEQUENCE, self._position),
                READ_COUNT,
                READ_BYTES,
                now + FOLLOW_S if self._is_live else 0.0,
                EVENTS,
                from_start=True,
                incarnation=self._incarnation,
            )
        effects.forwards += ((stream_cell(self._name), Batch(self._port, [self._read])),)


def _number_of(reply: object) -> int | None:
    match reply:
        case m.Records() | m.StreamDescription() | m.StreamFailed():
            return reply.number
        case Failed(request=m.Read(number=number) | m.Describe(number=number)):
            return number
        case _:
            return None

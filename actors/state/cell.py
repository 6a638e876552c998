"""The cell of a stream's state: made when somebody asks, it reads the stream and goes on reading.

It keeps nothing in the store: the stream is what its state is made of, after a crash and after a
restart as well; only, what was written down of it need not be read again (`Checkpointing`). What it
reads it reads like any client, through a port of its own, so it shows nothing before that is as
durable as the stream promises.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
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
    StreamReplyReceived,
    Value,
    Values,
)
from millpond.actors.state.stats import StateUsage
from millpond.actors.state.table import StateTable
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import state_cell, stream_cell

log = logging.getLogger(__name__)


class CellPort(Port):
    """The port by which a state cell asks its stream."""

    __slots__ = ("_cell", "_post", "number", "received_at")

    def __init__(self, cell: bytes, post: Callable[[bytes, CellMessage], None]) -> None:
        self.number = 0
        self.received_at = 0.0
        self._cell = cell
        self._post = post

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._post(self._cell, StreamReplyReceived(0, self, reply))

    def flush(self) -> None:
        """What was heard is in the mail."""


EVENTS = m.RecordFilter(empty=False, commands=False)
READ_COUNT, READ_BYTES = 1000, 256 * 1024
FOLLOW_S = 3600.0
PAUSE_S, PAUSE_S_MAX, RETRY_S = 0.05, 5.0, 1.0
"""Until the stream is looked at again after a read that ended early, or was refused; at once where
somebody asks."""
SLOW_MS = 1000

Query = DescribeState | GetValue | ListValues


class StateContext(msgspec.Struct, frozen=True):
    """What the state cells of a node have in common. `post` sends mail to a cell."""

    post: Callable[[bytes, CellMessage], None]
    limits: StateLimits
    usage: StateUsage


class StateCell:
    """The state of the stream `name`. `checkpoints`: where it is written down."""

    __slots__ = (
        "_asked_at",
        "_born",
        "_ear",
        "_first",
        "_holding",
        "_is_live",
        "_is_new",
        "_is_over",
        "_is_stopped",
        "_known_born",
        "_name",
        "_number",
        "_pause_s",
        "_position",
        "_read",
        "_refused_until",
        "_resuming",
        "_retry_at",
        "_row",
        "_shared",
        "deadline",
    )

    def __init__(
        self, name: bytes, shared: StateContext, checkpoints: CheckpointStore | None = None
    ) -> None:
        self._name = name
        self._shared = shared
        self._ear = CellPort(state_cell(name), shared.post)
        self._resuming = Checkpointing(name, checkpoints, shared.limits.save_every)
        self._number = 0
        self._read: m.Read | m.Describe | None = None
        """What the stream was asked and has not answered."""
        self._known_born = 0
        self._born: int | None = None
        """The stream's incarnation; None: it has to be asked, perhaps it is another one now."""
        self._pause_s = PAUSE_S
        self._row: list[tuple[Port, Query, float]] = []
        """Who waits until the state is that of the stream, and since when."""
        self._asked_at = -inf
        self._retry_at = -inf
        self._refused_until = -inf
        self._is_stopped = False
        self._is_over = True
        """Nothing is held and nothing is read: the cell may go."""
        self._begin()
        self.deadline = inf

    def _begin(self) -> None:
        self._holding = StateTable()
        self._position = 0
        self._first = 0
        self._is_new = True
        """Nothing was read yet."""
        self._is_live = False
        self._resuming.begin()
        self._shared.usage.note(self._name, 0)

    @property
    def is_empty(self) -> bool:
        return self._is_over and not self._row

    @property
    def is_settled(self) -> bool:
        return self.is_empty

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return [(port, request) for port, request, _ in self._row]

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            match message:
                case StreamReplyReceived(ear=ear, reply=reply):
                    if ear is self._ear:
                        self._hear(reply, now, effects)
                case CheckpointLoaded(ear=ear, saved=saved):
                    if ear is self._ear:
                        self._resuming.hear(saved)
                case DescribeState() | GetValue() | ListValues() if batch.port is not None:
                    self._ask(batch.port, message, now, effects)
                case Detach():
                    self._row = [each for each in self._row if each[0] is not batch.port]
                case Drain():
                    self._is_stopped = True
                    self._resuming.save(self._holding, self._first, is_end=True)
                    self._refuse_row(Code.OUTCOME_UNKNOWN, effects)
                case StreamRequest() if batch.port is not None:
                    effects.replies.append((batch.port, Failed(message, Code.MALFORMED)))
                case _:
                    raise AssertionError(f"{type(message).__name__} is not for states")
        self._go_on(now, effects)
        return effects

    def wake(self, now: float) -> Effects:
        """Somebody waited long enough, a read is tried again, or nobody asks any more."""
        effects = Effects()
        limits = self._shared.limits
        late = [each for each in self._row if each[2] + limits.wait_s <= now]
        self._row = [each for each in self._row if each[2] + limits.wait_s > now]
        for port, request, _ in late:
            effects.replies.append((port, Failed(request, Code.SLOW_DOWN, SLOW_MS)))
        if not self._row and self._asked_at + limits.idle_s <= now:
            self._give_up(effects)
        self._go_on(now, effects)
        return effects

    # Questions.

    def _ask(self, port: Port, query: Query, now: float, effects: Effects) -> None:
        self._asked_at = now
        if now < self._refused_until:
            effects.replies.append((port, Failed(query, Code.STATE_TOO_LARGE)))
        elif self._is_live:
            effects.replies.append((port, self._answer(query)))
        elif self._is_stopped or len(self._row) >= self._shared.limits.waiting_max:
            effects.replies.append((port, Failed(query, Code.BUFFER_FULL, SLOW_MS)))
        else:
            self._is_over = False
            self._retry_at = now
            self._row.append((port, query, now))

    def _answer(self, query: Query) -> Reply:
        number, position, holding = query.number, self._position, self._holding
        match query:
            case GetValue(kind=kind, key=key):
                return Value(number, position, holding.state.get(kind, key))
            case ListValues(kind=kind, after=after, count=count, bytes_max=bytes_max):
                rows, more = holding.page(kind, after, count, bytes_max)
                return Values(number, position, rows, more)
            case DescribeState():
                return self._describe(number)
            case _:
                assert_never(query)

    def _describe(self, number: int) -> StateDescribed:
        state, tally = self._holding.state, self._holding.tally
        info = StateInfo(
            self._position,
            self._first,
            {kind: len(state.get_type(kind)) for kind in state.types[:TYPES_MAX]},
            state.type_count,
            self._holding.weight,
            tally.changes,
            tally.controls,
            tally.resets,
            tally.snapshots,
            tally.unmatched,
            tally.missed,
            tally.in_snapshot,
            dict(tally.rejected),
        )
        return StateDescribed(number, info)

    def _refuse_row(self, code: Code, effects: Effects) -> None:
        row, self._row = self._row, []
        for port, query, _ in row:
            effects.replies.append((port, Failed(query, code)))

    # The stream.

    def _hear(self, reply: object, now: float, effects: Effects) -> None:
        read = self._read
        if read is None or _number_of(reply) != read.number:
            return
        self._read = None
        if self._resuming.saved is not None:
            self._resume(reply, now, effects)
            return
        match reply:
            case m.Records() if isinstance(read, m.Read):
                self._take(read, reply, now, effects)
            case m.StreamDescription():
                self._meet(reply.incarnation, reply.info.tail)
            case m.StreamFailed(code=Code.TRIMMED, trim_point=point):
                self._pass_over(point)
            case m.StreamFailed(code=Code.UNKNOWN_STREAM) if isinstance(read, m.Read):
                self._born, self._is_live = None, False  # perhaps there is another one
            case m.StreamFailed(code=code) | Failed(code=code):
                self._fail(code, now, effects)
            case _:
                raise AssertionError(f"{type(reply).__name__} answers no read")

    def _fail(self, code: Code, now: float, effects: Effects) -> None:
        self._is_live = False
        self._refuse_row(code, effects)
        if code is Code.UNKNOWN_STREAM:
            self._give_up(effects)
        else:
            self._retry_at = now + RETRY_S

    def _meet(self, born: int, tail: int) -> None:
        """This is the stream that there is now; perhaps not the one that was read so far."""
        if self._position and (born != self._known_born or tail < self._position):
            self._begin()
        self._born = self._known_born = born
        if self._is_new:
            name, post = state_cell(self._name), self._shared.post
            self._resuming.ask(born, self._ear, lambda mail: post(name, mail))

    def _resume(self, reply: object, now: float, effects: Effects) -> None:
        """Go on from what was written down, if this is the record that it was made of last."""
        saved = self._resuming.compare(reply)
        if saved is not None:
            self._holding = StateTable.resumed(saved.state, saved.tally, saved.weight)
            self._position, self._first, self._is_new = saved.position, saved.first, False
            self._weigh(now, effects)

    def _take(self, read: m.Read, found: m.Records, now: float, effects: Effects) -> None:
        if not found.spans and now < read.wait_until:
            # It was deleted, or is closed, or the node drains.
            self._born, self._is_live = None, False
            self._retry_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, PAUSE_S_MAX)
            return
        if found.spans:
            self._pause_s = PAUSE_S
        self._is_new = False
        for span in found.spans:
            self._take_span(span)
        self._position = max(self._position, found.next)
        if not self._weigh(now, effects):
            return
        self._resuming.save(self._holding, self._first)
        self._is_live = not found.spans or found.next >= found.tail
        if self._is_live:
            row, self._row = self._row, []
            effects.replies += [(port, self._answer(query)) for port, query, _ in row]

    def _weigh(self, now: float, effects: Effects) -> bool:
        """False: it is too much, and given up."""
        usage, limits, weight = self._shared.usage, self._shared.limits, self._holding.weight
        usage.note(self._name, weight)
        is_fitting = weight <= limits.bytes_max and usage.bytes <= limits.node_bytes_max
        if not is_fitting:
            self._overflow(now, effects)
        return is_fitting

    def _pass_over(self, trim_point: int) -> None:
        """What is below was trimmed; if it was not read by then, it is missed."""
        if self._is_new:
            self._first = trim_point
        else:
            self._holding.tally.missed += trim_point - self._position
        self._position = trim_point

    def _take_span(self, span: m.RecordColumns) -> None:
        take = self._holding.take
        for body in span.bodies[max(0, self._position - span.first) :]:
            take(body)
        self._position = max(self._position, span.first + len(span.bodies))
        self._resuming.take(span)

    def _overflow(self, now: float, effects: Effects) -> None:
        log.warning("state given up: stream=%r bytes=%d", self._name, self._holding.weight)
        self._refused_until = now + self._shared.limits.retry_s
        self._refuse_row(Code.STATE_TOO_LARGE, effects)
        self._begin()

    def _give_up(self, effects: Effects) -> None:
        """Hold nothing and read nothing, until somebody asks."""
        if self._read is not None:
            cancel = Batch(self._ear, [m.CancelRead(self._read.number)])
            effects.forwards += ((stream_cell(self._name), cancel),)
            self._read = None
        self._resuming.save(self._holding, self._first, is_end=True)
        self._begin()
        self._born, self._is_over = None, True

    def _go_on(self, now: float, effects: Effects) -> None:
        limits = self._shared.limits
        is_refused = now < self._refused_until
        is_busy = self._read is not None or self._resuming.is_waiting
        if not (is_busy or self._is_over or self._is_stopped or is_refused):
            if now >= self._retry_at:
                self._look(now, effects)
        waits = [since + limits.wait_s for _, _, since in self._row[:1]]
        if self._read is None and self._retry_at > now and not self._is_over:
            waits.append(self._retry_at)
        if not self._is_over:
            waits.append(max(self._asked_at + limits.idle_s, now + PAUSE_S))
        self.deadline = min(waits, default=inf)

    def _look(self, now: float, effects: Effects) -> None:
        """Read on; at the end of the stream, wait for what comes."""
        self._number += 1
        if self._born is None:
            self._read = m.Describe(self._number)
        elif (question := self._resuming.question(self._number)) is not None:
            self._read = question
        else:
            self._read = m.Read(
                self._number,
                Seek(SeekBy.SEQUENCE, self._position),
                READ_COUNT,
                READ_BYTES,
                now + FOLLOW_S if self._is_live else 0.0,
                EVENTS,
                from_start=True,
                incarnation=self._born,
            )
        effects.forwards += ((stream_cell(self._name), Batch(self._ear, [self._read])),)


def _number_of(reply: object) -> int | None:
    match reply:
        case m.Records() | m.StreamDescription() | m.StreamFailed():
            return reply.number
        case Failed(request=m.Read(number=number) | m.Describe(number=number)):
            return number
        case _:
            return None

"""What leaves cells: replies and mail, held back until what came before them is kept.

Nothing is shown to anyone before it is as durable as promised, so the effects of a batch wait in
line behind the commits of their cell; the cell itself goes on. Only pings and hang-ups do not wait:
they promise nothing. Each connection that was touched is flushed once, at the end of the outermost
batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Attached,
    Batch,
    CellMessage,
    DeadLetter,
    DeadLettersRequeued,
    DeadLetterStored,
    Detach,
    Failed,
    Hangup,
    Port,
    Probe,
    Reply,
    StreamReply,
    StreamRequest,
    TeeAppend,
    TeeAppended,
)
from millpond.actors.runtime.cell import Behaviour, Cell, Effects, PendingEffects
from millpond.actors.store.interface import Commit, Fault, for_each
from millpond.actors.streams.messages import CancelRead, FinishRead, Read, StreamFailed

AnsweredRequests = set[tuple[Port, int]]
"""Requests of streams that were answered, by asker and number."""

_UNANSWERED = (
    DeadLetter,
    DeadLetterStored,
    CancelRead,
    FinishRead,
    Detach,
    TeeAppend,
    TeeAppended,
    DeadLettersRequeued,
)


class EffectQueue:
    """One for all cells. `forward` takes a batch for another cell; `committed` hears of each commit
    that is done, after its effects were released, or refused because of the fault."""

    __slots__ = ("_cells", "_commit", "_committed", "_depth", "_forward", "_now", "_touched")

    def __init__(
        self,
        forward: Callable[[bytes, Batch], None],
        committed: Callable[[Cell, Fault | None], None],
        now: Callable[[], float],
    ) -> None:
        self._forward = forward
        self._committed = committed
        self._now = now
        self._touched: dict[Port, None] = {}
        self._commit: Commit | None = None
        self._cells: list[Cell] = []
        self._depth = 0

    def enter(self) -> None:
        """A batch begins: what it sends is flushed at the end of the outermost one."""
        self._depth += 1

    def leave(self) -> None:
        """A batch ends. What a flush makes cells do is no outermost batch: it is flushed behind it,
        and not within it, or a connection that asks on would be a level for each of many."""
        if self._depth > 1:
            self._depth -= 1
            return
        touched = self._touched
        try:
            while touched:
                port, _ = touched.popitem()
                port.flush()
        finally:
            try:
                if touched:  # one of them could not be written to
                    for_each(lambda port: port.flush(), self._take_touched())
            finally:
                self._depth = 0

    def _take_touched(self) -> Iterator[Port]:
        while self._touched:
            yield self._touched.popitem()[0]

    def release(self, batch: Batch | None, effects: Effects) -> None:
        """Send replies and post mail; within a batch."""
        touched = self._touched
        if effects.answers:
            assert batch is not None and batch.port is not None, "answers have an asker"
            touched[batch.port] = None
            batch.port.send(effects.answers)
        for port, reply in effects.replies:
            touched[port] = None
            port.send((reply,))
        for name, message in effects.posts:
            self._forward(name, Batch(None, [message]))
        for name, batch in effects.forwards:
            self._forward(name, batch)

    def refuse(self, batch: Batch, code: Code, told: AnsweredRequests | None = None) -> None:
        """Nobody hangs: every message of the batch that has an asker is answered."""
        port = batch.port
        if port is None:
            for owner, message in zip(batch.ports or (), batch.messages, strict=False):
                self.refuse(Batch(owner, [message]), code, told)
            for message in batch.messages:
                if isinstance(message, TeeAppend):
                    refusal = TeeAppended(message.number, code=code)
                    self._forward(message.channel, Batch(None, [refusal]))
            return
        asked = [each for each in batch.messages if not isinstance(each, _UNANSWERED)]
        if told is not None:
            told.update((port, each.number) for each in asked if isinstance(each, StreamRequest))
        self.enter()
        try:
            self._touched[port] = None
            port.send([Failed(each, code) for each in asked])
        finally:
            self.leave()

    def refuse_owed(
        self,
        behaviour: Behaviour | None,
        done: Iterable[tuple[Batch | None, Effects | None]],
        code: Code,
        cell: Cell | None = None,
    ) -> None:
        """What a behaviour did is undone and what it took is lost: all who asked for it hear so.

        `done` are batches and what came of them, as far as it has not left. A request may be found
        in several places, but nobody is told twice. With a `cell`, reads that wait and were asked
        before are none of this: they go back into its mail, to wait for what will be kept.
        """
        told: AnsweredRequests = set() if cell is None else _ask_again(cell, behaviour, done)
        refusals: list[tuple[Port, Reply]] = []
        batches: list[Batch] = []
        for batch, effects in done:
            if batch is not None:
                batches.append(batch)
            for port, reply in effects.replies if effects is not None else ():
                if isinstance(reply, StreamReply):
                    refusals.append((port, StreamFailed(reply.number, code)))
        if behaviour is not None:
            refusals += ((port, Failed(request, code)) for port, request in behaviour.unanswered)
        self.enter()
        try:
            for_each(lambda batch: self.refuse(batch, code, told), batches)
            for_each(partial(self._refuse_once, told), refusals)
        finally:
            self.leave()

    def _refuse_once(self, told: AnsweredRequests, refusal: tuple[Port, Reply]) -> None:
        port, reply = refusal
        number = _number_of(reply)
        if (port, number) not in told:
            told.add((port, number))
            self._touched[port] = None
            port.send((reply,))

    def hold(
        self,
        cell: Cell,
        batch: Batch | None,
        effects: Effects,
        commit: Commit | None,
        now: float,
    ) -> None:
        """Release the effects when `commit` is done, or with what is in line before them; what
        liveness says at once."""
        # Only a wake looks at liveness.
        verdicts = _take_verdicts(cell, effects) if batch is None and effects.replies else []
        if cell.pending is None:
            cell.pending, cell.pending_since = deque(), now
        last = cell.pending[-1].commit if cell.pending else None
        held = PendingEffects(batch, effects, commit or last)
        cell.pending.append(held)
        if batch is not None:
            cell.pending_bytes += batch.size_bytes
        if commit is not None and commit is not last:
            self._wait(cell, commit)
        for port, reply in verdicts:
            self._touched[port] = None
            port.send((reply,))

    def _wait(self, cell: Cell, commit: Commit) -> None:
        """Hear of `commit` once for all cells; those that write in one pass share it."""
        if commit is self._commit and not commit.is_done:
            self._cells.append(cell)
            return
        self._commit, self._cells = commit, [cell]
        commit.when_done(partial(self._done, commit, self._cells))

    def _done(self, commit: Commit, cells: list[Cell], fault: Fault | None) -> None:
        """A failure at one batch or cell must not hold up the others: nobody would wake them."""
        self.enter()
        try:
            for_each(partial(self._settle, commit, fault), cells)
        finally:
            self.leave()

    def _settle(self, commit: Commit, fault: Fault | None, cell: Cell) -> None:
        try:
            if fault is None:
                cell.end_wait(self._now())
                self._release_pending(cell, commit)
            else:
                self._refuse_pending(cell)
        finally:
            self._committed(cell, fault)

    def _release_pending(self, cell: Cell, commit: Commit) -> None:
        """Release what waited for `commit`, in order; what is not taken yet still holds up what
        comes after."""
        held = cell.pending
        try:
            while held and held[0].commit is commit:
                each = held.popleft()
                if each.batch is not None:
                    cell.pending_bytes -= each.batch.size_bytes
                if cell.late is not None:
                    cell.part(each.effects)
                self.release(each.batch, each.effects)
        finally:
            if not held:
                cell.pending = None
            elif held[0].commit is commit:  # one of them could not be released
                self._release_pending(cell, commit)

    def _refuse_pending(self, cell: Cell) -> None:
        """What came after something that is not kept was done upon it."""
        held, cell.pending, cell.pending_bytes = cell.pending, None, 0
        cell.give_up(held or ())
        done = [(each.batch, each.effects) for each in held or ()]
        # Who is refused may leave at once: that is for the behaviour that comes after this one.
        was_busy, cell.is_busy = cell.is_busy, True
        try:
            self.refuse_owed(cell.behaviour, done, Code.STORAGE_FAILED, cell)
        finally:
            cell.is_busy = was_busy


def _ask_again(
    cell: Cell, behaviour: Behaviour | None, done: Iterable[tuple[Batch | None, Effects | None]]
) -> AnsweredRequests:
    """Put the reads that waited before the first of these batches back into the cell's mail, with
    what was said of them since; before what is there, which was said later. Which ones they are."""
    if cell.refusal is not None:
        return set()
    batches = [batch for batch, _ in done if batch is not None and batch.port is not None]
    asked = {
        (batch.port, each.number)
        for batch in batches
        for each in batch.messages
        if isinstance(each, Read)
    }
    awaited = [pair for _, effects in done if effects is not None for pair in effects.awaited]
    again: AnsweredRequests = set()
    mail: list[Batch] = []
    for port, request in (*awaited, *(behaviour.unanswered if behaviour is not None else ())):
        place = (port, request.number)
        if isinstance(request, Read) and request.wait_until and place not in asked | again:
            again.add(place)
            mail.append(Batch(port, [request]))
    for batch in batches:
        words: list[CellMessage] = [
            word for word in batch.messages if isinstance(word, CancelRead | FinishRead | Detach)
        ]
        if words:
            mail.append(Batch(batch.port, words))
    for each in reversed(mail):
        cell.put_in_mailbox(each, first=True)
    return again


def _number_of(reply: Reply) -> int:
    request = reply.request if isinstance(reply, Failed) else reply
    assert isinstance(request, StreamRequest | StreamReply), "only these are owed"
    return request.number


def _take_verdicts(cell: Cell, effects: Effects) -> list[tuple[Port, Reply]]:
    """Pings and hang-ups, but those to connections whose welcome still waits in line."""
    newcomers = {
        held.batch.port
        for held in cell.pending or ()
        if held.batch is not None
        and any(isinstance(each, Attached) for each in held.effects.answers)
    }
    verdicts: list[tuple[Port, Reply]] = []
    others: list[tuple[Port, Reply]] = []
    for port, reply in effects.replies:
        is_verdict = isinstance(reply, Probe | Hangup) and port not in newcomers
        (verdicts if is_verdict else others).append((port, reply))
    effects.replies = others
    return verdicts

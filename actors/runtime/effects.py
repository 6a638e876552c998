"""Effects leaving cells: replies and messages, held back until the changes before them are stored.

Nothing is shown to anyone before it is as durable as promised, so the effects of a batch wait
behind the commits of their cell; the cell itself goes on. Only urgent replies do not wait: they
promise nothing. Each connection that got replies is flushed once, at the end of the outermost
batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from functools import partial

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Attached,
    Batch,
    CellMessage,
    DeferredReply,
    DeferredRequest,
    Failed,
    Port,
    Reply,
)
from millpond.actors.runtime.cell import LATE_S, Behaviour, Cell, Effects, PendingEffects
from millpond.actors.store.interface import Commit, Fault, for_each

RequestKey = tuple[Port, int]
"""A deferred request, by its port and number."""

Undone = Collection[tuple[Batch | None, Effects | None]]
"""Batches whose changes are lost, and what came of them, as far as it has not left."""


class EffectQueue:
    """The effects of all cells. `forward` takes a batch for another cell; `committed` is told of
    each commit that is done, after its effects were released, or refused because of the fault."""

    __slots__ = ("_cells", "_commit", "_committed", "_forward", "_now", "_touched", "depth")

    def __init__(
        self,
        forward: Callable[[bytes, Batch], None],
        committed: Callable[[Cell, Fault | None, float], None],
        now: Callable[[], float],
    ) -> None:
        self._forward = forward
        self._committed = committed
        self._now = now
        self._touched: dict[Port, None] = {}
        self._commit: Commit | None = None
        self._cells: list[Cell] = []
        self.depth = 0
        """The batches under way. One that begins adds 1, and calls `leave` in the end: replies are
        flushed at the end of the outermost one."""

    def leave(self) -> None:
        """A batch ends. A batch that a flush leads to is no outermost one: it is flushed behind
        it, and not within it, or each request of a pipelining client would be a level of calls."""
        if self.depth > 1:
            self.depth -= 1
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
                self.depth = 0

    def _take_touched(self) -> Iterator[Port]:
        while self._touched:
            yield self._touched.popitem()[0]

    def _send(self, port: Port, reply: Reply) -> None:
        self._touched[port] = None
        port.send((reply,))

    def release(self, batch: Batch | None, effects: Effects) -> None:
        """Send replies and messages; within a batch."""
        touched = self._touched
        if effects.batch_replies:
            assert batch is not None and batch.port is not None, "they go to the batch's port"
            touched[batch.port] = None
            batch.port.send(effects.batch_replies)
        if effects.urgent:
            for port, reply in effects.urgent:
                self._send(port, reply)
        if effects.port_replies:
            for port, reply in effects.port_replies:
                touched[port] = None
                port.send((reply,))
        if effects.posts or effects.forwards:
            for name, message in effects.posts:
                self._forward(name, Batch(None, [message]))
            for name, batch in effects.forwards:
                self._forward(name, batch)

    # Effects that wait for the store.

    def defer(
        self,
        cell: Cell,
        batch: Batch | None,
        effects: Effects,
        commit: Commit | None,
        now: float,
    ) -> None:
        """Release the effects when `commit` is done, or with those that wait before them; urgent
        replies at once."""
        urgent = _take_urgent(cell, effects) if effects.urgent else ()
        if cell.pending is None:
            cell.pending, cell.pending_since = deque(), now
        last = cell.pending[-1].commit if cell.pending else None
        cell.pending.append(PendingEffects(batch, effects, commit or last))
        if batch is not None:
            cell.pending_bytes += batch.size_bytes
        if commit is not None and commit is not last:
            if commit is self._commit and not commit.is_done:
                self._cells.append(cell)  # those that write in one pass share a commit
            else:
                self._commit, self._cells = commit, [cell]
                commit.when_done(partial(self._done, commit, self._cells))
        for port, reply in urgent:
            self._send(port, reply)

    def _done(self, commit: Commit, cells: list[Cell], fault: Fault | None) -> None:
        """A failure at one batch or cell must not hold up the others: nothing would wake them."""
        self.depth += 1
        try:
            if len(cells) == 1:  # as most commits of few clients
                self._end_commit(commit, fault, self._now(), cells[0])
            else:
                for_each(partial(self._end_commit, commit, fault, self._now()), cells)
        finally:
            self.leave()

    def _end_commit(self, commit: Commit, fault: Fault | None, now: float, cell: Cell) -> None:
        try:
            if fault is not None:
                self._refuse_pending(cell)
            else:
                if cell.late is None and now >= cell.pending_since + LATE_S:
                    cell.late = []
                self._release_pending(cell, commit)
        finally:
            self._committed(cell, fault, now)

    def _release_pending(self, cell: Cell, commit: Commit) -> None:
        """Release what waited for `commit`, in order; what is not stored yet still holds up what
        comes after."""
        pending = cell.pending
        try:
            while pending and pending[0].commit is commit:
                each = pending.popleft()
                if each.batch is not None:
                    cell.pending_bytes -= each.batch.size_bytes
                if cell.late is not None:
                    cell.revise(each.effects)
                self.release(each.batch, each.effects)
        finally:
            if not pending:
                cell.pending = None
            elif pending[0].commit is commit:  # one of them could not be released
                self._release_pending(cell, commit)

    def _refuse_pending(self, cell: Cell) -> None:
        """The changes of a commit are lost, and so is everything that was done upon them."""
        lost, cell.pending, cell.pending_bytes = cell.pending or (), None, 0
        cell.give_up([each.effects for each in lost])
        undone = [(each.batch, each.effects) for each in lost]
        # A connection that is refused may detach at once: that is for the next behaviour.
        was_busy, cell.is_busy = cell.is_busy, True
        try:
            repeated = set() if cell.refusal is not None else _repeat(cell, undone)
            self.refuse_undone(cell.behaviour, undone, Code.STORAGE_FAILED, repeated)
        finally:
            cell.is_busy = was_busy

    # Refusals.

    def refuse(self, batch: Batch, code: Code, answered: set[RequestKey] | None = None) -> None:
        """Answer every message of the batch that is answered at all, so that no client hangs."""
        port = batch.port
        if port is None:
            for owner, message in zip(batch.ports or (), batch.messages, strict=False):
                self.refuse(Batch(owner, [message]), code, answered)
            for message in batch.messages:
                if (bounced := message.bounced(code)) is not None:
                    self._forward(bounced[0], Batch(None, [bounced[1]]))
            return
        requests = [each for each in batch.messages if each.is_answered]
        if answered is not None:
            answered.update(
                (port, each.number) for each in requests if isinstance(each, DeferredRequest)
            )
        self.depth += 1
        try:
            self._touched[port] = None
            port.send([Failed(each, code) for each in requests])
        finally:
            self.leave()

    def refuse_undone(
        self,
        behaviour: Behaviour | None,
        undone: Undone,
        code: Code,
        answered: set[RequestKey],
    ) -> None:
        """Refuse the requests of batches that are undone, those that a reply of theirs was for,
        and those that the behaviour has not answered: each one once, and none of `answered`."""
        refusals: list[tuple[Port, int, Reply]] = []
        for _, effects in undone:
            for port, reply in effects.port_replies if effects is not None else ():
                if isinstance(reply, DeferredReply):
                    refusals.append((port, reply.number, reply.refusal(code)))
        if behaviour is not None:
            for port, request in behaviour.unanswered:
                refusals.append((port, request.number, Failed(request, code)))
        batches = [batch for batch, _ in undone if batch is not None]
        self.depth += 1
        try:
            for_each(lambda batch: self.refuse(batch, code, answered), batches)
            for_each(partial(self._refuse_once, answered), refusals)
        finally:
            self.leave()

    def _refuse_once(self, answered: set[RequestKey], refusal: tuple[Port, int, Reply]) -> None:
        port, number, reply = refusal
        if (port, number) not in answered:
            answered.add((port, number))
            self._send(port, reply)


def _repeat(cell: Cell, undone: Undone) -> set[RequestKey]:
    """Put repeatable requests from before these batches back into the cell's mailbox, before what
    is there, with the notices about them that came since. Gives those requests."""
    behaviour = cell.behaviour
    batches = [batch for batch, _ in undone if batch is not None and batch.port is not None]
    refused = {
        (batch.port, each.number)
        for batch in batches
        for each in batch.messages
        if each.is_answered and isinstance(each, DeferredRequest)
    }
    earlier = [pair for _, effects in undone if effects is not None for pair in effects.deferred]
    if behaviour is not None:
        earlier += behaviour.unanswered
    repeated: set[RequestKey] = set()
    mailbox: list[Batch] = []
    for port, request in earlier:
        key = (port, request.number)
        if request.is_repeatable and key not in refused | repeated:
            repeated.add(key)
            mailbox.append(Batch(port, [request]))
    for batch in batches:
        notices: list[CellMessage] = [
            each for each in batch.messages if each.is_repeatable and not each.is_answered
        ]
        if notices:
            mailbox.append(Batch(batch.port, notices))
    for each in reversed(mailbox):
        cell.enqueue(each, first=True)
    return repeated


def _take_urgent(cell: Cell, effects: Effects) -> list[tuple[Port, Reply]]:
    """The urgent replies, but those to connections that do not know yet that they are attached."""
    newcomers = {
        each.batch.port
        for each in cell.pending or ()
        if each.batch is not None
        and any(isinstance(a, Attached) for a in each.effects.batch_replies)
    }
    urgent = [pair for pair in effects.urgent if pair[0] not in newcomers]
    effects.urgent = [pair for pair in effects.urgent if pair[0] in newcomers]
    return urgent

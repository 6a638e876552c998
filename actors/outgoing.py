"""What leaves cells: replies and mail, held back until what came before them is kept.

Nothing is shown to anyone before it is as durable as promised, so the effects of a batch wait in
line behind the commits of their cell; the cell itself goes on. Each connection that was touched is
flushed once, at the end of the outermost batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from actors.cell import Cell, Effects, Held
from actors.errors import Code
from actors.messages import Batch, Buried, Bury, Failed, Mail, Port
from actors.store.seam import Commit, Fault


class Outgoing:
    """One for all cells. `post` takes mail for another cell; `committed` hears of each commit that
    is done, after its effects were released, or refused because of the fault."""

    __slots__ = ("_cells", "_commit", "_committed", "_depth", "_post", "_touched")

    def __init__(
        self,
        post: Callable[[bytes, Mail], None],
        committed: Callable[[Cell, Fault | None], None],
    ) -> None:
        self._post = post
        self._committed = committed
        self._touched: dict[Port, None] = {}
        self._commit: Commit | None = None
        self._cells: list[Cell] = []
        self._depth = 0

    def enter(self) -> None:
        """A batch begins: what it sends is flushed at the end of the outermost one."""
        self._depth += 1

    def leave(self) -> None:
        """A batch ends."""
        self._depth -= 1
        if self._depth == 0:
            touched = self._touched
            while touched:
                port, _ = touched.popitem()
                port.flush()

    def release(self, batch: Batch | None, effects: Effects) -> None:
        """Send replies and post mail; within a batch."""
        touched = self._touched
        if effects.answers:
            assert batch is not None and batch.port is not None, "answers have an asker"
            batch.port.send(effects.answers)
            touched[batch.port] = None
        for port, reply in effects.replies:
            port.send((reply,))
            touched[port] = None
        for name, message in effects.posts:
            self._post(name, message)

    def refuse(self, batch: Batch, code: Code) -> None:
        """Nobody hangs: every message of the batch that has an asker is answered."""
        if batch.port is None:
            return
        self.enter()
        batch.port.send(
            [Failed(each, code) for each in batch.messages if not isinstance(each, Bury | Buried)]
        )
        self._touched[batch.port] = None
        self.leave()

    def hold(
        self, cell: Cell, batch: Batch | None, effects: Effects, commit: Commit | None
    ) -> None:
        """Release the effects when `commit` is done, or with what is in line before them."""
        if cell.held is None:
            cell.held = deque()
        last = cell.held[-1].commit if cell.held else None
        held = Held(batch, effects, commit or last)
        cell.held.append(held)
        if batch is not None:
            cell.held_bytes += batch.size_bytes
        if commit is not None and commit is not last:
            self._wait(cell, commit)

    def _wait(self, cell: Cell, commit: Commit) -> None:
        """Hear of `commit` once for all cells; those that write in one pass share it."""
        if commit is self._commit and not commit.is_done:
            self._cells.append(cell)
            return
        self._commit, self._cells = commit, [cell]
        commit.when_done(partial(self._done, commit, self._cells))

    def _done(self, commit: Commit, cells: list[Cell], fault: Fault | None) -> None:
        self.enter()
        for cell in cells:
            if fault is None:
                self._release_held(cell, commit)
            else:
                self._refuse_held(cell)
            self._committed(cell, fault)
        self.leave()

    def _release_held(self, cell: Cell, commit: Commit) -> None:
        held = cell.held
        while held and held[0].commit is commit:
            each = held.popleft()
            if each.batch is not None:
                cell.held_bytes -= each.batch.size_bytes
            self.release(each.batch, each.effects)
        if not held:
            cell.held = None

    def _refuse_held(self, cell: Cell) -> None:
        """What came after something that is not kept was done upon it."""
        held, cell.held, cell.held_bytes = cell.held, None, 0
        for each in held or ():
            if each.batch is not None:
                self.refuse(each.batch, Code.STORAGE_FAILED)

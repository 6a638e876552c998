"""The scheduler of a node's cells: inline while that is possible, in bounded turns otherwise.

A batch runs in its sender's turn if its cell is idle, and waits in the cell's mailbox if the cell
is busy, paused after a crash, or had its share. Mailboxes are bounded in bytes: `submit` tells the
sender when to stop reading, `on_capacity` when to go on. One heap has every deadline.

The mailbox survives a crash of the behaviour; the batch in hand is not run again, and its sender
gets OUTCOME_UNKNOWN. A cell that keeps crashing is quarantined, without effect on the others.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from random import Random

import anyio
import anyio.lowlevel
import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Attach, Batch, Detach, Drain, Port
from millpond.actors.runtime.cell import (
    Behaviour,
    Cell,
    CellSnapshot,
    ClockObserver,
    Effects,
    Load,
    Spawn,
)
from millpond.actors.runtime.effects import EffectQueue
from millpond.actors.runtime.supervisor import RestartPolicy, Restarts, RestartsExceeded
from millpond.actors.runtime.timers import Timers
from millpond.actors.store.interface import Deferred, Fault, Store

log = logging.getLogger(__name__)

SLEEP_S_MIN = 1e-6
SLEEP_S_MAX = 30.0
"""The scheduler reads the clock this often, so that a machine that slept is noticed."""
WAKES_MAX = 500
"""The deadlines of a turn: others that have passed are for the next ones, and the event loop
handles other events in between. A wake takes 4 to 13 us."""
LATER_MAX = 8
"""The cells of a turn that get batches that nobody waits for."""
LOAD_RETRY_S = 5.0
"""A partition that could not be read is tried again after this; meanwhile it refuses."""
FAULT_RETRY_S = 0.5
"""A cell whose writes fail is built anew by itself this often; by a request at once."""


class SchedulerSettings(msgspec.Struct, frozen=True):
    """Limits of the runtime. `turn_messages` is one cell's share of a turn."""

    turn_messages: int = 512
    mailbox_bytes: int = 2**20
    passivate_after_s: float = 60.0
    restarts: RestartPolicy = RestartPolicy()


class RuntimeCounters(msgspec.Struct):
    """Counts since the start."""

    queued: int = 0
    crashes: int = 0
    quarantines: int = 0
    passivations: int = 0


class Scheduler:
    """The cells of one node. Everything but `run` is synchronous; call it in the loop's thread."""

    def __init__(
        self,
        store: Store,
        spawn: Spawn,
        now: Callable[[], float],
        rng: Random,
        settings: SchedulerSettings,
        load: Load | None = None,
    ) -> None:
        self._store = store
        self._load = load or store.load
        self._spawn = spawn
        self._now = now
        self._rng = rng
        self._settings = settings
        self.timers = Timers(self._deadline_moved)
        self.counters = RuntimeCounters()
        self.cells: dict[bytes, Cell] = {}
        self.cells_made = 0
        """Counts cells since the start, those that were forgotten as well."""
        self._queue: deque[Cell] = deque()
        self._later: deque[Cell] = deque()
        """Cells with batches that nobody waits for."""
        self._waiting: dict[bytes, list[Callable[[], None]]] = {}
        self._effects = EffectQueue(self._forward, self._committed, now)
        self._wake_cell = self._wake  # one bound method for all cells, not one for each
        self._kick: anyio.Event | None = None
        self._sleeps_until = inf
        self._is_draining = False

    def submit(self, name: bytes, batch: Batch, now: float) -> bool:
        """Run or queue a batch. False: it was taken, but wait for `on_capacity` before the next."""
        cell = self.cells.get(name)
        if cell is None:
            cell = self._create(name, now)
        if (
            cell.is_busy
            or cell.mailbox
            or cell.resumes_at > now
            or cell.pending_bytes > self._settings.mailbox_bytes
        ):
            return self._defer(cell, batch, now)
        if len(batch.messages) > self._settings.turn_messages:
            return self._enqueue(cell, batch, now)
        self._run(cell, batch, now)
        return True

    def submit_later(self, name: bytes, batch: Batch, now: float) -> None:
        """Queue a batch that nobody waits for: a few cells a turn get theirs, in between others.
        The cell takes it in its order with other batches."""
        cell = self.cells.get(name) or self._create(name, now)
        if cell.is_queued or cell.refusal is not None or cell.resumes_at > now:
            self._defer(cell, batch, now)
            return
        cell.enqueue(batch)
        self.counters.queued += 1
        self._queue_cell(cell, self._later)

    def attach(self, name: bytes, port: Port, request: Attach, now: float) -> bool:
        """Attach a connection to a cell, which remembers it across a crash of its behaviour."""
        cell = self.cells.get(name) or self._create(name, now)
        if cell.attachments is None:
            cell.attachments = {}
        cell.attachments[port] = request
        return self.submit(name, Batch(port, [request]), now)

    def adopt(self, name: bytes, deadline: float) -> None:
        """Add a stored cell that was not used since the start; it has work at `deadline`."""
        cell = self._create(name, -inf)
        self.timers.arm(cell, deadline)

    def detach(self, name: bytes, port: Port) -> None:
        """Detach a connection that is gone."""
        cell = self.cells.get(name)
        if cell is None:
            return
        if cell.attachments is not None:
            cell.attachments.pop(port, None)
            cell.attachments = cell.attachments or None  # an empty dictionary keeps its table
        self.submit(name, Batch(port, [Detach()]), self._now())

    def on_capacity(self, name: bytes, resume: Callable[[], None]) -> None:
        """Call `resume` once the cell's mailbox has room; at once if it has."""
        cell = self.cells.get(name)
        if cell is None or cell.mailbox_bytes <= self._settings.mailbox_bytes:
            resume()
        else:
            self._waiting.setdefault(name, []).append(resume)

    def drain(self) -> None:
        """Tell all cells to push nothing from here on (PA-36)."""
        self._is_draining = True
        now = self._now()
        for name, cell in list(self.cells.items()):
            if cell.behaviour is not None:
                self.submit(name, Batch(None, [Drain()]), now)

    def clock_moved(self, seconds: float) -> None:
        """The node's time moved forward at once: what is measured in time that passes moves along
        (leases). Call it before anything else sees the new time."""
        for each in self._clock_observers():
            each.clock_moved(seconds)

    def clock_jump_withdrawn(self, now: float) -> None:
        """A jump of the clock was an error: deadlines that were given by it are corrected."""
        for cell in self.cells.values():
            behaviour: object = cell.behaviour
            if isinstance(behaviour, ClockObserver):
                behaviour.limit_deadlines(now)
                self.timers.arm(cell, now)

    def _clock_observers(self) -> list[ClockObserver]:
        behaviours: list[object] = [cell.behaviour for cell in self.cells.values()]
        return [each for each in behaviours if isinstance(each, ClockObserver)]

    def turn(self, now: float) -> bool:
        """Wake what is due, up to a limit, and give each queued cell its share. True: there is more
        to do."""
        has_more = len(self.timers) > WAKES_MAX
        for _ in range(min(len(self.timers), WAKES_MAX)):
            # One at a time: should a wake fail, the others are still armed.
            owner = self.timers.take_due(now)
            if owner is None:
                has_more = False
                break
            owner.wake(now)
        for _ in range(len(self._queue)):
            self._run_mail(self._queue.popleft(), now)
        for _ in range(min(len(self._later), LATER_MAX)):
            self._run_mail(self._later.popleft(), now)
        is_due = has_more and self.timers.next_at <= now
        return is_due or bool(self._queue or self._later)

    def view(self, name: bytes) -> Behaviour | None:
        """A cell's behaviour, for reading only; None while it has none."""
        cell = self.cells.get(name)
        return cell.behaviour if cell is not None else None

    @property
    def is_idle(self) -> bool:
        """No mailbox waits and no deadline has passed."""
        return not (self._queue or self._later) and self.timers.next_at > self._now()

    async def run(self) -> None:
        """Take turns until cancelled."""
        while True:
            if self.turn(self._now()):
                await anyio.lowlevel.checkpoint()
                continue
            self._kick = anyio.Event()
            self._sleeps_until = self.timers.next_at
            if self._sleeps_until == inf:
                await self._kick.wait()
            else:
                # At least the grain of the clock, or a virtual clock would never get there.
                sleep_s = max(SLEEP_S_MIN, min(self._sleeps_until - self._now(), SLEEP_S_MAX))
                with anyio.move_on_after(sleep_s):
                    await self._kick.wait()
            self._kick = None

    def _deadline_moved(self, when: float) -> None:
        if self._kick is not None and when < self._sleeps_until:
            self._kick.set()

    def _create(self, name: bytes, now: float) -> Cell:
        cell = self.cells[name] = Cell(name, self._wake_cell, now)
        self.cells_made += 1
        return cell

    def _defer(self, cell: Cell, batch: Batch, now: float) -> bool:
        if cell.refusal is None:
            return self._enqueue(cell, batch, now)
        self._effects.refuse(batch, cell.refusal)
        cell.keep_end(batch)
        return True

    def _enqueue(self, cell: Cell, batch: Batch, now: float) -> bool:
        cell.enqueue(batch)
        self.counters.queued += 1
        if cell.resumes_at > now:
            self.timers.arm(cell, cell.resumes_at)
        else:
            self._queue_cell(cell)
        return cell.mailbox_bytes <= self._settings.mailbox_bytes

    def _queue_cell(self, cell: Cell, queue: deque[Cell] | None = None) -> None:
        if not cell.is_queued:
            cell.is_queued = True
            (self._queue if queue is None else queue).append(cell)
            if self._kick is not None:
                self._kick.set()

    def _run_mail(self, cell: Cell, now: float) -> None:
        cell.is_queued = False
        share = self._settings.turn_messages
        pending_max = self._settings.mailbox_bytes
        left = len(cell.mailbox or ())  # what comes meanwhile waits for the next turn
        while (
            left
            and cell.mailbox
            and share > 0
            and cell.resumes_at <= now
            and cell.pending_bytes <= pending_max
        ):
            batch = cell.mailbox.popleft()
            left -= 1
            if len(batch.messages) > share:
                batch, rest = batch.split(share)
                cell.mailbox.appendleft(rest)
            share -= len(batch.messages)
            cell.mailbox_bytes -= batch.size_bytes
            self._run(cell, batch, now)
        # A cell that waits for commits is queued again when they are done.
        if cell.mailbox and cell.resumes_at <= now and cell.pending_bytes <= pending_max:
            self._queue_cell(cell)
        self._announce_capacity(cell)

    def _announce_capacity(self, cell: Cell) -> None:
        if cell.name in self._waiting and cell.mailbox_bytes <= self._settings.mailbox_bytes // 2:
            for resume in self._waiting.pop(cell.name):
                resume()

    def _wake(self, cell: Cell, now: float) -> None:
        if self.cells.get(cell.name) is not cell:
            return  # forgotten in this very turn
        if cell.resumes_at > now:
            self.timers.arm(cell, cell.resumes_at)
            return
        cell.refusal = None
        if cell.is_busy:
            raise AssertionError("a deadline never passes within a batch")
        self._run(cell, None, now)
        if cell.mailbox:
            self._queue_cell(cell)

    def _run(self, cell: Cell, batch: Batch | None, now: float) -> None:
        """Let the behaviour handle a batch, or wake it when there is none."""
        cell.is_busy = True
        queue = self._effects
        queue.depth += 1
        effects: Effects | None = None
        try:
            behaviour = cell.behaviour or self._activate(cell, batch)
            if behaviour is None:
                return
            if batch is not None and not cell.pending:
                effects = behaviour.handle(batch, now)
            else:
                effects = cell.handle_behind_pending(batch, now)
            # A write that raises is a crash: the behaviour must not keep what the store does not.
            commit = self._store.write(cell.name, effects.changes) if effects.changes else None
        except Exception:  # any error is a crash of the cell: logged, and the cell is built again
            self._crashed(cell, batch, now, effects)
        else:
            if behaviour.deadline < cell.deadline:
                self.timers.arm(cell, behaviour.deadline)
            for port, request in effects.attachments:
                if cell.attachments is not None and port in cell.attachments:
                    cell.attachments[port] = request
            if commit is None and not cell.pending:
                queue.release(batch, effects)
            else:
                queue.defer(cell, batch, effects, commit, now)
        finally:
            cell.is_busy = False
            if not cell.attachments:
                if batch is None:
                    self._passivate_or_forget(cell, now)
                else:
                    cell.used_at = now
                    if not cell.pending:
                        self._used(cell, now)
            queue.leave()

    def _activate(self, cell: Cell, batch: Batch | None) -> Behaviour | None:
        """Build the behaviour; None while its stored state is being loaded."""
        cell.refusal = None  # its quarantine is over, even if its deadline did not come yet
        snapshot = self._load(cell.name)
        if not isinstance(snapshot, Deferred):
            return self._build(cell, snapshot)
        cell.resumes_at = inf
        snapshot.when_done(partial(self._loaded, cell))
        if cell.behaviour is None and batch is not None:
            self._return(cell, batch)
        return cell.behaviour  # it may have been there at once

    def _return(self, cell: Cell, batch: Batch) -> None:
        """Make the batch in hand the first to be handled once the cell is loaded."""
        if cell.refusal is not None:
            self._effects.refuse(batch, cell.refusal)
            cell.keep_end(batch)
        else:
            cell.enqueue(batch, first=True)

    def _loaded(self, cell: Cell, snapshot: CellSnapshot | Fault) -> None:
        now = self._now()
        if isinstance(snapshot, Fault):
            # Of an object store that is away its shipper tells; every cell would tell it again.
            level = logging.DEBUG if snapshot is Fault.NOT_REPLICATED else logging.ERROR
            log.log(level, "cell not loaded: name=%r fault=%s", cell.name, snapshot.name)
            is_passing = snapshot in (Fault.UNREADABLE, Fault.NOT_REPLICATED)
            pause_s = LOAD_RETRY_S if is_passing else self._settings.restarts.quarantine_s
            self._quarantine(cell, Code.STORAGE_FAILED, pause_s, now)
            return
        cell.resumes_at = 0.0
        try:
            self._build(cell, snapshot)
        except Exception:  # any error is a crash of the cell: logged, and the cell is built again
            self._crashed(cell, None, now)
            return
        if cell.mailbox:
            self._queue_cell(cell)
        if not cell.is_busy:
            self._run(cell, None, now)

    def _build(self, cell: Cell, snapshot: CellSnapshot) -> Behaviour:
        attachments = dict(cell.attachments or {})
        for batch in cell.mailbox or ():
            if batch.port is not None and any(isinstance(each, Attach) for each in batch.messages):
                # It is still to be attached, and pushed nothing before.
                attachments.pop(batch.port, None)
        behaviour = cell.revive(self._spawn(cell.name, snapshot, attachments))
        if self._is_draining:
            # Before anything makes it push; by itself this has no effects.
            behaviour.handle(Batch(None, [Drain()]), self._now())
        return behaviour

    def _forward(self, name: bytes, batch: Batch) -> None:
        self.submit(name, batch, self._now())

    def _committed(self, cell: Cell, fault: Fault | None, now: float) -> None:
        """Pending effects have left, or are lost."""
        if fault is not None or cell.late is not None:
            cell.end_release(fault, now)
        if fault is not None:
            # Built anew it may write at once, and fail again: no cell does that all the time.
            self.timers.arm(cell, max(now, cell.rebuilds_at))
            if now >= cell.rebuilds_at:
                cell.rebuilds_at = now + FAULT_RETRY_S
        if cell.is_busy:
            return
        if cell.mailbox and cell.resumes_at <= now:
            self._queue_cell(cell)
        if not (cell.attachments or cell.pending):
            self._used(cell, now)

    def _used(self, cell: Cell, now: float) -> None:
        """A batch is done. A cell that is woken before it is idle for long is looked at then."""
        is_late = cell.deadline > now + self._settings.passivate_after_s
        if is_late or cell.behaviour is None or cell.behaviour.is_empty:
            self._passivate_or_forget(cell, now)

    def _passivate_or_forget(self, cell: Cell, now: float) -> None:
        """Forget a cell without connections if it is empty, or passivate it after a while."""
        behaviour = cell.behaviour
        if behaviour is None or cell.mailbox or cell.pending:
            return
        idle_at = cell.used_at + self._settings.passivate_after_s
        # A cell that crashed is remembered for as long as one that is not empty, to be counted.
        if behaviour.is_empty and (cell.restarts is None or now >= idle_at):
            self.timers.disarm(cell)
            del self.cells[cell.name]
            cell.behaviour = None  # an outdated deadline may still refer to the cell
        elif now < idle_at:
            self.timers.arm(cell, idle_at)
        elif behaviour.can_passivate:
            self.counters.passivations += 1
            cell.behaviour = None
            cell.restarts = None
            self.timers.arm(cell, behaviour.deadline)

    def _crashed(
        self, cell: Cell, batch: Batch | None, now: float, effects: Effects | None = None
    ) -> None:
        self.counters.crashes += 1
        behaviour, cell.behaviour = cell.behaviour, None
        if cell.restarts is None:
            cell.restarts = Restarts()
        policy = self._settings.restarts
        pause_s = inf
        try:
            pause_s = cell.restarts.count(policy, self._rng, now)
        except RestartsExceeded:
            self.counters.quarantines += 1
            log.exception("cell quarantined: name=%r for_s=%.0f", cell.name, policy.quarantine_s)
        else:
            log.exception("cell crashed: name=%r restart_in_s=%.2f", cell.name, pause_s)
            cell.resumes_at = now + pause_s
            self.timers.arm(cell, cell.resumes_at)
        self._effects.refuse_undone(behaviour, [(batch, effects)], Code.OUTCOME_UNKNOWN, set())
        if batch is not None:
            cell.keep_end(batch)
        if pause_s == inf:
            self._quarantine(cell, Code.QUARANTINED, policy.quarantine_s, now)

    def _quarantine(self, cell: Cell, code: Code, pause_s: float, now: float) -> None:
        """Refuse everything for a while, without effect on other cells."""
        cell.refusal = code
        cell.resumes_at = now + pause_s
        self.timers.arm(cell, cell.resumes_at)
        refused: list[Batch] = []
        while cell.mailbox:
            refused.append(cell.mailbox.popleft())
            self._effects.refuse(refused[-1], code)
        cell.mailbox_bytes = 0
        for batch in refused:
            cell.keep_end(batch)
        self._announce_capacity(cell)

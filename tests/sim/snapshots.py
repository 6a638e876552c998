"""Snapshots of a simulated store that goes on: begun, copied in steps between which anything
happens, restored and compared.

A copy has everything that was acknowledged before the snapshot began, and nothing that was written
after its moment. The store of a copy gives no id and no sequence again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from millpond.actors.messages import Durability, Mode
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Chunk, LogSnapshot, ModeSet, Snapshot, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.partitions.catalog import CATALOG
from millpond.actors.store.settings import StoreSettings
from millpond.actors.store.snapshot import SnapshotLost, StoreSnapshot
from millpond.actors.store.snapshot_copy import SnapshotCopy
from tests.sim.log_facts import LogState
from tests.sim.loop import FOREIGN, Loop
from tests.sim.queue_facts import Level, QueueFacts, View, Write
from tests.sim.recording_store import LEVELS, Broken

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")

PASSES_MAX = 200
TTL_S = 1_000_000
SETTINGS = StoreSettings(segment_bytes=2**16)
"""Those of a restored store: its journal has space at once, whatever the snapshot kept of it."""


@dataclass
class Moment:
    """The facts when a snapshot began, and when it was there.

    `levels`: of the writes that were known when it began, by the object. `memo` keeps these alive.
    """

    levels: dict[int, Level]
    memo: dict[int, Any]
    first: dict[bytes, int]
    last_id: int
    queues: dict[bytes, QueueFacts] = field(default_factory=dict)
    logs: dict[bytes, list[LogState]] = field(default_factory=dict)


def frozen(facts: T) -> tuple[T, dict[int, Any]]:
    """A copy of facts, and what deepcopy knows: the copies by the ids of their originals."""
    memo: dict[int, Any] = {}
    return deepcopy(facts, memo), memo


class Snapshots:
    """The snapshot of a world, one at a time; `step` goes on with it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.compared = 0
        self.lost = 0
        self._count = 0
        self._results: list[StoreSnapshot | Fault] | None = None
        self._steps: Iterator[None] | None = None
        self._target = Path()

    @property
    def is_active(self) -> bool:
        return self._results is not None

    def step(self, between: Callable[[], None]) -> None:
        """Begin a snapshot, or copy the next part of it; `between` happens while it is copied."""
        if self._results is None:
            self._begin()
        elif self._steps is None and self._results:
            self._copy(self._results[0], between)
        if self._steps is not None:
            try:
                next(self._steps, None)
            except (SnapshotLost, *FOREIGN) as exc:
                self._lose(repr(exc))

    def give_up(self) -> None:
        """The operator ends the backup."""
        if self.is_active:
            self._end()

    def drop(self) -> None:
        """The process is over, and the copy with it."""
        is_copying = self._steps is not None
        self._results = self._steps = None
        if is_copying and (self._target / CATALOG).exists():
            raise Broken("a copy that was never finished has a catalog, and would be served")
        shutil.rmtree(self._target, ignore_errors=True) if is_copying else None

    def _begin(self) -> None:
        world = self._world
        ledger, results = world.ledger, list[StoreSnapshot | Fault]()
        _, memo = frozen([ledger.queue(name) for name in world.models])
        levels = {key: each.level for key, each in memo.items() if isinstance(each, Write)}
        first = {name: ledger.log(name).kept(ledger.promised(name)) for name in world.plan.logs}
        self._moment = Moment(levels, memo, first, ledger.last_id(Level.DISK))
        self._results = results

        def done(result: StoreSnapshot | Fault) -> None:
            if self._results is not results:
                raise Broken("a snapshot that was ended is reported")
            results.append(result)
            self._freeze()

        world.store.begin_snapshot(done)
        world.loop.finish_pass()

    def _freeze(self) -> None:
        """The snapshot is there: what is written from now on is not part of it."""
        ledger, moment = self._world.ledger, self._moment
        moment.queues, memo = frozen({name: ledger.queue(name) for name in self._world.models})
        for key, write in memo.items():
            if isinstance(write, Write) and write.level is not Level.FAILED:
                write.level = moment.levels.get(key, Level.OPEN)
        for name in self._world.plan.logs:
            log = ledger.log(name)
            ghosts = [state for write, state in log.ghosts if write.is_failed]
            moment.logs[name] = log.states[moment.first[name] :] + ghosts

    def _copy(self, result: StoreSnapshot | Fault, between: Callable[[], None]) -> None:
        if isinstance(result, Fault):
            self._lose(str(result))
            return
        self._count += 1
        self._target = self._world.home.with_name(f"copy{self._count}")
        self._steps = self._parts(result, between)

    def _parts(self, snapshot: StoreSnapshot, between: Callable[[], None]) -> Iterator[None]:
        store = self._world.store
        is_last = False

        def wrote(size: int) -> None:
            if not is_last:
                between()

        copy = SnapshotCopy(store.folder, store.disk, self._target, wrote, lambda path: None)
        copy.copy_segments(snapshot)
        store.release_segments()
        yield
        copy.copy_files(snapshot)
        yield
        is_last = True  # the copy is whole with it
        copy.write_catalog(snapshot)
        target, self._target = self._target, Path("nowhere")
        has_failed = bool(store.health.failures)
        self._end()
        self._compare(target, has_failed=has_failed)
        shutil.rmtree(target)
        self.compared += 1
        self._world.trace("compared", self.compared)

    def _lose(self, reason: str) -> None:
        """The snapshot is given up, which only a failing disk is a reason for."""
        self._world.trace("snapshot lost", reason.partition(":")[0])
        if not self._world.plan.trouble_rate:
            raise Broken(f"a sound disk loses a snapshot: {reason}")
        self.lost += 1
        self._end()

    def _end(self) -> None:
        steps, self._steps, self._results = self._steps, None, None
        self._world.store.end_snapshot()
        self._world.loop.finish_pass()
        if steps is not None:
            shutil.rmtree(self._target, ignore_errors=True)

    # The comparison.

    def _compare(self, folder: Path, *, has_failed: bool) -> None:
        """`has_failed`: the journal of this boot did, so that only what was synced is promised."""
        world, moment = self._world, self._moment
        restored = Restored(world, folder)
        found: dict[bytes, Snapshot] = {}
        for name, facts in moment.queues.items():
            durability = world.ledger.durability(name)
            if durability is Durability.MEMORY:
                continue
            level = Level.DISK if has_failed else LEVELS[durability]
            view = View(level, is_restart=True, now=world.clock.now)
            found[name] = restored.finish(restored.store.load(name))
            faults = facts.check(found[name], view)
            world.ledger.raise_faults(b"the copy of " + name, faults)
        for name, states in moment.logs.items():
            outline = restored.finish(restored.store.log_snapshot(name))
            chunks = restored.read_all(name, outline)
            if not any(each.has_outline(outline) and each.chunks == chunks for each in states):
                raise Broken(f"the copy of {name!r} is {outline}, none of {states}")
        if restored.store.last_id < moment.last_id:
            raise Broken(f"id {moment.last_id} may come again after a restore")
        if found:
            self._use(restored, folder, *world.rng.choice(sorted(found.items())))
        else:
            restored.close()

    def _use(self, restored: Restored, folder: Path, name: bytes, before: Snapshot) -> None:
        """A message that the restored store acknowledges is there after its next start, beside all
        else."""
        world = self._world
        until = world.clock.now + TTL_S
        row = StoredMessage(restored.store.last_id + 1, 2**31 - 1, TTL_S, until, b"after")
        commit = restored.store.write(name, [ModeSet(before.mode or Mode.QUEUE), row])
        if commit is not None and restored.finish(commit) is not None:
            raise Broken(f"a restored store takes nothing for {name!r}")
        restored.close()
        again = Restored(world, folder)
        rows = {each.id: each for each in again.finish(again.store.load(name)).rows}
        lost = {each.id for each in before.rows if each.expires_at > world.clock.now} - rows.keys()
        if lost or row.id not in rows:
            raise Broken(f"a restored store of {name!r} loses {lost or row.id}")
        again.close()


class Restored:
    """The store of a copy, on a disk that does not fail."""

    def __init__(self, world: World, folder: Path) -> None:
        self._loop = Loop(world.clock, Random(1))
        durability = world.ledger.durability
        self.store = DurableStore(folder, OsDisk(), SETTINGS, self._loop, durability)
        try:
            self.store.open()
        except FOREIGN as exc:
            raise Broken(f"a copy does not start: {exc!r}") from exc
        if self.store.damages:
            raise Broken(f"a copy is damaged: {self.store.damages}")

    def finish(self, answer: T | Deferred[T | Fault]) -> T:
        results: list[T | Fault] = []
        if isinstance(answer, Deferred):
            answer.when_done(results.append)
        else:
            results.append(answer)
        for number in range(PASSES_MAX):
            if results:
                break
            self._loop.finish_pass()
            self._loop.work(idle=number > PASSES_MAX // 2)
        (result,) = results or [Fault.UNREADABLE]
        if isinstance(result, Fault):
            raise Broken(f"a copy answers {result}: {self.store.damages}")
        return result

    def read_all(self, name: bytes, outline: LogSnapshot) -> list[Chunk]:
        chunks: list[Chunk] = []
        at = outline.trim_point
        while at < outline.tail:
            seek = Seek(SeekBy.SEQUENCE, at, bytes_max=100_000)
            some = self.finish(self.store.read(name, seek))
            if not some:
                break
            chunks += some
            at = chunks[-1].end
        return chunks

    def close(self) -> None:
        self.store.close()

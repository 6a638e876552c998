"""Scenarios: the events of a simulated world by chance, a seed's whole history, and its end.

python -m tests.sim.scenario SEED [STEPS [damaged]] runs one again and says what goes wrong;
`without-catalog` in place of `damaged` is a world that loses its catalog,
`misplaced` one whose journal is written to wrong places, `older-pages` one whose channels get older
pages, `snapshots` one of which snapshots are taken
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from millpond.actors.messages import Mode, Put
from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import (
    Change,
    Chunk,
    LogDeleted,
    LogTrimmed,
    MetadataSet,
    Position,
)
from millpond.actors.store.interface import Seek, Usage
from millpond.node.testing.disk.damage import DIVERTED
from tests.sim.clients import Attempt, Client
from tests.sim.faults import Crashed
from tests.sim.loop import LogCapture
from tests.sim.plan import (
    Plan,
    draw,
    draw_damaged,
    draw_misplaced,
    draw_with_older_pages,
    draw_with_snapshots,
    draw_without_catalog,
)
from tests.sim.queue_facts import Level
from tests.sim.recording_store import Broken
from tests.sim.world import DEAD, World

STEPS = 120
PASSES_MAX = 200
STEPS_PER_PASS = 5
FOREVER_S = 2_000_000.0
DAMAGE_LIKELY = 0.4
SHM = Path("/dev/shm")
PLANS: dict[str, Callable[[Random, int], Plan]] = {
    "damaged": draw_damaged,
    "older-pages": draw_with_older_pages,
    "misplaced": draw_misplaced,
    "without-catalog": draw_without_catalog,
    "snapshots": draw_with_snapshots,
}
"""The plans of other worlds than the usual ones, by their word on the command line."""


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in memory, where there is such a thing."""
    place = str(SHM) if SHM.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="millpond-sim-", dir=place) as folder:
        yield Path(folder)


class Scenario:
    """The choice, by chance, of what happens next in a world."""

    def __init__(self, world: World, rng: Random) -> None:
        self.world = world
        self.rng = rng
        self.plan = world.plan
        plan = world.plan
        self._acts: dict[Callable[[], None], float] = {
            self.put: 1.0,
            self.put_again: 0.4,
            self.read: 0.3,
            self.settle: plan.consumes,
            self.come_or_go: 0.15,
            self.work: 4 * plan.workers,
            self.pass_time: 0.6,
            self.write_log: 0.5 if plan.logs else 0.0,
            self.read_log: 0.2 if plan.logs else 0.0,
            self.trouble: 3 * plan.trouble_rate,
            self.heal: 0.1,
            self.plan_crash: 3 * plan.end_rate * (plan.ends[0] > 0),
            self.end: 3 * plan.end_rate,
            self.divert: plan.damage_rate,
            self.snapshot: plan.snapshot_rate,
        }

    def run(self) -> None:
        """From the first boot to a good end. Raises Broken."""
        world = self.world
        for _ in range(self.plan.steps):
            world.boot()
            if not world.served:
                break
            self.step()
        world.boot()
        if world.served:
            self.finish()

    def step(self) -> None:
        acts = list(self._acts)
        (act,) = self.rng.choices(acts, list(self._acts.values()))
        self.guarded(act)
        self.world.trace(act.__name__, self.world.disk.faults.total, self.world.clock.now)
        self.world.listen()

    def guarded(self, act: Callable[[], None]) -> None:
        """The power may fail in it."""
        try:
            act()
        except Crashed:
            self.world.crash()

    # Clients.

    def client(self, *, push: bool | None = None) -> Client:
        """One of those there are, or another."""
        world, rng = self.world, self.rng
        if world.clients and rng.random() < 0.9:
            return rng.choice(world.clients)
        name = rng.choice(world.served or list(self.plan.channels))
        if rng.random() < 0.1:
            name += DEAD
        who = rng.choice((None, *self.plan.identities))
        return world.join(name, push=rng.random() < self.plan.consumes, identity=who)

    def attempt(self, client: Client | None = None) -> Attempt:
        """A message that was never put, by this client or by one without identity."""
        self.world.puts += 1
        key, size = self.world.puts, self.rng.randint(1, self.plan.data_bytes_max)
        data = (b"%d." % key).ljust(size, b"*")
        put = Put(key, self.rng.randint(1, self.plan.ttl_max), data)
        return Attempt(put, None if client is None else client.identity)

    def put(self) -> None:
        client = self.client()
        attempts = [self.attempt(client) for _ in range(self.rng.randint(1, 4))]
        self.world.say(client, client.puts(attempts))

    def put_again(self) -> None:
        """Requests without a known outcome, and now and then one that has it."""
        client = self.client()
        model = client.model
        again = model.unknown_to(client.identity)[:8]
        if model.attempts and self.rng.random() < 0.3:
            known = self.rng.choice(list(model.attempts.values()))
            if known.identity == client.identity and known.id and known not in again:
                again.append(known)
        if again:
            self.world.say(client, client.puts(again))

    def read(self) -> None:
        client = self.client()
        self.world.say(client, client.reads())

    def settle(self) -> None:
        holders = [client for client in self.world.clients if client.held]
        if holders:
            client = self.rng.choice(holders)
            self.world.say(client, client.settle())
        elif self.world.clients:
            name = self.rng.choice(self.world.clients).model.name
            who = self.rng.choice((None, *self.plan.identities))
            self.world.join(name, push=True, identity=who)

    def come_or_go(self) -> None:
        if self.world.clients and self.rng.random() < 0.6:
            self.world.leave(self.rng.choice(self.world.clients))
        else:
            self.client()

    # Logs.

    def write_log(self) -> None:
        name = self.rng.choice(self.plan.logs)
        if self.world.is_reported(name):
            return
        facts = self.world.ledger.log(name)
        if name in self.world.ledger.doubtful:
            return  # as a stream would: after a failure, look first what there is
        state = facts.state
        changes: list[Change] = []
        for _ in range(self.rng.randint(1, 3)):
            changes.append(self.log_change(state.tail, state.trim_point, state.last_id.ms))
            state = state.after(changes[-1:])
        self.world.ledger.write(name, changes)
        self.world.loop.finish_pass()

    def log_change(self, tail: int, trim_point: int, last_ms: int) -> Change:
        kind = self.rng.random()
        if kind < 0.03:
            return LogDeleted()
        if kind < 0.13:
            value = self.rng.choice((None, b"x" * self.rng.randint(0, 50)))
            return MetadataSet(self.rng.choice((b"type", b"owner")), value)
        if kind < 0.25 and tail > trim_point:
            return LogTrimmed(self.rng.randint(trim_point, tail))
        count, ms = self.rng.randint(1, 5), last_ms + self.rng.randint(0, 3)
        data = self.rng.randbytes(self.rng.randint(1, self.plan.data_bytes_max))
        first, last = Position(ms, tail), Position(ms + 1, tail + count)
        return Chunk(tail, count, ms, ms + 1, first, last, data)

    def read_log(self) -> None:
        name = self.rng.choice(self.plan.logs)
        state = self.world.ledger.log(name).state
        sequence = self.rng.randint(state.trim_point, state.tail)
        limit = self.rng.choice((1, 500, 2**20))
        self.world.ledger.read(name, Seek(SeekBy.SEQUENCE, sequence, bytes_max=limit))
        self.world.ledger.log_snapshot(name)

    # The machine.

    def work(self) -> None:
        loop = self.world.loop
        self.rng.choice(loop.workers).step(idle=self.rng.random() < 0.3)
        loop.finish_pass()

    def pass_time(self) -> None:
        likely = (0.0, 0.001, 0.1, 1.0, 10.0, 1000.0)
        self.world.clock.now += self.rng.choices(likely, (1, 4, 4, 2, 0.5, 0.1))[0]
        self.world.turn()

    def trouble(self) -> None:
        kind = self.rng.choice(self.plan.troubles)
        calls = self.rng.choice((1, 1, 3, float("inf")))
        self.world.disk.faults.fail_from(self.rng.randint(1, 10), kind, calls)

    def heal(self) -> None:
        self.world.disk.faults.heal()

    def plan_crash(self) -> None:
        self.world.disk.faults.crash_at(self.rng.randint(1, 40))

    def end(self) -> None:
        world = self.world
        (end,) = self.rng.choices((world.crash, world.kill, world.close), self.plan.ends)
        end()
        if self.plan.damages and self.rng.random() < DAMAGE_LIKELY:
            world.damage_file(self.rng.choice(self.plan.damages))
        if self.plan.loses_catalog and self.rng.random() < DAMAGE_LIKELY:
            world.lose_catalog()
        if self.plan.damages and self.rng.random() < 0.5:
            world.disk.keep_copies()
        if self.rng.random() < 0.2:
            world.clock.now += self.rng.choice((1.0, 100.0, 3000.0))

    def divert(self) -> None:
        self.world.divert(self.rng.choice([each for each in DIVERTED if each in self.plan.damages]))

    def snapshot(self) -> None:
        """Go on with a snapshot; now and then its copy is given up."""
        if self.rng.random() < 0.02:
            self.world.snapshots.give_up()
        else:
            self.world.snapshots.step(self.happen)

    def happen(self) -> None:
        """Something that the node does while files are copied."""
        acts = [self.put, self.settle, self.work, self.work, self.pass_time]
        self.rng.choice([*acts, self.write_log] if self.plan.logs else acts)()

    # The end.

    def finish(self) -> None:
        """On a sound disk everything is answered, and all is as it should be after a stop."""
        world = self.world
        world.disk.faults.heal()
        world.disk.faults.crash_at(0)
        for client in list(world.clients):
            world.leave(client)
        if self.plan.snapshot_rate:
            self.finish_snapshot()
        for name in self.names():
            client = world.join(name, push=False)
            world.say(client, client.reads())
            self.put_all(client, self.attempt(client))
            for who in self.plan.identities:
                if world.models[name].unknown_to(who):
                    self.put_all(world.join(name, push=False, identity=who))
        self.run_until_idle()
        if any(world.models[name].unknown for name in self.names()):
            raise Broken("a sound disk does not take what it is given")
        for _ in range(3):
            # Settled messages leave the journal when others come.
            world.clock.now += self.plan.settings.settle_s + 1.0
            for client in world.clients:
                self.put_all(client, self.attempt(client))
            self.run_until_idle()
        if not world.refused:
            self.check_space()
        for name in world.served:
            if self.plan.channels[name] is Mode.FANOUT:
                self.serve(name)
        world.close()
        world.boot()
        if not world.refused and self.rng.random() < 0.3:
            self.expire()

    def finish_snapshot(self) -> None:
        """The last snapshot on a sound disk is there; it is copied and compared, or is lost to what
        failed before."""
        snapshots = self.world.snapshots
        for _ in range(PASSES_MAX):
            snapshots.step(self.happen)
            if not snapshots.is_active:
                return
            # Not until all is idle: with a small journal, writers wait until its segments are
            # copied.
            self.world.loop.work(idle=True)
            self.world.turn()
            self.world.listen()
            self.world.clock.now += 0.1
        raise Broken("a snapshot never begins")

    def names(self) -> list[bytes]:
        """The channels that are served, also those of dead letters."""
        return [name for name in self.world.models if not self.world.is_reported(name)]

    def serve(self, name: bytes) -> None:
        """Every subscriber gets what it is owed, also if it was away."""
        world, facts = self.world, self.world.ledger.queue(name)
        for who in list(facts.subscribers.subscribed):
            client = world.join(name, push=True, identity=who)
            self.run_until_idle()
            while client.held:
                held, client.held = client.held, []
                world.say(client, [client.ack(message_id) for message_id in held])
                self.run_until_idle()
            world.leave(client)
            for fact in facts.facts.values():
                is_kept = fact.gone is None and not fact.is_lost and fact.write.level >= Level.OPEN
                waits = facts.subscribers.waits_for(fact.row, fact.owed, facts.has_acked)
                if is_kept and who in waits and fact.row.expires_at > world.clock.now:
                    raise Broken(f"{who!r} never gets message {fact.row.id} of {name!r}")

    def expire(self) -> None:
        """No client comes any more: in the end nothing is kept, and no file is left of it."""
        world = self.world
        for _ in range(3):
            world.clock.now += FOREVER_S
            self.run_until_idle()
        if not _is_nothing(world.store.usage):
            raise Broken(f"nothing lives for ever, and there is {world.store.usage}")
        world.close()
        world.boot()
        if not _is_nothing(world.store.usage):
            raise Broken(f"expired, and back: {world.store.usage}")

    def put_all(self, client: Client, *more: Attempt) -> None:
        """Requests without a known outcome, and more."""
        unknown = client.model.unknown_to(client.identity)
        self.world.say(client, client.puts([*unknown, *more]))

    def run_until_idle(self) -> None:
        """Run until every request has a reply and no worker has work."""
        world = self.world
        calm = 0
        for _ in range(PASSES_MAX):
            is_busy = sum(world.loop.work(idle=True) for _ in range(STEPS_PER_PASS))
            world.turn()
            world.listen()
            is_waiting = self.retry() or any(client.in_flight for client in world.clients)
            calm = 0 if is_busy or is_waiting else calm + 1
            if calm == 3:
                return
            world.clock.now += 1.0 if is_waiting else 0.1
        raise Broken("the node never becomes idle")

    def retry(self) -> bool:
        """Requests refused for the moment are sent again."""
        for client in self.world.clients:
            is_served = not self.world.is_reported(client.model.name)
            if is_served and client.model.unknown_to(client.identity) and not client.in_flight:
                self.put_all(client)
                return True
        return False

    def check_space(self) -> None:
        """The journal keeps to its budget."""
        settings = self.plan.settings
        size = self.world.disk.size(".journal")
        budget = max(settings.journal_bytes_max, settings.segments_max * settings.segment_bytes)
        if size > budget + 4 * max(settings.segment_bytes, 3 * self.plan.data_bytes_max):
            raise Broken(f"the journal has {size} bytes, and should have {budget}")


def simulate(
    seed: int,
    *,
    steps: int = STEPS,
    world_class: type[World] = World,
    is_verbose: bool = False,
    draw_plan: Callable[[Random, int], Plan] = draw,
) -> World:
    """One seed, from its beginning to its end. Raises Broken, which says the seed."""
    rng = Random(seed)
    with scratch() as folder, LogCapture() as log_capture:
        plan = draw_plan(rng, steps)
        world = world_class(plan, rng, folder, log_capture)
        world.is_verbose = is_verbose
        try:
            Scenario(world, rng).run()
            world.listen()
        except BaseException as exc:
            word = next((f" {word}" for word, plan in PLANS.items() if plan is draw_plan), "")
            exc.add_note(f"seed {seed}: python -m tests.sim.scenario {seed} {steps}{word}")
            exc.add_note(f"damages: {world.damage.places}")
            raise
        finally:
            world.disk.end_process()
        return world


def _is_nothing(usage: Usage) -> bool:
    """Is nothing kept? The bytes of logs are counted by those who write them; here nobody does."""
    return not (usage.messages or usage.bytes or usage.keys)


if __name__ == "__main__":
    count = int(sys.argv[2]) if len(sys.argv) > 2 else STEPS
    plans = PLANS[sys.argv[3]] if len(sys.argv) > 3 else draw
    found = simulate(int(sys.argv[1]), steps=count, is_verbose=True, draw_plan=plans)
    print(found.history, f"boots={found.boots} commits={found.ledger.commits}")

"""One call of the disk fails, every one in turn: reads go on, writes are refused, nothing is lost.

Every run fails some of the calls, `scripts/test full` each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from millpond.actors.messages import Ack, Durability, Failed, Mode
from millpond.actors.store.changes import Chunk, LogTrimmed, Position
from millpond.actors.store.settings import StoreSettings
from millpond.node.testing.disk.faults import DiskCall
from tests.sim.clients import Client
from tests.sim.faults import Trouble
from tests.sim.loop import LogCapture
from tests.sim.plan import Plan
from tests.sim.scenario import Scenario, scratch
from tests.sim.world import World

STEPS = [pytest.param(29, id="some"), pytest.param(1, id="each", marks=pytest.mark.full)]
"""Every so many calls one is tried."""
QUEUE, PAIR, LOG = b"queue0", b"pair0", b"log0"
PASSES = 4
PLAN = Plan(
    steps=0,
    channels={QUEUE: Mode.QUEUE, PAIR: Mode.PAIR},
    logs=[LOG],
    durability=dict.fromkeys((QUEUE, PAIR, LOG), Durability.DISK),
    settings=StoreSettings(
        segment_bytes=4096,
        journal_bytes_max=8192,
        rewrite_bytes_max=500,
        waste_bytes_max=1000,
        settle_s=0.5,
        handles_max=1,
    ),
    data_bytes_max=300,
    ttl_max=1000,
    consumes=1.0,
    workers=1.0,
    end_rate=0.0,
    ends=(1, 0, 0),
    trouble_rate=0.0,
    troubles=(),
    garbage=0.0,
    passivate_after_s=2.0,
)


class Work:
    """The same in every test: puts, acks, rotation, rewrites, flushes, loads and reclaiming."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = Scenario(world, Random(5))

    def run(self) -> None:
        for at in range(PASSES):
            producers = [self.world.join(name, push=False) for name in (QUEUE, PAIR)]
            consumers = [self.world.join(name, push=True) for name in (QUEUE, PAIR)]
            for client in producers:
                self.scenario.put_all(client, *(self.scenario.attempt() for _ in range(4)))
            self.write_log(at)
            self.pause(0.3)
            for client in consumers:
                self.settle(client)
            self.pause(0.3)
            for client in (*producers, *consumers):
                self.world.leave(client)
            # Now and then long enough for the channels to be put away, and loaded again.
            self.pause(3.0 if at % 2 else 0.0)

    def settle(self, client: Client) -> None:
        """Half of what is held is done with."""
        done = [message_id for message_id in client.held if message_id % 2]
        client.model.acked.update(done)
        client.held.clear()
        self.world.say(client, [Ack(each) for each in done])

    def write_log(self, at: int) -> None:
        ledger = self.world.ledger
        state = ledger.log(LOG).state
        if LOG not in ledger.doubtful:
            where = Position(at, state.tail)
            ledger.write(LOG, [Chunk(state.tail, 3, at, at, where, where, bytes(250))])
            if at == PASSES // 2:
                ledger.write(LOG, [LogTrimmed(state.tail - 4)])
        self.scenario.read_log()
        self.world.loop.finish_pass()

    def pause(self, seconds: float) -> None:
        """All workers step for a while."""
        self.world.clock.now += seconds
        for _ in range(20):
            self.world.loop.work(idle=False)
            self.world.turn()
        self.world.listen()


@contextmanager
def node() -> Iterator[World]:
    """One that has work behind it."""
    with scratch() as folder, LogCapture() as log_capture:
        world = World(PLAN, Random(1), folder, log_capture)
        world.boot()
        Work(world).run()
        yield world
        world.disk.end_process()


def calls_that_fail(trouble: Trouble) -> int:
    """The number of calls of the work that this fault can hit."""
    with node() as world:
        calls = world.disk.faults.calls
        before = sum(calls[call] for call in trouble.calls)
        Work(world).run()
        return sum(calls[call] for call in trouble.calls) - before


def test_the_work_does_everything() -> None:
    with node() as world:
        Work(world).run()
        calls = world.disk.faults.calls
        assert calls[DiskCall.CREATE] >= 5 and calls[DiskCall.UNLINK] >= 3
        assert calls[DiskCall.SQL_COMMIT] >= 10
        assert world.store.stats.flushes >= 3 and world.store.stats.carries >= 3


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("lasts", [False, True], ids=["once", "until-healed"])
@pytest.mark.parametrize("trouble", list(Trouble), ids=lambda trouble: trouble.name.lower())
def test_a_call_that_fails_costs_no_promise(trouble: Trouble, lasts: bool, step: int) -> None:
    """Quotas and disk full: reads go on, writes get the error, nothing acked is lost."""
    for k in range(1, calls_that_fail(trouble) + 1, step):
        with node() as world:
            world.disk.faults.fail_from(k, trouble, float("inf") if lasts else 1)
            Work(world).run()
            check_reads(world, trouble)
            world.disk.faults.heal()
            check_writes(world)
            world.crash() if k % 2 else world.close()
            world.boot()
            check_writes(world)


def check_reads(world: World, trouble: Trouble) -> None:
    """Every request has a reply; with what there is, if files can be read at all."""
    for name in (QUEUE, PAIR):
        reader = world.join(name, push=False)
        known = len(reader.model.ids)
        world.say(reader, reader.reads())
        work = Work(world)
        for _ in range(10):
            work.pause(0.5)
        assert not reader.in_flight, f"nobody answers {reader.in_flight}"
        if trouble in (Trouble.FULL, Trouble.SHORT):
            assert len(reader.model.ids) > known, "reads go on"
        world.leave(reader)


def check_writes(world: World) -> None:
    """The disk is sound: everything is taken, also what was refused before."""
    scenario = Scenario(world, Random(world.boots))
    clients = [world.join(name, push=False) for name in (QUEUE, PAIR)]
    attempts = [scenario.attempt() for _ in clients]
    for client, attempt in zip(clients, attempts, strict=True):
        world.say(client, client.reads())
        scenario.put_all(client, attempt)
    scenario.run_until_idle()
    assert not any(model.unknown for model in world.models.values())
    assert all(attempt.id for attempt in attempts)
    for client in clients:
        world.leave(client)


def test_while_the_disk_is_full_a_put_is_refused_and_says_so() -> None:
    """NACK e1, not silence, and not an acknowledgement."""
    with node() as world:
        refused: list[Failed] = []
        world.disk.faults.fail_from(1, Trouble.FULL)
        client = world.join(QUEUE, push=False)
        client.on_failed = refused.append
        scenario = Scenario(world, Random(1))
        scenario.put_all(client, scenario.attempt())
        Work(world).pause(1.0)
        assert [each.code.name for each in refused] == ["STORAGE_FAILED"]
        assert not world.store.health.is_writable
        world.disk.faults.heal()
        Work(world).pause(2.0)
        check_writes(world)
        assert world.store.health.is_writable


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("trouble", list(Trouble), ids=lambda trouble: trouble.name.lower())
def test_a_start_that_fails_harms_nothing(trouble: Trouble, step: int) -> None:
    """Any call of recovery may fail: the next start finds everything."""
    for k in range(1, 40, step):
        with node() as world:
            world.crash() if k % 2 else world.kill()
            world.disk.faults.fail(k, trouble)
            world.boot()
            check_writes(world)

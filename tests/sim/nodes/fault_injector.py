"""The fault injector: network, disks, clocks and processes fail by a plan, and are repaired."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
from anyio.abc import TaskGroup

from tests.sim.nodes import events as e
from tests.sim.nodes.plan import KEPT, FaultPlan
from tests.sim.nodes.simulation import Simulation

AGAIN_S = 0.5
MOMENT_S = 5.0
"""Time limit of a fault's wait for its moment."""
FAILS_S = 0.05
"""Within this time what hung has failed."""
FAILS = (OSError, sqlite3.Error)


class FaultInjector:
    """The faults of a plan: `run` as a task of its own injects them, `mend` ends them all."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self._world = sim.world
        self._partitions: dict[tuple[str, str], int] = {}
        self._troubled: Counter[str] = Counter()
        self._moving: set[str] = set()
        """Nodes that are being ended or started."""
        self._rebooted: set[str] = set()
        """Nodes whose machine was off since they ran."""

    async def run(self) -> None:
        """All faults of the plan, each at its time."""
        async with anyio.create_task_group() as tasks:
            for fault in self._sim.plan.faults:
                await anyio.sleep(max(0.0, fault.at - self._sim.now))
                self._inject(fault, tasks)

    def _inject(self, fault: FaultPlan, tasks: TaskGroup) -> None:
        match fault.kind:
            case "reset":
                self._count(fault)
                self._world.reset(fault.a, fault.b)
            case "skew":
                self._count(fault)
                self._world.clock.skew(fault.b, fault.much)
                self._sim.skews[fault.b] = fault.much
                self._sim.tell(e.Skewed(self._sim.now, fault.b, fault.much))
            case "crash" | "power" | "stop":
                tasks.start_soon(self._down, fault)
            case _:
                tasks.start_soon(self._for_a_while, fault)

    def _count(self, fault: FaultPlan) -> None:
        self._sim.injected[fault.kind] += 1

    async def _for_a_while(self, fault: FaultPlan) -> None:
        if fault.kind == "flaw":
            with anyio.move_on_after(MOMENT_S):
                await self._sim.told(fault.b, e.Push)
        self._count(fault)
        async with self._injected(fault):
            await anyio.sleep(fault.lasts_s)

    @asynccontextmanager
    async def _injected(self, fault: FaultPlan) -> AsyncIterator[None]:
        world, sim = self._world, self._sim
        disk = world.disk(fault.b)
        match fault.kind:
            case "partition":
                world.partition(fault.a, fault.b)
                yield
                world.heal(fault.a, fault.b)
            case "stall":
                world.stall(fault.a)
                yield
                world.unstall(fault.a)
            case "latency":
                world.latency(min(abs(fault.much), 2.0), fault.a, fault.b)
                yield
                world.latency(sim.plan.latency_s, fault.a, fault.b)
            case "split":
                world.split()
                yield
                world.split(sim.plan.split)
            case "disk":
                self._bad(fault.b, fault.call)
                disk.fail_next(fault.call, times=1 if fault.lasts_s < 1 else float("inf"))
                yield
                disk.heal()
                self._sound(fault.b)
            case "flaw":
                self._bad(fault.b, fault.call)
                disk.fail_next(fault.call)
                if fault.much:
                    with self._hanging(fault.b):
                        yield
                    await anyio.sleep(FAILS_S)
                else:
                    yield
                disk.heal()
                self._sound(fault.b)
            case "full":
                self._bad(fault.b, "full")
                disk.fill()
                yield
                disk.heal()
                self._sound(fault.b)
            case "hang":
                self._bad(fault.b, "hang")
                with self._hanging(fault.b):
                    yield
                self._sound(fault.b)
            case _:
                raise AssertionError(fault.kind)

    @contextmanager
    def _hanging(self, name: str) -> Iterator[None]:
        """Also when the injector ends before: a node that is being stopped waits for its disk,
        and they for it."""
        disk = self._world.disk(name)
        disk.hang()
        try:
            yield
        finally:
            disk.resume()

    def _bad(self, name: str, what: str) -> None:
        self._troubled[name] += 1
        self._sim.tell(e.Trouble(self._sim.now, name, what))

    def _sound(self, name: str) -> None:
        """Its disk works, if nothing else is wrong with it."""
        self._troubled[name] -= 1
        if not self._troubled[name]:
            self._sim.tell(e.Sound(self._sim.now, name))

    async def _down(self, fault: FaultPlan) -> None:
        name = fault.b
        node = self._sim.node(name)
        if fault.call == KEPT:
            with anyio.move_on_after(MOMENT_S):
                await self._sim.told(name, e.Kept)
        if name in self._moving or not node.is_running:
            return
        self._moving.add(name)
        self._count(fault)
        sim = self._sim
        with anyio.CancelScope(shield=True):
            if fault.kind == "stop":
                await node.stop()
                sim.tell(e.Halt(sim.now, name, "stop"))
            else:
                how: e.Ending = "crash" if fault.kind == "crash" else "power"
                sim.tell(e.Halt(sim.now, name, how))
                await node.crash(power=how == "power")
                if how == "power":
                    self._rebooted.add(name)
            self._moving.discard(name)
        await anyio.sleep(fault.lasts_s)
        await self._up(name)

    async def _up(self, name: str) -> None:
        if name in self._moving:
            return
        self._moving.add(name)
        try:
            while True:
                if await self._has_started(name):
                    return
                await anyio.sleep(AGAIN_S)
        finally:
            self._moving.discard(name)

    async def _has_started(self, name: str) -> bool:
        sim, node = self._sim, self._sim.node(name)
        if node.is_running:
            return True
        is_reboot = name in self._rebooted
        self._rebooted.discard(name)
        sim.tell(e.Boot(sim.now, name, sim.skews.get(name, 0.0), is_reboot))
        try:
            with anyio.CancelScope(shield=True):
                await node.start()
        except FAILS as error:
            sim.tell(e.Halt(sim.now, name, "crash"))
            sim.injected["no start"] += 1
            if sim.is_calm:
                raise AssertionError("it does not start on a sound disk") from error
            return False
        return True

    async def mend(self) -> None:
        """Everything works again; all nodes are up when this returns."""
        world, sim = self._world, self._sim
        for fault in sim.plan.faults:
            match fault.kind:
                case "partition":
                    world.heal(fault.a, fault.b)
                case "stall":
                    world.unstall(fault.a)
                case "latency":
                    world.latency(0.0, fault.a, fault.b)
                case _:
                    pass
        world.split(False)
        for name in sim.plan.nodes:
            disk = world.disk(name)
            disk.heal()
            disk.resume()
            sim.tell(e.Sound(sim.now, name))
        for name in sim.plan.nodes:
            await self._up(name)

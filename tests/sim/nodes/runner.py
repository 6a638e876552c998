"""The run of one seed: a world, its clients, faults, their end, and the checks of the history."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from time import perf_counter

import anyio
from anyio.abc import TaskGroup

from millpond.actors.messages import Mode
from millpond.actors.store.repair.quarantine import read_reports
from millpond.node.admin import Operation
from millpond.node.client.probe import PROBE
from tests.sim.nodes import client_events as ce
from tests.sim.nodes import events as e
from tests.sim.nodes import mail_clients
from tests.sim.nodes.checks import (
    acks,
    attempts,
    credit,
    deadlines,
    flows,
    jobs,
    kept,
    leases,
    limits,
    mail,
    once,
    order,
    retries,
    schedules,
    streams,
    subscriptions,
    tees,
)
from tests.sim.nodes.clients import Consumer, Producer, drain, inspect, joined
from tests.sim.nodes.drawing import draw
from tests.sim.nodes.fault_injector import FaultInjector
from tests.sim.nodes.flow_clients import FlowProducer, FlowWorker, keep_schedule, read_results
from tests.sim.nodes.history import History
from tests.sim.nodes.job_clients import JobProducer, JobWorker, QueueOperator
from tests.sim.nodes.livelock import CountingLoop
from tests.sim.nodes.plan import Plan, StreamPlan
from tests.sim.nodes.simulation import Simulation, Unending
from tests.sim.nodes.stream_clients import Writer, follow, read_all
from tests.sim.nodes.subscriber_clients import Subscriber, is_settled

Check = Callable[[History], Iterator[str]]
CHECKS: dict[str, Check] = {
    "kept": kept.check,
    "order": order.check,
    "leases": leases.check,
    "attempts": attempts.check,
    "deadlines": deadlines.check,
    "credit": credit.check,
    "acks": acks.check,
    "once": once.check,
    "streams": streams.check,
    "subscriptions": subscriptions.check,
    "jobs": jobs.check,
    "limits": limits.check,
    "flows": flows.check,
    "schedules": schedules.check,
    "mail": mail.check,
    "retries": retries.check,
    "tees": tees.check,
}
PROGRESS_S = 900.0
LOOK_S = 1.0
READERS_S = 75.0
LEFT_S = 20.0
DEAD_LETTERS_S = 6.0
"""A dead letter that was refused is sent again within this time."""
SHOWN_MAX = 5


class NoProgress(Exception):
    """An operation that does not end although everything works."""


class Leak(Exception):
    """A resource that is left when all clients are gone."""


@dataclass
class Outcome:
    """The result of a seed. `findings`: pairs of a checker and its text."""

    seed: int
    kind: str
    findings: list[tuple[str, str]] = field(default_factory=list)
    injected: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0
    trace: list[str] = field(default_factory=list)


def simulate(seed: int, *, trace: bool = False) -> Outcome:
    """Simulate a seed from beginning to end. Findings are in the outcome, not raised."""
    plan = draw(seed)
    outcome = Outcome(seed, plan.kind)
    folder = Path(mkdtemp(prefix="millpond-sim-", dir=_memory()))
    began = perf_counter()
    sim = Simulation(seed, plan, folder)
    gc.disable()
    logging.disable(logging.WARNING)
    try:
        anyio.run(_simulate, sim, backend_options={"loop_factory": CountingLoop})
    except BaseExceptionGroup as group:
        outcome.findings += [(_name(error), _text(error)) for error in _leaves(group)]
    except Exception as error:  # whatever fails is a finding of this seed
        outcome.findings.append((_name(error), _text(error)))
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        shutil.rmtree(folder)
    if not outcome.findings:
        outcome.findings = check_history(History(plan, sim.seen))
    outcome.injected = sim.injected
    outcome.counts = Counter(type(each).__name__.lower() for each in sim.seen)
    outcome.counts["again"] = sum(
        isinstance(each, e.Push) and each.attempt > 1 for each in sim.seen
    )
    outcome.virtual_s = sim.seen[-1].at if sim.seen else 0.0
    if trace:
        outcome.trace = [
            e.line(each) if isinstance(each, e.Event) else ce.line(each) for each in sim.seen
        ]
    outcome.real_s = perf_counter() - began
    return outcome


def check_history(history: History) -> list[tuple[str, str]]:
    """The findings of the checkers."""
    findings = []
    for name, check in CHECKS.items():
        for text in check(history):
            findings.append((name, text))
            if len(findings) == SHOWN_MAX:
                return findings
    return findings


async def _simulate(sim: Simulation) -> None:
    async with sim.world as world:
        with world.guard():
            await world.idle()
            before = len(asyncio.all_tasks())
            await _build(sim)
            await _live(sim)
            for name in sim.plan.nodes:
                await sim.node(name).stop()
                sim.tell(e.Halt(sim.now, name, "stop"))
            await world.idle()
            _check_disks(sim)
            left = len(asyncio.all_tasks()) - before
            if left:
                names = sorted(task.get_name() for task in asyncio.all_tasks())
                raise Leak(f"{left} tasks are left: {names}")


async def _build(sim: Simulation) -> None:
    plan, world = sim.plan, sim.world
    world.latency(plan.latency_s)
    world.split(plan.split)
    for name in plan.nodes:
        sim.tell(e.Boot(sim.now, name, 0.0))
        rules, streams = plan.rules(name), plan.stream_rules(name)
        await world.node(name, channels=rules, streams=streams, **plan.settings)
    if plan.linked:
        world.link(*world.nodes.values())


async def _live(sim: Simulation) -> None:
    """Run the clients and faults of the plan; then end the faults, and wait for the clients."""
    plan = sim.plan
    injector = FaultInjector(sim)
    async with running_clients(sim) as tasks:
        async with anyio.create_task_group() as disturbing:
            disturbing.start_soon(injector.run)
            await anyio.sleep(plan.lasts_s)
            disturbing.cancel_scope.cancel()
        sim.is_calm = True
        await injector.mend()
        for node, name in plan.queues:
            tasks.start_soon(drain, sim, node, f"{name}!dead", f"digger-{node}-{name[-2:]}")
        await _finish(sim)
        tasks.cancel_scope.cancel()
    await _check_empty(sim)


@asynccontextmanager
async def running_clients(sim: Simulation) -> AsyncIterator[TaskGroup]:
    """The clients of the plan, for the block. An exception in one of them ends it."""
    async with anyio.create_task_group() as tasks:
        for channel in sim.plan.channels:
            if channel.is_inspected:
                tasks.start_soon(inspect, sim, channel)
            for consumer in channel.consumers:
                tasks.start_soon(Consumer(sim, channel, consumer).run)
            for producer in channel.producers:
                tasks.start_soon(Producer(sim, channel, producer).run)
        for work in sim.plan.jobs:
            tasks.start_soon(JobProducer(sim, work, tasks).run)
            if work.is_operated:
                tasks.start_soon(QueueOperator(sim, work).run)
            for number in range(work.workers):
                tasks.start_soon(JobWorker(sim, work, number).run)
        for queue in sim.plan.flows:
            tasks.start_soon(FlowProducer(sim, queue).run)
            tasks.start_soon(read_results, sim, queue)
            for schedule in queue.schedules:
                tasks.start_soon(keep_schedule, sim, queue, schedule)
            for number in range(queue.workers):
                tasks.start_soon(FlowWorker(sim, queue, number).run)
        for stream in sim.plan.streams:
            for number in range(stream.writers):
                tasks.start_soon(Writer(sim, stream, number).run)
            for number in range(stream.readers):
                tasks.start_soon(follow, sim, stream, number)
            for number in range(stream.workers):
                tasks.start_soon(Subscriber(sim, stream, number).run)
        for number, mail in enumerate(sim.plan.mail):
            tasks.start_soon(mail_clients.send, sim, mail, number)
        for target in sorted({mail.target for mail in sim.plan.mail}):
            tasks.start_soon(mail_clients.read, sim, target)
        yield tasks


async def _finish(sim: Simulation) -> None:
    """Wait until no client has anything to do any more."""
    give_up_at = sim.now + PROGRESS_S
    await _until(sim, lambda: not sim.unfinished, give_up_at, lambda: [*sim.unfinished])
    plan = sim.plan
    for channel in plan.channels:
        await _until_empty(sim, channel.node, channel.name, give_up_at)
    for node, name in plan.queues:
        await _until_empty(sim, node, name, give_up_at)
    if plan.queues:  # expired messages are in no list, and may be on their way
        await anyio.sleep(DEAD_LETTERS_S)
    for node, name in plan.queues:
        await _until_empty(sim, node, f"{name}!dead", give_up_at)
    await _until(sim, lambda: not _missing_mail(sim), give_up_at, lambda: _missing_mail(sim))
    await _until_all_is_read(sim)
    for stream in plan.streams:
        if stream.workers:
            await _until_settled(sim, stream, give_up_at)
        await read_all(sim, stream)


def _missing_mail(sim: Simulation) -> list[bytes]:
    """The envelopes that did not arrive yet."""
    read = {each.data for each in sim.seen if isinstance(each, ce.MailRead)}
    sent = [each.data for each in sim.seen if isinstance(each, ce.MailSent)]
    return [data for data in sent if data not in read]


async def _until_all_is_read(sim: Simulation) -> None:
    """Wait for followers that lost their connection."""
    if sim.plan.streams:
        await anyio.sleep(READERS_S)


async def _until(
    sim: Simulation, done: Callable[[], bool], give_up_at: float, what: Callable[[], object]
) -> None:
    while not done():
        if sim.now > give_up_at:
            raise NoProgress(f"{what()} not finished {PROGRESS_S:g} s after the last fault ended")
        await anyio.sleep(LOOK_S)


async def _until_settled(sim: Simulation, stream: StreamPlan, give_up_at: float) -> None:
    """Wait until a subscription has nothing that is not acknowledged."""
    while not await is_settled(sim, stream):
        if sim.now > give_up_at:
            raise NoProgress(f"the subscription to {stream.name} has records that nobody handled")
        await anyio.sleep(LOOK_S)


async def _until_empty(sim: Simulation, node: str, channel: str, give_up_at: float) -> None:
    """Wait; only messages that a subscriber which left for good has not acked may stay."""
    is_fanout = sim.plan.mode_of(node, channel) is Mode.FANOUT
    async with joined(sim, node, channel, "judge", role="consumer", window=0) as looking:
        while ids := await looking.list():
            if is_fanout and _all_offered(sim, node, channel):
                return
            if sim.now > give_up_at:
                raise NoProgress(f"{node}/{channel} still has {ids[:5]}")
            await anyio.sleep(LOOK_S)


def _all_offered(sim: Simulation, node: str, channel: str) -> bool:
    """Was nothing pushed for a while?"""
    pushes = [each.at for each in sim.seen if isinstance(each, e.Push) and each.node == node]
    return sim.now > max(pushes, default=0.0) + 60.0


async def _check_empty(sim: Simulation) -> None:
    """Nothing is connected any more, or kept but unread messages of a fanout channel."""
    plan = sim.plan
    for name in plan.nodes:
        async with joined(sim, name, PROBE.decode(), "judge", role="consumer", window=0) as probe:
            await anyio.sleep(LEFT_S)
            info = await probe.admin(Operation.INFO, {"limit": 1000})
        names = {c.name.encode() for c in plan.channels if c.mode is not Mode.FANOUT}
        names |= {name.encode() for _, name in plan.queues}
        for page in info["page"]:
            counted = page["name"].removesuffix(b"!dead") in names
            left = {key: page[key] for key in ("messages", "bytes", "leased", "connections")}
            if counted and any(left.values()):
                raise Leak(f"{name}: {page['name']!r} still has {left}")
        owes = any(c.node == name and c.mode is Mode.FANOUT for c in plan.channels)
        if not (plan.linked or plan.jobs or plan.flows or owes):
            usage = info["usage"]
            if usage["messages"] or usage["bytes"]:
                raise Leak(f"{name}: {usage}")


def _check_disks(sim: Simulation) -> None:
    """No fault of a plan corrupts bytes: what a power failure tore is not reported as damaged."""
    for name in sim.plan.nodes:
        node = sim.node(name)
        assert node.disk is not None, "the nodes of a simulation are on simulated disks"
        for damage in read_reports(node.folder / "damaged", node.disk):
            raise Leak(f"{name} took for damaged: {damage}")


def _memory() -> str | None:
    """A folder in memory, where there is one: the simulated disks' SQLite files."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _name(error: BaseException) -> str:
    match error:
        case NoProgress() | Unending():
            return "progress"
        case Leak():
            return "leak"
        case _:
            return "crash"


def _text(error: BaseException) -> str:
    frame = error.__traceback__
    places = []
    while frame is not None:
        code = frame.tb_frame.f_code
        places.append(f"{Path(code.co_filename).name}:{frame.tb_lineno}")
        frame = frame.tb_next
    return f"{type(error).__name__}: {error} ({' '.join(places[-4:])})"


def plan_text(plan: Plan) -> str:
    """The plan as text, a line for each field."""
    return "\n".join(
        f"{name} = {value}"
        for name, value in ((each, getattr(plan, each)) for each in plan.__dataclass_fields__)
    )

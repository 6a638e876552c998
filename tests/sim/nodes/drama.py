"""One seed: a world, its people, what goes wrong, the mending of it, and what the judges say."""

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
from millpond.node.client.connect import PROBE
from tests.sim.nodes import events as e
from tests.sim.nodes import notes as n
from tests.sim.nodes import writers
from tests.sim.nodes.checks import (
    acks,
    attempts,
    credit,
    deadlines,
    jobs,
    kept,
    leases,
    mail,
    once,
    order,
    retries,
    streams,
    tees,
)
from tests.sim.nodes.clients import Consumer, Producer, drain, joined, watch
from tests.sim.nodes.drawing import draw
from tests.sim.nodes.history import History
from tests.sim.nodes.jobbers import Boss, Hands
from tests.sim.nodes.plan import Plan
from tests.sim.nodes.pulse import CountingLoop
from tests.sim.nodes.stage import Stage, Unending
from tests.sim.nodes.streamers import Writer, follow, read_all
from tests.sim.nodes.trouble import Troubles

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
    "jobs": jobs.check,
    "mail": mail.check,
    "retries": retries.check,
    "tees": tees.check,
}
PROGRESS_S = 900.0
LOOK_S = 1.0
READERS_S = 75.0
LEFT_S = 20.0
SHOWN_MAX = 5


class NoProgress(Exception):
    """Everything works, and something does not come to its end."""


class Leak(Exception):
    """Something is left when everybody is gone."""


@dataclass
class Outcome:
    """The result of a seed. `findings`: pairs of a checker and its text."""

    seed: int
    kind: str
    findings: list[tuple[str, str]] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0
    real_s: float = 0.0
    trace: list[str] = field(default_factory=list)


def play(seed: int, *, trace: bool = False) -> Outcome:
    """Play a seed from beginning to end. What is wrong is in the outcome, not raised."""
    plan = draw(seed)
    outcome = Outcome(seed, plan.kind)
    folder = Path(mkdtemp(prefix="millpond-sim-", dir=_memory()))
    began = perf_counter()
    stage = Stage(seed, plan, folder)
    gc.disable()
    logging.disable(logging.WARNING)
    try:
        anyio.run(_play, stage, backend_options={"loop_factory": CountingLoop})
    except BaseExceptionGroup as group:
        outcome.findings += [(_name(error), _text(error)) for error in _leaves(group)]
    except Exception as error:  # whatever fails is a finding of this seed
        outcome.findings.append((_name(error), _text(error)))
    finally:
        logging.disable(logging.NOTSET)
        gc.enable()
        shutil.rmtree(folder)
    if not outcome.findings:
        outcome.findings = judge(History(plan, stage.seen))
    outcome.struck = stage.struck
    outcome.counts = Counter(type(each).__name__.lower() for each in stage.seen)
    outcome.counts["again"] = sum(
        isinstance(each, e.Push) and each.attempt > 1 for each in stage.seen
    )
    outcome.virtual_s = stage.seen[-1].at if stage.seen else 0.0
    if trace:
        outcome.trace = [
            e.line(each) if isinstance(each, e.Event) else n.line(each) for each in stage.seen
        ]
    outcome.real_s = perf_counter() - began
    return outcome


def judge(history: History) -> list[tuple[str, str]]:
    """The findings of the checkers."""
    findings = []
    for name, check in CHECKS.items():
        for text in check(history):
            findings.append((name, text))
            if len(findings) == SHOWN_MAX:
                return findings
    return findings


async def _play(stage: Stage) -> None:
    async with stage.world as world:
        with world.guard():
            await world.idle()
            before = len(asyncio.all_tasks())
            await _build(stage)
            await _live(stage)
            for name in stage.plan.nodes:
                await stage.node(name).stop()
                stage.tell(e.Halt(stage.now, name, "stop"))
            await world.idle()
            _check_disks(stage)
            left = len(asyncio.all_tasks()) - before
            if left:
                names = sorted(task.get_name() for task in asyncio.all_tasks())
                raise Leak(f"{left} tasks are left: {names}")


async def _build(stage: Stage) -> None:
    plan, world = stage.plan, stage.world
    world.latency(plan.latency_s)
    world.split(plan.split)
    for name in plan.nodes:
        stage.tell(e.Boot(stage.now, name, 0.0))
        rules, streams = plan.rules(name), plan.stream_rules(name)
        await world.node(name, channels=rules, streams=streams, **plan.settings)
    if plan.linked:
        world.link(*world.nodes.values())


async def _live(stage: Stage) -> None:
    """Everybody does what the plan says; then all is mended, and must come to an end."""
    plan = stage.plan
    troubles = Troubles(stage)
    async with people(stage) as crowd:
        async with anyio.create_task_group() as disturbing:
            disturbing.start_soon(troubles.run)
            await anyio.sleep(plan.lasts_s)
            disturbing.cancel_scope.cancel()
        stage.is_calm = True
        await troubles.mend()
        for node, name in plan.queues:
            crowd.start_soon(drain, stage, node, f"{name}!dead", f"digger-{node}-{name[-2:]}")
        await _finish(stage)
        crowd.cancel_scope.cancel()
    await _check_empty(stage)


@asynccontextmanager
async def people(stage: Stage) -> AsyncIterator[TaskGroup]:
    """All programs of the plan, for the block. What one of them raises ends it."""
    async with anyio.create_task_group() as crowd:
        for channel in stage.plan.channels:
            if channel.watched:
                crowd.start_soon(watch, stage, channel)
            for consumer in channel.consumers:
                crowd.start_soon(Consumer(stage, channel, consumer).run)
            for producer in channel.producers:
                crowd.start_soon(Producer(stage, channel, producer).run)
        for work in stage.plan.jobs:
            crowd.start_soon(Boss(stage, work, crowd).run)
            for number in range(work.workers):
                crowd.start_soon(Hands(stage, work, number).run)
        for stream in stage.plan.streams:
            for number in range(stream.writers):
                crowd.start_soon(Writer(stage, stream, number).run)
            for number in range(stream.readers):
                crowd.start_soon(follow, stage, stream, number)
        for number, letters in enumerate(stage.plan.mail):
            crowd.start_soon(writers.send, stage, letters, number)
        for target in sorted({letters.target for letters in stage.plan.mail}):
            crowd.start_soon(writers.read, stage, target)
        yield crowd


async def _finish(stage: Stage) -> None:
    """Until nobody has anything to do any more."""
    give_up_at = stage.now + PROGRESS_S
    await _until(stage, lambda: not stage.unfinished, give_up_at, lambda: [*stage.unfinished])
    plan = stage.plan
    for channel in plan.channels:
        await _until_empty(stage, channel.node, channel.name, give_up_at)
    for node, name in plan.queues:
        await _until_empty(stage, node, name, give_up_at)
        await _until_empty(stage, node, f"{name}!dead", give_up_at)
    await _until(stage, lambda: not _letters(stage), give_up_at, lambda: _letters(stage))
    await _until_all_is_read(stage)
    for stream in plan.streams:
        await read_all(stage, stream)


def _letters(stage: Stage) -> list[bytes]:
    """Those that did not arrive yet."""
    read = {each.data for each in stage.seen if isinstance(each, n.LetterRead)}
    sent = [each.data for each in stage.seen if isinstance(each, n.LetterSent)]
    return [data for data in sent if data not in read]


async def _until_all_is_read(stage: Stage) -> None:
    """Followers that lost their connection come back."""
    if stage.plan.streams:
        await anyio.sleep(READERS_S)


async def _until(
    stage: Stage, done: Callable[[], bool], give_up_at: float, what: Callable[[], object]
) -> None:
    while not done():
        if stage.now > give_up_at:
            raise NoProgress(f"{what()} not finished {PROGRESS_S:g} s after all was mended")
        await anyio.sleep(LOOK_S)


async def _until_empty(stage: Stage, node: str, channel: str, give_up_at: float) -> None:
    """Only what a subscriber that left for good is owed may stay."""
    is_fanout = stage.plan.mode_of(node, channel) is Mode.FANOUT
    async with joined(stage, node, channel, "judge", role="consumer", window=0) as looking:
        while ids := await looking.list():
            if is_fanout and _all_offered(stage, node, channel):
                return
            if stage.now > give_up_at:
                raise NoProgress(f"{node}/{channel} still has {ids[:5]}")
            await anyio.sleep(LOOK_S)


def _all_offered(stage: Stage, node: str, channel: str) -> bool:
    """Nothing was pushed for a while."""
    pushes = [each.at for each in stage.seen if isinstance(each, e.Push) and each.node == node]
    return stage.now > max(pushes, default=0.0) + 60.0


async def _check_empty(stage: Stage) -> None:
    """Nobody is connected any more, and nothing is kept but what a fanout channel owes."""
    plan = stage.plan
    for name in plan.nodes:
        async with joined(
            stage, name, PROBE.decode(), "judge", role="consumer", window=0
        ) as asking:
            await anyio.sleep(LEFT_S)
            info = await asking.admin(Operation.INFO, {"limit": 1000})
        names = {c.name.encode() for c in plan.channels if c.mode is not Mode.FANOUT}
        names |= {name.encode() for _, name in plan.queues}
        for page in info["page"]:
            counted = page["name"].removesuffix(b"!dead") in names
            left = {key: page[key] for key in ("messages", "bytes", "leased", "connections")}
            if counted and any(left.values()):
                raise Leak(f"{name}: {page['name']!r} still has {left}")
        owes = any(c.node == name and c.mode is Mode.FANOUT for c in plan.channels)
        if not (plan.linked or plan.jobs or owes):
            usage = info["usage"]
            if usage["messages"] or usage["bytes"]:
                raise Leak(f"{name}: {usage}")


def _check_disks(stage: Stage) -> None:
    """No fault of a plan makes bytes rot: what a power failure tore is not called damaged."""
    for name in stage.plan.nodes:
        node = stage.node(name)
        assert node.disk is not None, "the nodes of a drama are on simulated disks"
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
    """The plan, for who looks at a seed."""
    return "\n".join(
        f"{name} = {value}"
        for name, value in ((each, getattr(plan, each)) for each in plan.__dataclass_fields__)
    )

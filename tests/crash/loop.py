"""Kill the node again and again, and see what is left: `python -m tests.crash.loop --kills N`.

With `--power` its disk loses the power each time instead, on a volume of its own. With `--redis`
its store is in Redis, which is killed as well in two lives of three.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import anyio
import msgspec
from anyio import to_thread
from anyio.abc import TaskGroup

from tests.crash.audit import audit, drain
from tests.crash.checker import CheckResult, check
from tests.crash.connection import UnexpectedPacket
from tests.crash.events import Event, Settled, Started
from tests.crash.history import History
from tests.crash.plan import Death, End, ends, power_cuts
from tests.crash.process import OUTSIDE, Addresses, Crashed, Victim, start
from tests.crash.report import ledger
from tests.crash.stream_checker import StreamCheckResult, check_streams
from tests.crash.stream_events import StreamEvent
from tests.crash.stream_work import StreamWork
from tests.crash.volume import Volume
from tests.crash.workload import BRIEF_TTL_S, Reader, ReaderPlan, Writer, WriterPlan
from tests.redis_server import RedisServer, redis_server

UNREAD = "pair/rest"
"""Nobody reads here, so that all of it must be there whenever one looks."""
WRITERS = (
    WriterPlan("chat-1", 1, "pair/chat", 500),
    WriterPlan("chat-2", 2, "pair/chat", 200),
    WriterPlan("away-1", 3, "pair/away", 300),
    WriterPlan("rest-1", 4, UNREAD, 200),
    WriterPlan("rest-2", 5, UNREAD, 60),
    WriterPlan("jobs-1", 6, "queue/jobs", 400),
    WriterPlan("slow-1", 7, "queue/slow", 250),
    WriterPlan("brief-1", 8, "pair/brief", 150, BRIEF_TTL_S),
)
READERS = (
    ReaderPlan("chat", 101, "pair/chat"),
    ReaderPlan("away", 102, "pair/away", every=5),
    ReaderPlan("worker-1", 103, "queue/jobs", window=8),
    ReaderPlan("worker-2", 104, "queue/jobs", window=4),
    ReaderPlan("slow", 105, "queue/slow", late_s=0.02, window=8),
)
CHANNELS = tuple(dict.fromkeys(plan.channel for plan in WRITERS))
PASSING_NUMBER, PASSING_READER_NUMBER, PASSING_PER_S = 9, 109, 300
"""Each life has a channel of its own, so that partitions come into being; the next one reads it."""
LOOPS = ("uvloop", "uvloop", "asyncio", "uvloop", "trio")
COMPLAINTS_MAX = 10
"""So many are shown in the table."""
REDIS_FIRST, REDIS_ANEW = "Redis, then the node", "Redis, which was started anew"
REDIS_AWAY_S = 0.3
END_S = 10.0
"""The time within which all clients notice that the node is dead."""


class Times(msgspec.Struct, frozen=True):
    """Milliseconds of something that every life did."""

    median: int
    worst: int
    last: int

    @staticmethod
    def of(seconds: list[float]) -> Times:
        middle, worst, last = median(seconds), max(seconds), seconds[-1]
        return Times(*(round(1000 * each) for each in (middle, worst, last)))

    def __str__(self) -> str:
        return f"median {self.median} ms, worst {self.worst} ms, the last {self.last} ms"


class Report(msgspec.Struct, frozen=True):
    """`kills` by what the node was doing. `start_ms`: from the start of the process to its ready
    line; `recovery_ms`: the part of it in the store. `complaints`: errors in the node's logs."""

    seed: int
    seconds: float
    result: CheckResult
    streams: StreamCheckResult
    kills: dict[str, int]
    inside: int
    outside: int
    start_ms: Times
    recovery_ms: Times
    complaints: tuple[str, ...]

    @property
    def is_good(self) -> bool:
        return not (self.result.faults or self.streams.faults or self.complaints)

    def table(self) -> str:
        """For people."""
        kills = [f"  {count:>4}  {where}" for where, count in sorted(self.kills.items())]
        return "\n".join(
            [
                ledger({"channels": self.result, "streams": self.streams}),
                f"kills: {self.inside} inside, {self.outside} from outside",
                *kills,
                f"start: {self.start_ms}",
                f"recovery: {self.recovery_ms}",
                f"seed {self.seed}, {self.seconds:.1f} s",
                *self.complaints[:COMPLAINTS_MAX],
            ]
        )


class Run:
    """A folder, a workload, and the lives that go over them.

    With a `volume` the data folder is on it, and a life from outside ends with a loss of power.
    With `redis` the store is there.
    """

    def __init__(
        self,
        folder: Path,
        seed: int,
        volume: Volume | None = None,
        redis: RedisServer | None = None,
    ) -> None:
        rng = Random(seed)
        self.seed = seed
        self.history = History(seed)
        self.data = (folder if volume is None else volume.at) / "data"
        self.data.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._volume = volume
        self._redis = redis
        self._writers = [Writer(plan, self.history) for plan in WRITERS]
        self._readers = [Reader(plan, self.history, Random(rng.random())) for plan in READERS]
        self._passing: list[Writer] = []
        self._streams = StreamWork(self.history, seed)
        self._began = time.perf_counter()
        self.causes: Counter[str] = Counter()
        self.starts: list[float] = []
        self.recoveries: list[float] = []
        self.complaints: list[str] = []

    async def live(self, end: End) -> None:
        """One life, from its start to its violent end. Raises Crashed for any other."""
        victim = await self._start(end.death)
        try:
            if victim.to is not None:
                await self._work(victim, victim.to, end.live_s)
        finally:
            await victim.kill()
        if self._volume is not None:
            self._volume.power_up()
        if self._redis is not None and self._redis.process.poll() is not None:
            await to_thread.run_sync(self._redis.start)
        if self._redis is not None and victim.has_lost_its_store():
            self.causes[REDIS_ANEW] += 1
            return
        cause = _where(victim.cause())
        is_both = self._redis is not None and self.history.life % 3 == 1
        self.causes[REDIS_FIRST if is_both else cause] += 1
        if not is_both:
            self._listen_to(victim)

    async def finish(self) -> None:
        """The lives without a kill: retries, a gentle end, all drained, and nothing comes back."""
        async with self._gentle() as to, anyio.create_task_group() as tasks:
            for writer in [*self._writers, *self._unsettled()]:
                tasks.start_soon(partial(writer.run, to.p2p, only_retries=True))
            tasks.start_soon(self._streams.finish, to)
        await anyio.sleep(BRIEF_TTL_S + 1)
        drained: list[int] = []
        async with self._gentle() as to:
            await self._streams.look(to)
            for channel in self._channels():
                drained += await drain(to.p2p, channel, self.history)
        self.history.record(Settled(tuple(drained)))
        async with self._gentle() as to:
            await self._streams.look(to)
            for channel in self._channels():
                await drain(to.p2p, channel, self.history)

    def report(self) -> Report:
        """The report: counts, faults and times."""
        return Report(
            seed=self.seed,
            seconds=round(time.perf_counter() - self._began, 1),
            result=check(each for each in self.history.events if isinstance(each, Event)),
            streams=check_streams(
                each for each in self.history.events if isinstance(each, Started | StreamEvent)
            ),
            kills=dict(self.causes),
            inside=self.causes.total() - self.causes[OUTSIDE],
            outside=self.causes[OUTSIDE],
            start_ms=Times.of(self.starts),
            recovery_ms=Times.of(self.recoveries),
            complaints=tuple(self.complaints),
        )

    async def _start(self, death: Death | None) -> Victim:
        self.history.life += 1
        life = self.history.life
        self.history.record(Started(life, time.time_ns() // 1_000_000))
        log = self._folder / f"life-{life:04}.log"
        store = "" if self._redis is None else self._redis.url
        victim = await start(self.data, log, death, LOOPS[life % len(LOOPS)], store)
        if victim.to is not None:
            self.starts.append(victim.start_s)
            self.recoveries.append(victim.recovery_s())
        return victim

    async def _work(self, victim: Victim, to: Addresses, live_s: float) -> None:
        async with anyio.create_task_group() as tasks:
            self._streams.start(tasks, to)
            tasks.start_soon(audit, to.p2p, UNREAD, self.history)
            for writer in self._writers:
                tasks.start_soon(writer.run, to.p2p)
            for reader in self._readers:
                if self.history.life % reader.plan.every == 0:
                    tasks.start_soon(reader.run, to.p2p)
            self._pass_through(tasks, to.p2p)
            with anyio.move_on_after(live_s):
                await victim.process.wait()
            if self._redis is not None:
                await self._kill_redis(victim, self._redis)
            if self._volume is not None:
                await victim.freeze()  # it must not see, and tell, that its disk has gone
                self._volume.cut_power()
            await victim.kill()
            tasks.cancel_scope.deadline = anyio.current_time() + END_S
        if tasks.cancel_scope.cancelled_caught:
            raise UnexpectedPacket("somebody has not noticed that the node is dead")

    async def _kill_redis(self, victim: Victim, redis: RedisServer) -> None:
        """In one life of three Redis dies before the node; in another one it is back while the node
        runs, which ends then by itself."""
        kind = self.history.life % 3
        if kind:
            redis.kill()
            await anyio.sleep(REDIS_AWAY_S)
        if kind == 2:
            await to_thread.run_sync(redis.start)
            with anyio.move_on_after(END_S):
                await victim.process.wait()

    def _pass_through(self, tasks: TaskGroup, address: str) -> None:
        """Write to this life's own channel, and read that of the last one."""
        life = self.history.life
        for writer in self._unsettled():
            tasks.start_soon(partial(writer.run, address, only_retries=True))
        plan = WriterPlan(f"new-{life}", PASSING_NUMBER, _passing(life), PASSING_PER_S)
        self._passing.append(Writer(plan, self.history))
        tasks.start_soon(self._passing[-1].run, address)
        reading = ReaderPlan(f"old-{life}", PASSING_READER_NUMBER, _passing(life - 1))
        tasks.start_soon(Reader(reading, self.history, Random(life)).run, address)

    def _unsettled(self) -> list[Writer]:
        return [each for each in self._passing if each.has_unanswered]

    def _channels(self) -> list[str]:
        return [*CHANNELS, *(each.plan.channel for each in self._passing)]

    @asynccontextmanager
    async def _gentle(self) -> AsyncIterator[Addresses]:
        victim = await self._start(None)
        try:
            if victim.to is None:
                raise Crashed(victim.log.read_text(errors="replace")[-4000:])
            yield victim.to
            await victim.stop()
        finally:
            await victim.kill()
        self._listen_to(victim)

    def _listen_to(self, victim: Victim) -> None:
        self.complaints += [f"{victim.log.name}: {each}" for each in victim.complaints()]


def _passing(life: int) -> str:
    return f"pair/new-{life}"


def _where(cause: str) -> str:
    """The kind of call and phase, without its number and file."""
    if cause == OUTSIDE:
        return cause
    death = Death.parse(cause.split()[0])
    return f"{death.kind} {death.place} {death.phase.value}"


async def run(
    folder: Path,
    seed: int,
    kills: int,
    volume: Volume | None = None,
    redis: RedisServer | None = None,
) -> Report:
    """Kill the node so many times, or cut the power of its volume. Raises Crashed if it ends by
    itself, UnexpectedPacket."""
    lives = Run(folder, seed, volume, redis)
    is_outside = volume is not None or redis is not None
    try:
        for end in power_cuts(seed, kills) if is_outside else ends(seed, kills):
            await lives.live(end)
        await lives.finish()
    finally:
        history = map(msgspec.json.encode, lives.history.events)
        (folder / "history.jsonl").write_bytes(b"\n".join(history))
    return lives.report()


def main() -> int:
    """Read the command line, run, and tell. 1 if anything was found that must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash.loop", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--data", type=Path, metavar="DIR", help="empty; default: a new folder")
    parser.add_argument("--power", action="store_true", help="cut the power of its disk (as root)")
    parser.add_argument("--redis", action="store_true", help="with a store in Redis")
    parser.add_argument("--json", action="store_true", help="the report as one line")
    args = parser.parse_args()
    if args.data and args.data.is_dir() and any(args.data.iterdir()):
        parser.error(f"--data: {args.data} is not empty")
    folder = args.data or Path(tempfile.mkdtemp(prefix="millpond-crash-"))
    with ExitStack() as stack:
        volume = stack.enter_context(closing(Volume(folder))) if args.power else None
        redis = stack.enter_context(redis_server(folder / "redis")) if args.redis else None
        report = anyio.run(
            run, folder, args.seed, args.kills, volume, redis, backend_options={"use_uvloop": True}
        )
    print(msgspec.json.encode(report).decode() if args.json else report.table())
    if not report.is_good:
        found = {"channels": report.result.faults, "streams": report.streams.faults}
        print(f"found: {found}; all there is to know: {folder}", file=sys.stderr)
    return 0 if report.is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""All that a run of the kill loop does with streams."""

from __future__ import annotations

from functools import partial
from random import Random

import anyio
from anyio.abc import TaskGroup

from tests.crash.history import History
from tests.crash.process import Addresses
from tests.crash.stream_readers import Follower, Looker, Trimmer, TrimPlan
from tests.crash.stream_writers import AppendPlan, ExactWriter, OwnWriter, S3pWriter
from tests.crash.written_streams import WrittenStreams

KEPT_MAX = 4000
FAR_AHEAD_MS = 4_102_444_800_000
"""Ids of a time that no clock has reached: they go on only if the node remembers the last one."""
BY_S3P = (
    AppendPlan("log-1", "shared", 40),
    AppendPlan("log-2", "shared", 20),
    AppendPlan("kept-1", "kept", 10, KEPT_MAX),
    AppendPlan("ahead-1", "ahead", 30, ms=FAR_AHEAD_MS),
)
BY_OWN = (AppendPlan("own-1", "shared", 20),)
EXACT = (AppendPlan("exact-1", "exact", 40),)
TRIMS = (
    TrimPlan("shared", 0.1),
    TrimPlan("ahead", 0.4, at_once_share=0.3),
    TrimPlan("exact", 0.3, is_own=True),
)
"""Nobody trims `kept`, so that all of it must be there whenever one looks."""
FOLLOWED = ("shared", "ahead")
PASSING_PER_S = 20


class StreamWork:
    """Writers, readers and trimmers, over the lives of a node."""

    def __init__(self, history: History, seed: int) -> None:
        self._history = history
        self._written_streams = written_streams = WrittenStreams(history, seed)
        self._writers = [
            *(S3pWriter(plan, written_streams) for plan in BY_S3P),
            *(OwnWriter(plan, written_streams) for plan in BY_OWN),
            *(ExactWriter(plan, written_streams) for plan in EXACT),
        ]
        self._trimmers = [
            Trimmer(plan, written_streams, Random(f"{seed}|{plan.stream}")) for plan in TRIMS
        ]
        self._followers = [Follower(stream, written_streams) for stream in FOLLOWED]
        self._looker = Looker(written_streams)
        self._streams = list(dict.fromkeys(each.plan.stream for each in self._writers))
        self._passing: list[str] = []

    def start(self, tasks: TaskGroup, to: Addresses) -> None:
        """A life: everybody does his part until the node is gone."""
        life = self._history.life
        names = [*self._streams, *self._passing[-1:]]
        tasks.start_soon(partial(self._looker.run, to, names, by_s3p=life % 2 == 0))
        for writer in (*self._writers, self._newcomer(life)):
            tasks.start_soon(writer.run, to)
        for trimmer in self._trimmers:
            tasks.start_soon(trimmer.run, to)
        for follower in self._followers:
            tasks.start_soon(follower.run, to)

    def _newcomer(self, life: int) -> S3pWriter:
        """Each life has a stream of its own, so that partitions come into being."""
        plan = AppendPlan(f"passing-{life}", f"passing-{life}", PASSING_PER_S)
        self._passing.append(plan.stream)
        return S3pWriter(plan, self._written_streams)

    async def finish(self, to: Addresses) -> None:
        """The first life without a kill: what may be repeated is, and a little more is appended."""
        async with anyio.create_task_group() as tasks:
            for writer in self._writers:
                tasks.start_soon(partial(writer.run, to, is_last=True))
            for follower in self._followers:
                tasks.start_soon(partial(follower.run, to, is_last=True))
        await self.look(to)

    async def look(self, to: Addresses) -> None:
        """Read all streams, in both ways."""
        for by_s3p in (True, False):
            await self._looker.run(to, [*self._streams, *self._passing], by_s3p=by_s3p)

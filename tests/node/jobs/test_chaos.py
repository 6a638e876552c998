"""Workers on a network that breaks at random: every job is done, by one at a time, none is lost."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import anyio
import pytest

from millpond.jobs import Backoff, Job, task
from tests.node.jobs.job_setup import JobSetup, job_setup

WORKERS = ("ann", "ben", "eve")
JOBS = 40


class Piece:
    """The events of one worker's life: `begun` and `done` by job."""

    def __init__(self, setup: JobSetup, seed: int) -> None:
        self.setup = setup
        self.rng = Random(seed)
        self.begun: Counter[int] = Counter()
        self.done: Counter[int] = Counter()

    async def spoil(self) -> None:
        """Break something, mend it, and again."""
        network = self.setup.network
        while True:
            await anyio.sleep(self.rng.uniform(0.1, 5.0))
            who = self.rng.choice(WORKERS)
            match self.rng.randrange(3):
                case 0:
                    network.reset(who)
                case 1:
                    network.partition(who, "pond")
                    await anyio.sleep(self.rng.uniform(0.1, 10.0))
                    network.heal(who, "pond")
                case _:
                    network.stall(who)
                    await anyio.sleep(self.rng.uniform(0.1, 10.0))
                    network.unstall(who)

    def is_over(self) -> bool:
        return len(self.done) == JOBS


@pytest.mark.parametrize("seed", range(5))
async def test_every_job_is_done_whatever_breaks(seed: int) -> None:
    async with job_setup(ack_timeout_s=3.0, attempts_max=60_000) as setup:
        piece = Piece(setup, seed)

        @task(queue="mail", attempts=60_000, backoff=Backoff(0.5, 5.0), lease=4.0)
        async def work(_payload: Any, job: Job) -> None:
            piece.begun[job.id] += 1
            await anyio.sleep(piece.rng.expovariate(1 / 2.0))
            if piece.rng.random() < 0.2:
                raise ConnectionError("by chance")
            piece.done[job.id] += 1

        async with setup.queue() as queue:
            ids = {(await queue.put(number)).id for number in range(JOBS)}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(piece.spoil)
                async with (
                    setup.working([work], source="ann", concurrency=2, rng=Random(seed)),
                    setup.working([work], source="ben", concurrency=4, rng=Random(seed + 1)),
                    setup.working([work], source="eve", concurrency=1, rng=Random(seed + 2)),
                ):
                    await setup.until(piece.is_over)
                    tasks.cancel_scope.cancel()
            for who in WORKERS:
                setup.network.heal(who, "pond")
                setup.network.unstall(who)
        assert set(piece.done) == ids == set(piece.begun)
        assert "cancelled" not in setup.outcomes
        async with setup.working([work], source="last"):
            await anyio.sleep(600)
        assert await setup.kept() == [] and await setup.dead() == []

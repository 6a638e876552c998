"""The detector of livelocks: a busy world is none, and a task that never waits for time is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from millpond.testing import World
from tests.sim.nodes.livelock import CountingLoop, reading_loop
from tests.sim.nodes.repaired_folders import BATCHES_MAX, COUNT_MAX
from tests.sim.nodes.simulation import Unending

MESSAGES = 3 * 2 * BATCHES_MAX * 2 * COUNT_MAX
"""The most that a world of repairs has: two channels in each batch, two fills in each of three
rounds."""


@pytest.mark.parametrize("loop", [CountingLoop, reading_loop])
def test_a_task_that_only_yields_is_a_livelock(loop: Callable[[], CountingLoop]) -> None:
    async def spin() -> None:
        while True:
            await anyio.lowlevel.checkpoint()

    with pytest.raises(Unending):
        anyio.run(spin, backend_options={"loop_factory": loop})


def test_a_world_that_reads_the_most_messages_at_one_moment_comes_to_its_end(
    tmp_path: Path,
) -> None:
    async def read_all() -> int:
        async with World(1, folder=tmp_path, threads=False, timeout_s=120) as world:
            node = await world.node("pond")
            async with node.connect("orders") as channel:
                for _ in range(MESSAGES):
                    await channel.put(b"order", ttl=100_000)
                    await world.clock.sleep(0.1)
                return len([await channel.get(each) for each in await channel.list(limit=1000)])

    assert anyio.run(read_all, backend_options={"loop_factory": reading_loop}) == MESSAGES

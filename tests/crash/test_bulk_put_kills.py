"""kill -9 of a node that takes bulk puts: of each, all jobs are stored or none, and all of those
that it acknowledged."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.jobs import Queue
from millpond.node.jobs.payload import decode_job
from tests.node.processes import serving

pytestmark = pytest.mark.anyio

KILLS = 5
LIFE_S = 0.1, 0.5
SETTLED_S = 60.0
JOBS = 300
SPACE = "channel_bytes_max = 4294967296\nchannel_messages_max = 1000000\n"
"""Room for all that five lives can take: a full channel would refuse a put."""
QUIET = ("--ws", "off", "--s3p", "off", "--rustlog", "off", "--http", "off")


@pytest.fixture
def anyio_backend() -> str:
    """A kill hits another process: the event library of this one does not matter."""
    return "asyncio"


async def put(url: str, first: int, stored: list[int]) -> None:
    """Bulk puts, numbered, until cancelled: the client would wait for the node to come back."""
    number = first
    async with Queue(url, "mail") as queue:
        while True:
            await queue.put_many([number] * JOBS, headers={"pad": "x" * 5000})
            stored.append(number)
            number += 1


async def test_no_bulk_put_is_stored_in_part(tmp_path: Path) -> None:
    rng = Random(7)
    stored: list[int] = []
    config = tmp_path / "node.toml"
    config.write_text(SPACE)
    words = (
        *("--config", str(config), "--data", str(tmp_path / "node")),
        *("--durability", "disk", *QUIET),
    )
    for life in range(KILLS):
        with serving(*words) as node, anyio.fail_after(SETTLED_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(put, node.urls["tcp"], 1000 * life, stored)
                await anyio.sleep(rng.uniform(*LIFE_S))
                node.process.kill()
                tasks.cancel_scope.cancel()
    with serving(*words) as node, anyio.fail_after(SETTLED_S):
        async with Queue(node.urls["tcp"], "mail") as queue:
            found: Counter[int] = Counter()
            ids = [each.id async for each in queue.jobs()]
            for each in ids[::JOBS]:
                found[decode_job((await queue.show(each)).data or b"").payload] += 1
            assert len(ids) % JOBS == 0 and stored
            assert set(stored) <= set(found) and set(found.values()) == {1}

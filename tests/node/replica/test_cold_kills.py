"""Nodes that are killed while they move records to the replica: nothing is lost."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import COLD
from millpond.node.replica.restoration import verify
from tests.node.replica.cold_catch_up import fill, node_of, read_all

MEGABYTES = 12
LOCAL_BYTES = 2**20
LIMIT_S = 60.0


@pytest.mark.full
@pytest.mark.parametrize("kills", (3, 20))
def test_a_kill_beside_moves_loses_nothing(tmp_path: Path, kills: int) -> None:
    """The first object shows that moves have begun; a kill comes within the next ones."""
    records = MEGABYTES * 1000
    objects = FolderObjects(tmp_path / "replica")
    rng = Random(kills)
    with node_of(tmp_path, 0) as node:
        anyio.run(fill, node, records)
    for kill in range(kills):
        before = len(objects.list(COLD))
        left = 2 * MEGABYTES * 2**20 // (kill + 3)  # less stays each time, so there is more to move
        with node_of(tmp_path, max(left // 4, 2**16)) as node:
            end = time.monotonic() + LIMIT_S
            while len(objects.list(COLD)) == before and time.monotonic() < end:
                time.sleep(0.002)
            time.sleep(rng.uniform(0.0, 0.03))
            os.kill(node.process.pid, signal.SIGKILL)
            node.process.wait(LIMIT_S)
    with node_of(tmp_path, LOCAL_BYTES) as node:
        assert anyio.run(read_all, node) == list(range(records))
    assert objects.list(COLD)
    verify(objects, lambda size: None)

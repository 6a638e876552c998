"""Nodes that are killed beside writers: the next run ships what the killed one had acknowledged, in
the same history, and a restoration has all of it, once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from random import Random

import pytest

from millpond.errors import MillpondError
from millpond.sync import connect
from tests.node.processes import Serving, command, environment, serving

CHANNEL = "jobs/mail"
LIMIT_S = 120.0


class Writer(threading.Thread):
    """Puts numbers one after the other until its node is gone; knows which were acknowledged."""

    def __init__(self, node: Serving, first: int) -> None:
        super().__init__(daemon=True)
        self._url = node.urls["tcp"]
        self._first = first
        self.acknowledged: list[int] = []
        self.next = first

    def run(self) -> None:
        try:
            with connect(self._url, channel=CHANNEL, role="producer", reconnect=False) as channel:
                while True:
                    self.next += 1
                    channel.put(b"%d" % self.next, ttl=3600)
                    self.acknowledged.append(self.next)
        except MillpondError:
            pass  # the node was killed


def replica_of(node: Serving) -> dict[str, object]:
    shown = command("info", "--json", "--connect", node.urls["tcp"], env=environment())
    assert shown.returncode == 0, (shown.stderr, log_of(node))
    found: dict[str, object] = json.loads(shown.stdout)["replica"]
    return found


def log_of(node: Serving) -> str:
    """The log of a node that has ended."""
    if node.process.poll() is None or node.process.stderr is None:
        return ""
    return node.process.stderr.read().decode()


def wait_until_shipped(node: Serving) -> None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        found = replica_of(node)
        if found["state"] == "shipping" and not found["lag_bytes"] and found["snapshots"]:
            return
        time.sleep(0.05)
    raise AssertionError(f"never shipped: {replica_of(node)}")


def restored_numbers(url: str, folder: Path) -> list[int]:
    done = command("restore", "--from", url, "--data", str(folder), "--json", env=environment())
    assert done.returncode == 0, done.stderr
    assert not json.loads(done.stdout)["is_cut"], "each run went on where the killed one was"
    with serving("--data", str(folder)) as node:
        out = command("export", CHANNEL, "--connect", node.urls["tcp"], env=environment()).stdout
    return sorted(int(json.loads(line)["data"]) for line in out.splitlines())


@pytest.mark.parametrize("kills", (3, pytest.param(50, marks=pytest.mark.full)))
def test_nothing_is_lost_or_doubled(tmp_path: Path, kills: int) -> None:
    rng = Random(kills)
    url, data = f"file://{tmp_path}/replica", str(tmp_path / "data")
    env = environment(MILLPOND_REPLICA=url)
    acknowledged: list[int] = []
    attempted = 0
    for _ in range(kills):
        with serving("--data", data, env=env, limit_s=LIMIT_S) as node:
            writer = Writer(node, attempted)
            writer.start()
            time.sleep(rng.uniform(0.05, 2.0))
            os.kill(node.process.pid, signal.SIGKILL)
            writer.join(LIMIT_S)
            acknowledged += writer.acknowledged
            attempted = writer.next
    with serving("--data", data, env=env) as node:
        wait_until_shipped(node)
        found = replica_of(node)
    assert acknowledged
    numbers = restored_numbers(url, tmp_path / "restored")
    assert len(numbers) == len(set(numbers)), "doubled"
    assert set(acknowledged) <= set(numbers) <= set(range(1, attempted + 1)), "lost"
    assert found["breaks"] == 0
    assert command("replica", "verify", url, env=environment()).returncode == 0

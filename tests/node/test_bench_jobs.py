"""`millpond bench jobs` measures, and says when a job was lost."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest

import millpond
from millpond.errors import ConnectionLost
from millpond.node.bench import jobs as bench
from millpond.node.bench.load import Clocks
from millpond.node.bench.removal import removed_at_the_end
from millpond.node.cli.main import main
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.testing import run_node


def test_it_measures(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["bench", "jobs", "--jobs", "200", "--json"]) == 0
    told: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
    assert told["jobs"] == 200 and told["faults"] == {} and told["again"] == 0
    assert told["put_rate"] > 0 < told["run_rate"] and 0 < told["p50_us"] <= told["p99_us"]


async def test_a_job_that_is_not_run_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    put_all = bench._put_all

    async def one_of_another_world(*args: Any) -> list[int]:
        return [*await put_all(*args), 1]

    monkeypatch.setattr(bench, "_put_all", one_of_another_world)
    config = Config(p2p="127.0.0.1:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)
    async with Node(config) as node:
        clocks = Clocks(time.perf_counter, time.process_time)
        url = f"tcp://{node.listeners['p2p']}"
        result = await bench.measure_jobs(url, bench.JobsShape(20, 4), clocks, {})
    assert not result.ok and result.faults == {"never begun": 2}  # one of those that warm up


def test_a_running_node_is_measured_and_left_as_it_was(
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    with run_node() as node:
        assert main(["bench", "jobs", "--jobs", "50", "--json", "--connect", node.url]) == 0
        told: dict[str, Any] = json.loads(capfdbinary.readouterr().out)
        assert told["jobs"] == 50 and told["faults"] == {} and told["durability"] == "of the node"
        assert told["node_us"] is None
        with millpond.sync.connect(node.url, "any") as channel:
            assert [each.name for each in channel.channels.list("jobs/*")] == []
            assert list(channel.streams.names()) == []
        assert main(["bench", "jobs", "--connect", node.url, "--durability", "disk"]) == 2


def test_a_running_node_is_left_as_it_was_after_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: Any) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "_run_all", interrupted)
    with run_node() as node:
        with suppress(KeyboardInterrupt):
            main(["bench", "jobs", "--jobs", "50", "--connect", node.url])
        with millpond.sync.connect(node.url, "any") as channel:
            assert [each.name for each in channel.channels.list("jobs/*")] == []


async def test_data_that_a_benchmark_cannot_remove_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def remove() -> None:
        raise ConnectionLost("no node")

    with pytest.raises(RuntimeError, match="the benchmark's own"):
        async with removed_at_the_end(remove):
            raise RuntimeError("the benchmark's own")
    assert "not removed: error=no node" in caplog.text

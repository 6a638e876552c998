"""The state job in a real Spark: to the end, again from where it was, and over a killed node."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.pipeline.state.job import BatchReport, JobOptions, run_job
from millpond.pipeline.state.table import Table
from tests.pipeline.pipeline_nodes import NodeProcess

pytestmark = pytest.mark.filterwarnings("default")
PATIENCE_S = 600.0


def change(key: str, value: int) -> bytes:
    headers = {"operation": "update"}
    return json.dumps({"type": "n", "key": key, "value": value, "headers": headers}).encode()


def state_of(folder: Path) -> dict[str, int]:
    return {row["key"]: json.loads(row["value"]) for row in Table(folder).read().to_pylist()}


def options(node: NodeProcess, folder: Path, every_s: float | None = None) -> JobOptions:
    source = {"address": node.address, "subscribe": "state", "maxOffsetsPerTrigger": "1500"}
    return JobOptions(source, folder / "table", folder / "checkpoint", folder / "dead", every_s)


def run(spark: Any, asked: JobOptions) -> list[BatchReport]:
    done: list[BatchReport] = []
    run_job(spark, asked, done.append).awaitTermination()
    return done


def test_a_job_keeps_the_state_and_goes_on_over_a_killed_node(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    node.make("state")
    node.fill("state", [change(f"k{i % 100}", i) for i in range(2000)] + [b"{"])
    asked = options(node, tmp_path)
    with Table(asked.table).lock():
        done = run(spark, asked)
    assert [each.rejected for each in done] == [0, 1]
    assert state_of(asked.table) == {f"k{i % 100}": i for i in range(2000)}
    query = run_job(spark, options(node, tmp_path, 0.2))
    node.kill()
    node.start()
    node.fill("state", [change(f"k{i}", -i) for i in range(150)])
    until = time.monotonic() + PATIENCE_S
    while len(state_of(asked.table)) < 150:
        assert time.monotonic() < until and query.isActive, query.exception()
        time.sleep(0.2)
    query.stop()
    assert state_of(asked.table) == {f"k{i}": -i for i in range(150)}
    (letter,) = (tmp_path / "dead").glob("*.jsonl")
    assert json.loads(letter.read_text())["offset"] == 2000

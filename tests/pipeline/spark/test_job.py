"""The state job in a real Spark: to the end, again from where it was, and over a killed node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from millpond.pipeline.state.batch import Batch
from millpond.pipeline.state.delta_table import DeltaState
from millpond.pipeline.state.formats import existing_feed, table_in
from millpond.pipeline.state.job import BatchReport, JobOptions, run_job
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess

pytestmark = pytest.mark.filterwarnings("default")
PATIENCE_S = 600.0
DELETION = {"type": "n", "headers": {"operation": "delete"}}


def change(key: str, value: int) -> bytes:
    headers = {"operation": "update"}
    return json.dumps({"type": "n", "key": key, "value": value, "headers": headers}).encode()


def state_of(folder: Path) -> dict[str, int]:
    return {row["key"]: json.loads(row["value"]) for row in table_in(folder).read().to_pylist()}


def options(
    node: NodeProcess, folder: Path, every_s: float | None = None, **more: Any
) -> JobOptions:
    source = {"address": node.address, "subscribe": "state", "maxOffsetsPerTrigger": "1500"}
    return JobOptions(
        source, folder / "table", folder / "checkpoint", folder / "dead", every_s, **more
    )


def run(spark: Any, asked: JobOptions) -> list[BatchReport]:
    done: list[BatchReport] = []
    run_job(spark, asked, done.append).awaitTermination()
    return done


def events(count: int) -> tuple[list[bytes], dict[str, int]]:
    """Events of 700 entities, one in seven a deletion, and the state after them."""
    found, state = [], {}
    for i in range(count):
        key = f"k{i * 31 % 700}"
        if i % 7 == 6:
            state.pop(key, None)
            found.append(json.dumps({**DELETION, "key": key}).encode())
        else:
            state[key] = i
            found.append(change(key, i))
    return found, state


def folded(folder: Path) -> dict[str, int]:
    """The state that a reader of the change feed has, who checks what it knows of each entity."""
    state: dict[str, int] = {}
    for _, rows in existing_feed(folder).batches():
        for row in rows.to_pylist():
            before, after = (row[name] and json.loads(row[name]) for name in ("before", "after"))
            assert state.pop(row["key"], None) == before
            assert (row["operation"] == "insert") == (before is None)
            assert (row["operation"] == "delete") == (after is None)
            if after is not None:
                state[row["key"]] = after
    return state


def test_a_change_feed_has_each_batch_once(
    spark: Any, shared_node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second batch ends between its changes and its version, and is run again."""
    shared_node.make("state")
    bodies, expected = events(2000)
    shared_node.fill("state", bodies)
    asked = options(shared_node, tmp_path, changes=tmp_path / "changes")
    commit = DeltaState.commit

    def out_of_space(table: DeltaState, batch: Batch) -> None:
        if batch.number == 1:
            raise OSError("no space left")
        commit(table, batch)

    with table_in(asked.table).lock():
        with monkeypatch.context() as patch, pytest.raises(PySparkException, match="no space"):
            patch.setattr(DeltaState, "commit", out_of_space)
            run(spark, asked)
        assert [batch for batch, _ in existing_feed(tmp_path / "changes").batches()] == [0, 1]
        assert [each.batch for each in run(spark, asked)] == [1]
    assert folded(tmp_path / "changes") == state_of(asked.table) == expected


@pytest.mark.full
def test_a_job_with_a_change_feed_is_killed(node: NodeProcess, tmp_path: Path) -> None:
    """kill -9 of Python and Java of a job, as soon as another batch is there; three times."""
    node.make("state")
    bodies, expected = events(20_000)
    node.fill("state", bodies)
    words = ["--connect", node.address, "--subscribe", "state", "--max-per-batch", "1500"]
    for name in ("table", "checkpoint", "changes"):
        words += [f"--{name}", str(tmp_path / name)]
    command = [sys.executable, "-m", "millpond", "pipeline", "run", *words]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for kills in range(3):
        with subprocess.Popen(
            command, env=environment, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL
        ) as process:
            until = time.monotonic() + PATIENCE_S
            while len(list((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))) < 3 * kills + 2:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.02)
            os.killpg(process.pid, signal.SIGKILL)
    subprocess.run(command, env=environment, cwd=ROOT, check=True, timeout=PATIENCE_S)
    rows = table_in(tmp_path / "table").read().to_pylist()
    state = {row["key"]: json.loads(row["value"]) for row in rows}
    assert folded(tmp_path / "changes") == state == expected


def test_a_job_keeps_the_state_and_goes_on_over_a_killed_node(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    node.make("state")
    node.fill("state", [change(f"k{i % 100}", i) for i in range(2000)] + [b"{"])
    asked = options(node, tmp_path)
    with table_in(asked.table).lock():
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

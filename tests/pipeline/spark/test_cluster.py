"""The state job on a standalone cluster of two workers, one of which is killed in mid-job."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from millpond.pipeline.state.formats import table_in
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess
from tests.pipeline.spark.cluster import SMALL, Cluster

EVENTS, KEYS, AT_ONCE = 20_000, 500, 4000
PATIENCE_S = 600.0
CONF = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL,
    "spark.driver.extraJavaOptions": SMALL,
    "spark.shuffle.io.retryWait": "500ms",
}


def change(number: int) -> bytes:
    headers = {"operation": "update"}
    event = {"type": "n", "key": f"k{number % KEYS}", "value": number, "headers": headers}
    return json.dumps(event).encode()


def has_us(cluster: Cluster) -> bool:
    command = [cluster.python, "-c", "import pipeline"]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, cwd="/")
    return done.returncode == 0


def test_a_worker_that_is_killed_costs_nothing(node: NodeProcess, tmp_path: Path) -> None:
    node.make("state/0", "state/1")
    for part in (0, 1):
        numbers = range(part, EVENTS, 2)
        node.fill(f"state/{part}", [change(number) for number in numbers])
    with Cluster(tmp_path, workers=2) as cluster:
        assert not has_us(cluster), "the executors have us from what they are sent alone"
        words = ["--subscribe", "state", "--connect", node.address, "--master", cluster.master]
        for name in ("table", "checkpoint"):
            words += [f"--{name}", str(tmp_path / name)]
        for name, value in CONF.items():
            words += ["--conf", f"{name}={value}"]
        words += ["--max-per-batch", str(AT_ONCE), "--json"]
        given = cluster.environment | {"PYSPARK_PYTHON": str(cluster.python)}
        environment = given | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        command = [sys.executable, "-m", "millpond", "pipeline", "run", *words]
        with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, cwd=ROOT) as job:
            table = table_in(tmp_path / "table")
            until = time.monotonic() + PATIENCE_S
            while (table.summary() is None) or not all(map(cluster.has_executor, (0, 1))):
                assert time.monotonic() < until and job.poll() is None
                time.sleep(0.05)
            cluster.kill_worker(0)
            last = table.summary()
            assert last is not None and last.batch < EVENTS // AT_ONCE - 2
            _, told = job.communicate(timeout=PATIENCE_S)
            assert job.returncode == 0, told.decode()
    rows = table.read().to_pylist()
    state = {(row["partition"], row["key"]): json.loads(row["value"]) for row in rows}
    assert len(rows) == len(state)
    assert state == {(i % 2, f"k{i % KEYS}"): i for i in range(EVENTS)}
    batches = [json.loads(line) for line in told.splitlines()]
    assert sum(each["records"] for each in batches) == EVENTS and batches[-1]["lag"] == 0

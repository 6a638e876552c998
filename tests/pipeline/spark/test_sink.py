"""The sink in a real Spark: frames, and streams that are killed between staging and commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.pipeline.pipeline_nodes import ROOT, NodeProcess

pytestmark = pytest.mark.filterwarnings("default")

COPY = """
import sys
from millpond.pipeline.spark.session import build_session
from tests.pipeline.spark.test_sink import copy
copy(build_session("copy"), *sys.argv[1:])
"""


def copy(spark: Any, address: str, checkpoint: str) -> None:
    """The stream `in` as far as it goes, in batches, into the stream `out`."""
    given = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "2000"}
    frame = spark.readStream.format("millpond").options(address=address, **given).load()
    query = (
        frame.selectExpr("value", "CAST(offset AS STRING) AS key")
        .writeStream.format("millpond")
        .options(address=address, topic="out", checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def test_a_frame_is_written_whole_and_once_for_its_name(
    spark: Any, shared_node: NodeProcess
) -> None:
    shared_node.make("frames")
    frame = spark.range(3000).selectExpr(
        "CAST(id AS STRING) AS value", "CAST(id % 7 AS STRING) AS key"
    )
    writing = frame.write.format("millpond").mode("append")
    for _ in range(2):
        writing.options(address=shared_node.address, topic="frames", writerId="job-1").save()
    for batch in ("3", "3", "4"):
        one = spark.range(3000, 3001).selectExpr("CAST(id AS STRING) AS value").write
        one = one.format("millpond").mode("append").options(writerId="job-2", batchId=batch)
        one.options(address=shared_node.address, topic="frames").save()
    found = sorted(map(int, shared_node.values("frames")))
    assert found == [*range(3000), 3000, 3000]


def run_query(writing: Any) -> None:
    """Run a query to its end. Spark gives a Python process 10 s to connect; where the processors
    are busy that is not enough, and the query is to be started again."""
    for left in reversed(range(5)):
        try:
            writing.start().awaitTermination()
        except PySparkException as error:
            if not left or "failed to connect back" not in str(error):
                raise
        else:
            return


def test_a_batch_that_stops_in_the_middle_is_written_once(spark: Any, tmp_path: Path) -> None:
    """The node is full after a part of a batch. Spark aborts it, which drops nothing that the node
    has decided to publish: with space again, the query goes on where it was."""
    full = {"MILLPOND_NODE_STREAM_BYTES_MAX": str(8 * 2**20)}
    with NodeProcess(tmp_path / "pond", settings=full) as node:
        node.make("in", "out", "other")
        bodies = [b"%05d" % i * 10 for i in range(30_000)]
        node.fill("in", bodies)
        for _ in range(9):
            node.fill("other", [bytes(500_000)])
        frame = (
            spark.readStream.format("millpond")
            .options(address=node.address, subscribe="in", startingOffsets="earliest")
            .load()
        )
        writing = (
            frame.selectExpr("value")
            .writeStream.format("millpond")
            .options(address=node.address, topic="out", timeoutMs="20000")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        with pytest.raises(PySparkException, match="quota_exhausted"):
            run_query(writing)
        assert 0 < len(node.values("out")) < len(bodies)
        node.delete("other")
        run_query(writing)
        assert sorted(node.values("out")) == bodies


def test_a_query_that_is_killed_doubles_and_loses_nothing(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    """kill -9 of Spark as soon as something is there; then another Spark runs the query to its
    end."""
    node.make("in", "out")
    bodies = [b"%d" % i for i in range(10_000)]
    node.fill("in", bodies)
    words = [node.address, str(tmp_path / "checkpoint")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", COPY, *words]
    with subprocess.Popen(command, env=environment, start_new_session=True) as process:
        until = time.monotonic() + 180
        while not node.values("out"):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
    copy(spark, *words)
    assert sorted(map(int, node.values("out"))) == list(range(10_000))

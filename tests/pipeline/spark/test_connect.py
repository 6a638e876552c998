"""Spark Connect: the source and the sink by name, from a client that has no Java; and a declarative
pipeline, whose flows run through it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millpond.pipeline.spark.session import LOCAL, prepare_environment
from tests.pipeline.pipeline_nodes import ROOT, NodeProcess
from tests.pipeline.spark.connect_server import HOME, PATIENCE_S, connect_server

pytest.importorskip("grpc_status")
pytestmark = pytest.mark.full

CLIENT = """
import sys
from pyspark.sql import SparkSession

remote, address, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote(remote).getOrCreate()
given = {"address": address, "subscribe": "in", "startingOffsets": "earliest"}
rows = spark.read.format("millpond").options(**given).load()
assert rows.where("offset >= 100").count() == 400
rows.selectExpr("value").write.format("millpond").mode("append").options(
    address=address, topic="frame").save()
for _ in range(2):
    (
        spark.readStream.format("millpond").options(**given).load()
        .selectExpr("value", "CAST(offset AS STRING) AS key")
        .writeStream.format("millpond").options(address=address, topic="query")
        .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        .awaitTermination()
    )
spark.sql(
    f"CREATE TEMPORARY VIEW query USING millpond OPTIONS (address '{address}', subscribe 'query')")
print(spark.sql("SELECT count(*) AS n FROM query").first()["n"])
spark.stop()
"""


def test_a_client_of_spark_connect(node: NodeProcess, tmp_path: Path) -> None:
    bodies = [b"%d" % i for i in range(500)]
    node.make("in", "frame", "query")
    node.fill("in", bodies)
    with connect_server(tmp_path / "server.log") as remote:
        words = [remote, node.address, str(tmp_path / "checkpoint")]
        environment = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split()[-1] == "500"
    assert sorted(node.values("frame")) == sorted(node.values("query")) == sorted(bodies)


def test_a_declarative_pipeline(node: NodeProcess, tmp_path: Path) -> None:
    """Twice, with more orders before the second run: each large order is written once."""
    shutil.copytree(ROOT / "pipeline" / "examples" / "declarative", tmp_path / "orders")
    spec = tmp_path / "orders" / "spark-pipeline.yml"
    text = spec.read_text().replace("/var/lib/orders", str(tmp_path / "storage"))
    spec.write_text(text.replace("http://127.0.0.1:7404", node.address))
    node.make("orders", "large")
    prepare_environment(LOCAL)
    command = [str(HOME / "bin" / "spark-pipelines"), "run", "--spec", str(spec)]
    for first in (0, 300):
        orders = [{"item": "tea", "count": count} for count in range(first, first + 300, 50)]
        node.fill("orders", [json.dumps(order).encode() for order in orders])
        done = subprocess.run(
            [*command, "--conf", "spark.sql.catalogImplementation=hive"],
            cwd=spec.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(value) for value in node.values("large")]
    assert sorted(order["count"] for order in found) == list(range(100, 600, 50))

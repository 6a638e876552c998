"""The source in a real Spark: rows, filters, triggers, errors, and a node that is killed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.errors import PySparkException

from millpond.pipeline.errors import last_line
from tests.pipeline.pipeline_nodes import NodeProcess

pytestmark = pytest.mark.filterwarnings("default")  # Spark's own are not ours to mend
PATIENCE_S = 600.0


def reading(spark: Any, node: NodeProcess, **given: str) -> Any:
    return spark.read.format("millpond").options(address=node.address, **given).load()


def test_a_batch_its_filters_and_what_is_wrong_with_it(
    spark: Any, shared_node: NodeProcess
) -> None:
    shared_node.make("t/0", "t/1")
    shared_node.fill("t/0", [b"a"] * 10)
    shared_node.fill("t/1", [b"%d" % i for i in range(20)], [(b"key", b"k")])
    frame = reading(spark, shared_node, subscribe="t", includeHeaders="true", minPartitions="4")
    counted = frame.groupBy("topic", "partition", "key").count().sort("partition").collect()
    assert [tuple(each) for each in counted] == [("t", 0, None, 10), ("t", 1, b"k", 20)]
    few = reading(spark, shared_node, subscribe="t", pushdown="true")
    rows = few.where("partition = 1 and offset >= 5 and offset < 8 and value <> '6'").collect()
    assert sorted((each.offset, each.value) for each in rows) == [(5, b"5"), (7, b"7")]
    assert (
        reading(spark, shared_node, subscribe="t", pushdown="true").where("offset > 99").count()
        == 0
    )
    shared_node.make("trimmed")
    shared_node.fill("trimmed", [b"old"] * 5)
    shared_node.trim("trimmed", 5)
    time.sleep(0.01)
    since = int(time.time() * 1000)
    shared_node.fill("trimmed", [b"new"] * 3)
    given = {"subscribe": "trimmed", "startingOffsets": '{"trimmed":{"0":1}}', "pushdown": "true"}
    recent = reading(spark, shared_node, **given).where(f"timestamp >= timestamp_millis({since})")
    assert recent.count() == 3, "the trimmed records are not even asked for"
    with pytest.raises(PySparkException) as found:
        reading(spark, shared_node, subscibe="t").count()
    told = "millpond[bad_option]: unknown option 'subscibe' (subscribe?)"
    assert last_line(str(found.value)) == told


def test_a_query_goes_on_where_it_was_while_its_node_is_killed(
    spark: Any, node: NodeProcess, tmp_path: Path
) -> None:
    """kill -9 on the node, with batches under way: the same query runs on. Started again, a query
    goes on where it was, with a partition that is new, and waits for its node."""
    node.make("orders/0")
    bodies = [b"%d" % i for i in range(3000)]
    node.fill("orders/0", bodies[:2000])
    given = {"subscribe": "orders", "startingOffsets": "earliest", "maxOffsetsPerTrigger": "300"}

    def start(**trigger: Any) -> Any:
        frame = spark.readStream.format("millpond").options(address=node.address, **given).load()
        return (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(**trigger)
            .start()
        )

    query = start(processingTime="50 milliseconds")
    wait_for(query, lambda: len(query.recentProgress) > 1)
    node.kill()
    node.start()
    node.fill("orders/0", bodies[2000:2500])
    wait_for(query, lambda: sum(each.numInputRows for each in query.recentProgress) >= 2500)
    query.stop()
    node.make("orders/1")
    node.fill("orders/1", bodies[2500:])
    node.kill()
    threading.Timer(1.0, node.start).start()
    start(availableNow=True).awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "out")).select("value").collect()
    assert sorted(int(each.value) for each in rows) == list(range(3000))


def test_streams_are_views_of_sql(spark: Any, shared_node: NodeProcess) -> None:
    shared_node.make("sql-in", "sql-out")
    shared_node.fill("sql-in", [b"a", b"b"])
    for name in ("sql-in", "sql-out"):
        options = f"address '{shared_node.address}', subscribe '{name}'"
        view = name.replace("-", "_")
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING millpond OPTIONS ({options})")
    spark.sql("INSERT INTO sql_out (key, value) SELECT key, value FROM sql_in")
    spark.sql("INSERT INTO sql_out (value) VALUES (NULL), (CAST('c' AS BINARY))")
    values = [row.value for row in spark.sql("SELECT value FROM sql_out").collect()]
    assert sorted(values, key=lambda each: each or b"") == [None, b"a", b"b", b"c"]
    spark.sql("CREATE TABLE sql_table USING millpond")
    try:
        options = f"address = '{shared_node.address}', subscribe = 'sql-in'"
        (row,) = spark.sql(f"SELECT count(*) AS n FROM sql_table WITH ({options})").collect()
        assert row.n == 2
    finally:
        spark.sql("DROP TABLE sql_table")
    given = {"address": shared_node.address, "subscribe": "sql-in"}
    with pytest.raises(PySparkException) as found:
        spark.read.schema("value STRING").format("millpond").options(**given).load().count()
    assert (last_line(str(found.value)) or "").startswith("millpond[bad_option]: columns: ")


def test_workers_import_pyspark_from_its_folder(spark: Any) -> None:
    def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyspark

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": [pyspark.__file__]})

    frame = spark.range(1, numPartitions=1).mapInArrow(where, "file string")
    (row,) = frame.collect()
    assert Path(row["file"]).resolve() == Path(pyspark.__file__).resolve()


def wait_for(query: Any, is_so: Callable[[], bool]) -> None:
    """Until something is so, which a query that goes on brings about."""
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until and query.isActive, query.exception()
        time.sleep(0.05)

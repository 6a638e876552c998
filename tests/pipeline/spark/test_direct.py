"""Direct reads in a real Spark, from a bucket: a backfill while the node is dead, and a query whose
checkpoint serves both modes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from millpond.pipeline.errors import last_line
from tests.pipeline.object_store import object_store
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.replicas import replicated_node, settle

pytestmark = pytest.mark.filterwarnings("default")  # Spark's own are not ours to mend
COUNT = 6000


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[tuple[NodeProcess, str]]:
    """A node whose streams `s/0` and `s/1` are settled in a bucket, and the options that reach
    it."""
    with object_store("pond") as access:
        with replicated_node(tmp_path / "pond", "s3://pond/replica", access) as node:
            node.make("s/0", "s/1")
            for number in range(2):
                bodies = [b"%d %06d" % (number, at) + b"." * 90 for at in range(COUNT)]
                node.fill(f"s/{number}", bodies, [(b"key", b"k%d" % number)])
            settle(node)
            yield node, json.dumps({name.lower(): value for name, value in access.items()})


def test_a_backfill_from_a_bucket_goes_on_while_the_node_is_dead(
    spark: Any, stored: tuple[NodeProcess, str], tmp_path: Path
) -> None:
    node, options = stored

    def reading(**given: str) -> Any:
        told = {"address": node.address, "subscribe": "s", "timeoutMs": "3000", **given}
        return spark.read.format("millpond").options(**told).load()

    same = reading(includeHeaders="true").collect()
    direct = reading(includeHeaders="true", mode="direct", storeOptions=options)
    assert sorted(direct.collect()) == sorted(same)

    bound = {"endingOffsets": json.dumps({"s": {"0": 4000, "1": 4000}})}
    planned = reading(mode="direct", storeOptions=options, minPartitions="6", **bound).rdd
    assert planned.getNumPartitions() == 6
    unread = reading(minPartitions="6", **bound).rdd
    assert unread.getNumPartitions() == 6
    node.kill()
    rows = sorted((row.partition, row.offset) for row in planned.collect())
    assert rows == [(number, at) for number in range(2) for at in range(4000)]
    with pytest.raises(PySparkException) as found:
        unread.count()
    assert (last_line(str(found.value)) or "").startswith("millpond[node_away]")
    node.start()

    # One checkpoint, in turns.
    values: list[bytes] = []
    for mode, ballast in (("direct", False), ("node", True), ("direct", True)):
        if ballast:
            node.fill("s/0", [mode.encode()] * 10)
        told = {"address": node.address, "subscribe": "s", "mode": mode, "storeOptions": options}
        told |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "5000"}
        frame = spark.readStream.format("millpond").options(**told).load()
        query = (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out"))
    values = [row.value for row in found.select("value").collect()]
    assert len(values) == len(same) + 20 == found.dropDuplicates(["partition", "offset"]).count()

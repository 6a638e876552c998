"""Checkpoints and dead letters on file systems of Spark other than the machine's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.state.files import SparkFiles, folder_of
from millpond.pipeline.state.formats import table_in
from millpond.pipeline.state.job import JobOptions
from millpond.pipeline.state.progress import QueryProgress
from tests.pipeline.pipeline_nodes import NodeProcess
from tests.pipeline.spark.test_job import change, run

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> str:
    """A file system of Hadoop's with a scheme of its own, without any jar: views upon others."""
    conf = spark._jsc.hadoopConfiguration()
    name = tmp_path.name.replace("_", "-")
    (tmp_path / "mounted").mkdir()
    conf.set(f"fs.viewfs.mounttable.{name}.link./lake", (tmp_path / "mounted").as_uri())
    return f"viewfs://{name}/lake"


def test_a_job_with_its_checkpoint_elsewhere(
    spark: Any, shared_node: NodeProcess, tmp_path: Path, mounted: str
) -> None:
    stream = tmp_path.name
    shared_node.make(stream)
    shared_node.fill(stream, [change(f"k{i % 10}", i) for i in range(50)] + [b"{"])
    source = {"address": shared_node.address, "subscribe": stream}
    asked = JobOptions(
        source, tmp_path / "table", f"{mounted}/checkpoint", dead_letters=f"{mounted}/dead"
    )
    for numbers in ((0,), ()):
        with table_in(asked.table).lock():
            assert tuple(each.batch for each in run(spark, asked)) == numbers
    shared_node.fill(stream, [change("k0", -1)])
    with table_in(asked.table).lock():
        assert [each.batch for each in run(spark, asked)] == [1]
    state = {
        row["key"]: json.loads(row["value"]) for row in table_in(asked.table).read().to_pylist()
    }
    assert state == {f"k{i}": i + 40 for i in range(1, 10)} | {"k0": -1}
    dead = SparkFiles(spark, f"{mounted}/dead")
    names = [each for each in dead.names() if not each.endswith(".crc")]
    assert sorted(each for each in names if each.startswith("batch")) == ["batch-00000000.jsonl"]
    assert json.loads(dead.read("batch-00000000.jsonl") or "")["offset"] == 50
    progress = QueryProgress(source)
    progress.begin(SparkFiles(spark, f"{mounted}/checkpoint"))
    assert (progress.last(), progress.records(1), progress.left(0)) == (1, 1, 1)
    progress.close()
    other = JobOptions(
        source, tmp_path / "other", f"{mounted}/other", dead_letters=f"{mounted}/dead"
    )
    with pytest.raises(PySparkException, match="other_query"):
        run(spark, other)


def test_a_file_is_replaced_and_removed(spark: Any, mounted: str) -> None:
    files = SparkFiles(spark, f"{mounted}/some")
    assert files.names() == [] and files.read("a") is None
    for data in (b"\x00\xff" * 700_000, "\u00fcber".encode()):
        files.write("a", data)
    assert files.read("a") == "\u00fcber"
    files.remove("a")
    files.remove("a")
    assert files.read("a") is None


def test_a_file_system_that_is_not_there_is_told(spark: Any) -> None:
    with pytest.raises(PipelineError, match=r"bad_store.*nofs://x.*spark.hadoop"):
        SparkFiles(spark, "nofs://x/y").names()


def test_folders_and_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert folder_of("a b") == tmp_path / "a b"
    for url in ("s3a://bucket/x", "hdfs://host:9000/x", "file:/x"):
        assert folder_of(url) == url

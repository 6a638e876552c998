"""An archive of the classes that Spark loads, with which its Java starts in half the CPU time.

`python -m tests.pipeline.spark.class_archive FILE` writes it; `scripts/test` does that once. Java
reads it by -XX:SharedArchiveFile=FILE, and starts without it where it does not fit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from millpond.pipeline.spark.session import build_session


def main(path: Path) -> None:
    """Write the archive, in one step: others may look for it meanwhile."""
    temporary = path.with_name(f"{path.name}.part")
    temporary.unlink(missing_ok=True)
    options = f"-Xlog:disable -XX:ArchiveClassesAtExit={temporary}"
    spark = build_session("classes", conf={"spark.driver.extraJavaOptions": options})
    java = spark.sparkContext._gateway.proc
    with TemporaryDirectory() as folder:
        use(spark, Path(folder))
    spark.stop()
    java.stdin.close()  # so it ends
    java.wait()
    temporary.replace(path)


def use(spark: Any, folder: Path) -> None:
    """A streaming query into files, and a frame of them: what is used has been loaded."""
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "10").load()
    query = (
        frame.selectExpr("CAST(value AS STRING) AS key", "value")
        .writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(lambda batch, number: batch.write.mode("append").parquet(str(folder / "out")))
        .start()
    )
    query.awaitTermination()
    spark.read.parquet(str(folder / "out")).groupBy("key").count().sort("key").collect()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

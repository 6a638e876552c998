"""A table for a dashboard of job queues: the events of each queue by minute.

Reads the history of queues (the streams `jobs/...` of a node; workers write what is done with
`--log-done`). After each batch the table is one Parquet file, replaced in one step, so whoever
draws it never sees half of it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from millpond.pipeline.examples.options import Words, parser, perform, trigger
from millpond.pipeline.state.disk import write_whole

ENTRY = "job STRING, attempt INT, at BIGINT, what STRING, error STRING, worker STRING"
COLUMNS = {
    "done": "count_if(what = 'done')",
    "failed": "count_if(what = 'failed')",
    "rejected": "count_if(what = 'rejected')",
    "lost": "count_if(what = 'lost')",
    "workers": "approx_count_distinct(worker)",
    "last_error": "max_by(error, at) FILTER (WHERE error <> '')",
}


def start(spark: Any, args: argparse.Namespace) -> Any:
    """Start the query."""
    from pyspark.sql import functions as f

    records = (
        spark.readStream.format("millpond")
        .options(address=args.connect, subscribePattern="jobs/.*", startingOffsets="earliest")
        .load()
    )
    entries = (
        records.selectExpr("topic", f"from_json(CAST(value AS STRING), '{ENTRY}') AS entry")
        .selectExpr("substring(topic, 6) AS queue", "entry.*")
        .withColumn("minute", f.expr("date_trunc('MINUTE', timestamp_millis(at))"))
        .where("what IS NOT NULL")
    )
    columns = [f.expr(sql).alias(name) for name, sql in COLUMNS.items()]
    table = entries.groupBy("queue", "minute").agg(*columns)

    def keep(frame: Any, batch: int) -> None:
        held = pa.BufferOutputStream()
        pq.write_table(
            frame.toArrow().sort_by([("queue", "ascending"), ("minute", "ascending")]), held
        )
        write_whole(Path(args.table), held.getvalue().to_pybytes())

    writing = table.writeStream.outputMode("complete").foreachBatch(keep)
    return writing.option("checkpointLocation", args.checkpoint).trigger(**trigger(args)).start()


def main(words: Words = None) -> int:
    """Run the example."""
    options = parser(__doc__)
    options.add_argument("--table", required=True, metavar="FILE", help="such as jobs.parquet")
    return perform(start, options.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())

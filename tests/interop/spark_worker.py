"""Spark as a client of the matrix, in a process of its own: one session for all that is asked.

`python -m tests.interop.spark_worker URL` reads tasks on stdin, one line of JSON each, and answers
each with a line on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any

from millpond.pipeline.spark.session import build_session

Row = tuple[str, int, int]
"""The body in Base64, the timestamp in ms, the position."""


def write(spark: Any, url: str, stream: str, bodies: Sequence[str]) -> None:
    """Append the records in one task, in this order."""
    rows = spark.createDataFrame([(b64decode(each),) for each in bodies], "value binary")
    (
        rows.coalesce(1)
        .write.format("millpond")
        .option("address", url)
        .option("topic", stream)
        .mode("append")
        .save()
    )


def read(spark: Any, url: str, streams: Sequence[str]) -> list[list[Row]]:
    """All records of each stream, by one query."""
    frame = (
        spark.read.format("millpond")
        .option("address", url)
        .option("subscribe", ",".join(streams))
        .load()
    )
    found: dict[str, list[Row]] = {name: [] for name in streams}
    shown = frame.selectExpr("topic", "value", "unix_millis(timestamp) AS at", "offset")
    for row in shown.orderBy("topic", "offset").collect():
        found[row.topic].append((b64encode(row.value).decode(), row.at, row.offset))
    return list(found.values())


def main(url: str) -> None:
    """Serve tasks until stdin ends. The output of Spark goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = build_session("matrix")
    for line in sys.stdin:
        task = json.loads(line)
        if task["work"] == "write":
            write(spark, url, task["stream"], task["bodies"])
            answer = []
        else:
            answer = read(spark, url, task["streams"])
        print(json.dumps(answer), file=answers, flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

"""The queries of the kill loop in a driver of their own, until the folder has a file `stop`:

    python -m tests.pipeline.spark.killed_queries ADDRESS FOLDER

A stream that is copied, and a table of state in each format, each with a change feed. Ends with 0
when all has been processed after `stop`, with 1 when a query fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from millpond.pipeline.spark.discovery import TAILS_AGE_MAX_S
from millpond.pipeline.spark.session import build_session
from millpond.pipeline.state.formats import FORMATS
from millpond.pipeline.state.job import JobOptions, open_table, run_job

ATTEMPTS = 10
EVERY_S = 0.3
PER_BATCH = "3000"


def job_options(address: str, folder: Path, format: str) -> JobOptions:
    """The state job in a format."""
    place = folder / format
    source = {"address": address, "subscribe": "state", "maxOffsetsPerTrigger": PER_BATCH}
    return JobOptions(
        source,
        place / "table",
        place / "checkpoint",
        place / "dead",
        EVERY_S,
        changes=place / "changes",
        format=format,
    )


def start_copy(spark: Any, address: str, folder: Path) -> Any:
    """The stream `in` into the stream `out`."""
    given = {"subscribe": "in", "startingOffsets": "earliest", "maxOffsetsPerTrigger": PER_BATCH}
    frame = spark.readStream.format("millpond").options(address=address, **given).load()
    writing = frame.selectExpr("value").writeStream.format("millpond").queryName("copy")
    writing = writing.options(address=address, topic="out")
    writing = writing.option("checkpointLocation", str(folder / "copy"))
    return writing.trigger(processingTime=f"{int(EVERY_S * 1000)} milliseconds").start()


def main(address: str, folder: Path) -> int:
    """Run the queries."""
    quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    spark = build_session("kill loop", conf={"spark.driver.extraJavaOptions": quick})
    jobs = [job_options(address, folder, format) for format in FORMATS]
    with ExitStack() as locks:
        for each in jobs:
            locks.enter_context(open_table(each).lock())
        # Names of queries are those of a session.
        starts: list[Callable[[], Any]] = [partial(start_copy, spark, address, folder)]
        starts += [partial(run_job, spark.newSession(), each) for each in jobs]
        try:
            queries = [started(each) for each in starts]
            while True:
                is_last = (folder / "stop").exists()
                if is_last:  # a query may still have tails of before
                    time.sleep(TAILS_AGE_MAX_S)
                for number, query in enumerate(queries):
                    if is_last and query.isActive:
                        query.processAllAvailable()
                    if not query.isActive:
                        queries[number] = started(starts[number], query)
                        is_last = False
                if is_last:
                    spark.stop()
                    return 0
                time.sleep(0.2)
        except Exception as error:
            print(error, file=sys.stderr)
            return 1


def started(start: Callable[[], Any], ended: Any = None) -> Any:
    """A query that has its Python process, for which Spark waits 10 s only: on a busy machine it is
    started again. Raises the error of a query that has ended otherwise."""
    query = ended
    for _ in range(ATTEMPTS):
        if query is not None:
            error = query.exception()
            if "failed to connect back" not in str(error):
                raise error if error is not None else RuntimeError("a query has ended")
            print("a Python process did not connect; again", file=sys.stderr, flush=True)
        query = start()
        while query.isActive and query.status["message"] == "Initializing sources":
            time.sleep(0.2)
        if query.isActive:
            return query
    raise RuntimeError("no Python process connects")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))

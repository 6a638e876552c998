"""A count of words in chats, written as changes of state.

Reads conversations (the streams `chat/...` of a node) and streams that archive a channel of texts.
Every batch appends the words whose count it changed to a stream, once, as events of the State
Protocol: `millpond pipeline run` makes a table of them, and any client of that stream a live view.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from millpond.pipeline.examples.options import Words, parser, perform, trigger
from millpond.pipeline.state.files import LocalFiles
from millpond.pipeline.state.job import query_id

TEXTS = """
    CASE WHEN said.kind IN ('in', 'out') THEN said.text
         WHEN said.kind IS NULL THEN text END AS text
"""
EVENT = """
    to_json(named_struct(
        'type', 'word', 'key', word, 'value', named_struct('count', count),
        'headers', named_struct('operation', 'upsert'))) AS value
"""


def start(spark: Any, args: argparse.Namespace) -> Any:
    """Start the query."""
    records = (
        spark.readStream.format("millpond")
        .options(address=args.connect, subscribePattern=args.streams, startingOffsets="earliest")
        .load()
    )
    counts = (
        records.selectExpr("CAST(value AS STRING) AS text")
        .selectExpr("text", "from_json(text, 'kind STRING, text STRING') AS said")
        .selectExpr(TEXTS)
        .selectExpr(r"explode(split(lower(text), '[^\\p{L}\\p{N}\']+')) AS word")
        .where("word <> ''")
        .groupBy("word")
        .count()
    )

    def tell(frame: Any, batch: int) -> None:
        given = {"address": args.connect, "topic": args.into, "batchId": str(batch)}
        writer = query_id(LocalFiles(Path(args.checkpoint)))
        frame.selectExpr(EVENT).write.format("millpond").mode("append").options(
            writerId=writer, **given
        ).save()

    writing = counts.writeStream.outputMode("update").foreachBatch(tell)
    return writing.option("checkpointLocation", args.checkpoint).trigger(**trigger(args)).start()


def main(words: Words = None) -> int:
    """Run the example."""
    options = parser(__doc__)
    options.add_argument("--streams", default="chat/.*", metavar="REGEX", help="(%(default)s)")
    options.add_argument("--into", required=True, metavar="STREAM", help="for the counts")
    return perform(start, options.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())

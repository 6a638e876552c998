"""A join of two streams: orders with their payments within an hour.

Both are JSON with a field `order`. Two records that belong together become one record of a third
stream, once, whatever is killed meanwhile. Times are those of the records; what is later than an
hour finds nobody any more, and Spark forgets what waited for it.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from millpond.pipeline.examples.options import Words, parser, perform, trigger

ORDER = "order STRING, item STRING, cents BIGINT"
PAYMENT = "order STRING, cents BIGINT"
LATE = "1 hour"
MATCH = f"""
    o.order = p.order AND p.paid_at BETWEEN o.ordered_at - INTERVAL 1 MINUTE
    AND o.ordered_at + INTERVAL {LATE}
"""
PAID = "to_json(named_struct('order', o.order, 'item', item, 'owed', o.cents, 'paid', p.cents))"


def start(spark: Any, args: argparse.Namespace) -> Any:
    """Start the query."""
    from pyspark.sql import functions as f

    def read(stream: str, schema: str, time: str) -> Any:
        return (
            spark.readStream.format("millpond")
            .options(address=args.connect, subscribe=stream, startingOffsets="earliest")
            .load()
            .selectExpr(
                f"from_json(CAST(value AS STRING), '{schema}') AS it", f"timestamp AS {time}"
            )
            .selectExpr("it.*", time)
            .withWatermark(time, LATE)
        )

    orders = read(args.orders, ORDER, "ordered_at").alias("o")
    payments = read(args.payments, PAYMENT, "paid_at").alias("p")
    paid = orders.join(payments, f.expr(MATCH)).selectExpr("o.order AS key", f"{PAID} AS value")
    writing = paid.writeStream.format("millpond").options(address=args.connect, topic=args.into)
    return writing.option("checkpointLocation", args.checkpoint).trigger(**trigger(args)).start()


def main(words: Words = None) -> int:
    """Run the example."""
    options = parser(__doc__)
    options.add_argument("--orders", default="orders", metavar="STREAM", help="(%(default)s)")
    options.add_argument("--payments", default="payments", metavar="STREAM", help="(%(default)s)")
    options.add_argument("--into", required=True, metavar="STREAM", help="for both together")
    return perform(start, options.parse_args(words))


if __name__ == "__main__":
    sys.exit(main())

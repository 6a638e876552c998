"""Flows of a declarative pipeline: orders of a stream as a table, totals of it, and large orders as
records of another stream, each once.

An order is JSON: `{"item": "tea", "count": 3}`.
"""

from __future__ import annotations

from pyspark import pipelines
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, struct, sum, to_json

ORDER = "item STRING, count BIGINT"
LARGE = 100

spark = SparkSession.active()
address = spark.conf.get("spark.millpond.address")


@pipelines.table
def orders() -> DataFrame:
    """The orders of the stream `orders`, with their offsets."""
    stream = spark.readStream.format("millpond").option("startingOffsets", "earliest")
    rows = stream.options(address=address, subscribe="orders").load()
    order = from_json(col("value").cast("string"), ORDER).alias("order")
    return rows.select("offset", "timestamp", order).select("offset", "timestamp", "order.*")


@pipelines.materialized_view
def totals() -> DataFrame:
    """The number of pieces of each item."""
    return spark.read.table("orders").groupBy("item").agg(sum("count").alias("count"))


pipelines.create_sink("large_orders", "millpond", {"address": address, "topic": "large"})


@pipelines.append_flow(target="large_orders")
def large() -> DataFrame:
    """Large orders, as JSON again, with the item as key."""
    rows = spark.readStream.table("orders").where(col("count") >= LARGE)
    return rows.select(col("item").alias("key"), to_json(struct("item", "count")).alias("value"))

"""The entry point for Spark, which finds it by its name: `spark.read.format("millpond")` works."""

from millpond.pipeline.spark.source import MillpondSource as DefaultSource

__all__ = ["DefaultSource"]

"""Found by Spark itself, so that `spark.read.format("millpond")` needs no registration."""

from millpond.pipeline.spark.source import MillpondSource as DefaultSource

__all__ = ["DefaultSource"]

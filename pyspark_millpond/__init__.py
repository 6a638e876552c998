"""Found by Spark itself, so that `spark.read.format("millpond")` needs no registration."""

from pipeline.spark.source import MillpondSource as DefaultSource

__all__ = ["DefaultSource"]

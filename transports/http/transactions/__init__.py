"""Batches that are written once, all or nothing, however often they come (docs/guides/spark.md)."""

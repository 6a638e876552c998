"""Example jobs (docs/guides/spark.md)."""

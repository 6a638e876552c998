"""Jobs to begin one's own from (docs/guides/spark.md)."""

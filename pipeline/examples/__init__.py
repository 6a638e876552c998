"""Jobs to begin one's own from (docs/spark.md)."""

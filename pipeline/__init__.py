"""The pipeline: streams of Millpond nodes as sources and sinks of Spark, and tables of state."""

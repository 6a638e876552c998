"""Streams of Millpond nodes in Spark, and back."""

"""The blocking HTTP client of a node, and codecs of its records, for Spark's workers."""

"""Pipelined requests of the S3P and RustLog clients: connections, batches, errors."""

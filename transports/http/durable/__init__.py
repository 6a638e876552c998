"""Durable Streams over HTTP, as a view of the node's streams
(docs/reference/durable-streams.md)."""

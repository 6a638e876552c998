"""Streams: ordered logs of records, one namespace with many views (docs/internals/streams.md)."""

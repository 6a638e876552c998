"""Streams over the node's own protocol."""

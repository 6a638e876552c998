"""Millpond: a peer-to-peer buffering node, and the client that users import."""

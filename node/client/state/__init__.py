"""Shared states of streams: writing events, following them, and requests to the node."""

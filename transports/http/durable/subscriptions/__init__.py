"""Subscriptions below `/v1/stream/__ds` (docs/reference/durable-streams.md)."""

"""Chat: one conversation with each peer, stored as a stream, over the outbox (docs/internals)."""

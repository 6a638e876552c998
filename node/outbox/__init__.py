"""Outbox: messages that wait for peers, their way to the peers, and messages that come from
them."""

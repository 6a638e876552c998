"""Webhooks: outgoing requests, where they may go, and their signatures. Only `node` and the API of
subscriptions import it."""

"""Subscriptions and their webhooks at a node: keys, outgoing requests, shared parts."""

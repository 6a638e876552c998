"""Identities, the peer book, cards, prekeys and envelopes."""

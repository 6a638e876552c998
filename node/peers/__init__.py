"""Peers: identities, address book, contact cards, prekeys, envelopes and authentication."""

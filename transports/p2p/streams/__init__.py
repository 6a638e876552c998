"""Requests about streams and states in P2P packets, and their answers."""

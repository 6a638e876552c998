"""Requests about jobs in P2P packets, and their answers."""

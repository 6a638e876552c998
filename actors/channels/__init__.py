"""Channels: the actors of the P2P buffer protocol, with their parts. The node and jobs import
them."""

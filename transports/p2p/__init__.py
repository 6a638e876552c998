"""The P2P buffer protocol: packets, framing, login, and the connection of a client
(docs/reference/wire-protocol.md).
"""

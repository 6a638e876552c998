"""Byte streams: TCP, TLS and memory, on asyncio and on any loop of anyio, behind one interface
(`Wire`). Protocols and the node import it; it imports no protocol.
"""

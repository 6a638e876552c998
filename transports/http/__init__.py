"""The node's HTTP side: an ASGI application, and what it serves."""

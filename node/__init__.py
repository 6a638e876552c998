"""Millpond: a peer-to-peer buffering node, and the client that users import.

The names are loaded on first use, because a command line that only sends a message should not pay
for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.errors import LeaseLost, NotFound, RequestError
    from actors.messages import Durability
    from node.client.channel import Channel
    from node.client.connect import connect
    from node.config import Config
    from node.client.errors import ChannelClosed, ConnectionLost, HandshakeRefused
    from node.client.message import Message
    from node.node import Node
    from node.client.rustlog.client import connect_rustlog
    from node.client.s3p.client import connect_s3p
    from node.client.streams.connect import connect_streams

_HOMES = {
    "Channel": "node.client.channel",
    "ChannelClosed": "node.client.errors",
    "Config": "node.config",
    "ConnectionLost": "node.client.errors",
    "Durability": "actors.messages",
    "HandshakeRefused": "node.client.errors",
    "LeaseLost": "actors.errors",
    "Message": "node.client.message",
    "Node": "node.node",
    "NotFound": "actors.errors",
    "RequestError": "actors.errors",
    "connect": "node.client.connect",
    "connect_rustlog": "node.client.rustlog.client",
    "connect_s3p": "node.client.s3p.client",
    "connect_streams": "node.client.streams.connect",
}

__all__ = [
    "Channel",
    "ChannelClosed",
    "Config",
    "ConnectionLost",
    "Durability",
    "HandshakeRefused",
    "LeaseLost",
    "Message",
    "Node",
    "NotFound",
    "RequestError",
    "connect",
    "connect_rustlog",
    "connect_s3p",
    "connect_streams",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)

"""Millpond: a peer-to-peer buffering node, and the client that users import.

The names are loaded on first use, because a command line that only sends a message should not pay
for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.errors import LeaseLost, NotFound, RequestError
    from actors.messages import Durability
    from node.channel import Channel
    from node.client import connect
    from node.config import Config
    from node.errors import ChannelClosed, ConnectionLost, HandshakeRefused
    from node.message import Message
    from node.node import Node
    from node.rustlog_client import connect_rustlog
    from node.s3p_client import connect_s3p
    from node.streams import connect_streams

_HOMES = {
    "Channel": "node.channel",
    "ChannelClosed": "node.errors",
    "Config": "node.config",
    "ConnectionLost": "node.errors",
    "Durability": "actors.messages",
    "HandshakeRefused": "node.errors",
    "LeaseLost": "actors.errors",
    "Message": "node.message",
    "Node": "node.node",
    "NotFound": "actors.errors",
    "RequestError": "actors.errors",
    "connect": "node.client",
    "connect_rustlog": "node.rustlog_client",
    "connect_s3p": "node.s3p_client",
    "connect_streams": "node.streams",
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

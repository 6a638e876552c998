"""Millpond: a peer-to-peer buffering node, and the client that users import.

The names are loaded on first use, because a command line that only sends a message should not pay
for a server.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.actors.errors import LeaseLost, NotFound, RequestError
    from millpond.actors.messages import Durability
    from millpond.node.client.channel import Channel
    from millpond.node.client.connect import connect
    from millpond.node.client.errors import ChannelClosed, ConnectionLost, HandshakeRefused
    from millpond.node.client.message import Message
    from millpond.node.client.rustlog.client import connect_rustlog
    from millpond.node.client.s3p.client import connect_s3p
    from millpond.node.client.streams.connect import connect_streams
    from millpond.node.config import Config
    from millpond.node.node import Node

_HOMES = {
    "Channel": "millpond.node.client.channel",
    "ChannelClosed": "millpond.node.client.errors",
    "Config": "millpond.node.config",
    "ConnectionLost": "millpond.node.client.errors",
    "Durability": "millpond.actors.messages",
    "HandshakeRefused": "millpond.node.client.errors",
    "LeaseLost": "millpond.actors.errors",
    "Message": "millpond.node.client.message",
    "Node": "millpond.node.node",
    "NotFound": "millpond.actors.errors",
    "RequestError": "millpond.actors.errors",
    "connect": "millpond.node.client.connect",
    "connect_rustlog": "millpond.node.client.rustlog.client",
    "connect_s3p": "millpond.node.client.s3p.client",
    "connect_streams": "millpond.node.client.streams.connect",
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


def __dir__() -> list[str]:
    return __all__

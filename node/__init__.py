"""Millpond: a peer-to-peer buffering node, and the client that users import."""

from actors.errors import LeaseLost, NotFound, RequestError
from actors.messages import Durability
from node.channel import Channel
from node.client import connect
from node.errors import ChannelClosed, ConnectionLost, HandshakeRefused
from node.inflight import Receipt
from node.message import Message

__all__ = [
    "Channel",
    "ChannelClosed",
    "ConnectionLost",
    "Durability",
    "HandshakeRefused",
    "LeaseLost",
    "Message",
    "NotFound",
    "Receipt",
    "RequestError",
    "connect",
]

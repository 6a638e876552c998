"""Millpond: a peer-to-peer buffering node, and its clients.

`connect` joins a channel of a node, `Node` runs one in this process. Queues, streams, shared state
and tests have modules of their own: `millpond.jobs`, `.streams`, `.state`, `.chat`, `.testing`;
`millpond.sync` has blocking clients, `millpond.errors` every error, `millpond.tracing` traces. The
names are loaded on first use, so that a program that only sends a message does not pay for a
server.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond import chat, errors, jobs, state, streams, sync, testing, tracing
    from millpond.actors.errors import LeaseLost, NotFound, RequestError
    from millpond.actors.messages import Durability, Mode
    from millpond.node.client.channel import Channel, Message
    from millpond.node.client.channels import ChannelInfo, Channels, connect_channels
    from millpond.node.client.connect import connect
    from millpond.node.client.errors import (
        ChannelClosed,
        ClientClosed,
        ConnectionLost,
        HandshakeRefused,
    )
    from millpond.node.client.in_flight import Receipt
    from millpond.node.client.receiver import Receiver
    from millpond.node.client.rustlog.client import connect_rustlog
    from millpond.node.client.s3p.client import connect_s3p
    from millpond.node.client.settings import ConnectSettings
    from millpond.node.client.streams.connect import connect_streams
    from millpond.node.client.sync.channel import connect as connect_sync
    from millpond.node.config import Config
    from millpond.node.node import Node
    from millpond.node.peers.identity import Identity
    from millpond.node.tls.contexts import client_context
else:
    from millpond.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Channel": "millpond.node.client.channel",
            "ChannelClosed": "millpond.node.client.errors",
            "ChannelInfo": "millpond.node.client.channels",
            "Channels": "millpond.node.client.channels",
            "ClientClosed": "millpond.node.client.errors",
            "Config": "millpond.node.config",
            "ConnectSettings": "millpond.node.client.settings",
            "ConnectionLost": "millpond.node.client.errors",
            "Durability": "millpond.actors.messages",
            "HandshakeRefused": "millpond.node.client.errors",
            "Identity": "millpond.node.peers.identity",
            "LeaseLost": "millpond.actors.errors",
            "Message": "millpond.node.client.channel",
            "Mode": "millpond.actors.messages",
            "Node": "millpond.node.node",
            "NotFound": "millpond.actors.errors",
            "Receipt": "millpond.node.client.in_flight",
            "Receiver": "millpond.node.client.receiver",
            "RequestError": "millpond.actors.errors",
            "chat": "millpond.chat",
            "client_context": "millpond.node.tls.contexts",
            "connect": "millpond.node.client.connect",
            "connect_channels": "millpond.node.client.channels",
            "connect_rustlog": "millpond.node.client.rustlog.client",
            "connect_s3p": "millpond.node.client.s3p.client",
            "connect_streams": "millpond.node.client.streams.connect",
            "connect_sync": "millpond.node.client.sync.channel:connect",
            "errors": "millpond.errors",
            "jobs": "millpond.jobs",
            "state": "millpond.state",
            "streams": "millpond.streams",
            "sync": "millpond.sync",
            "testing": "millpond.testing",
            "tracing": "millpond.tracing",
        },
    )

__all__ = [
    "Channel",
    "ChannelClosed",
    "ChannelInfo",
    "Channels",
    "ClientClosed",
    "Config",
    "ConnectSettings",
    "ConnectionLost",
    "Durability",
    "HandshakeRefused",
    "Identity",
    "LeaseLost",
    "Message",
    "Mode",
    "Node",
    "NotFound",
    "Receipt",
    "Receiver",
    "RequestError",
    "chat",
    "client_context",
    "connect",
    "connect_channels",
    "connect_rustlog",
    "connect_s3p",
    "connect_streams",
    "connect_sync",
    "errors",
    "jobs",
    "state",
    "streams",
    "sync",
    "testing",
    "tracing",
]

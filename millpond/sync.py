"""Blocking clients, for programs without an event loop: `with connect(url, "chat/1") as channel`.

The same methods as those of the async clients. All share one event loop in a thread of its own; any
thread may call them. Callbacks such as `on_event` are called in that thread.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millpond.node.client.rustlog.sync import (
        Rustlog,
        RustlogConsumer,
        RustlogProducer,
        connect_rustlog,
    )
    from millpond.node.client.s3p.sync import S3p, S3pProducer, connect_s3p
    from millpond.node.client.state.sync import Changes, StateView, StateWriter, follow_state
    from millpond.node.client.sync.channel import (
        Channel,
        Channels,
        Message,
        Receiver,
        connect,
        connect_channels,
    )
    from millpond.node.client.sync.portal import SyncFuture
    from millpond.node.client.sync.streams import NodeState, Stream, Streams, connect_streams
    from millpond.node.jobs.sync import Handle, Queue
    from millpond.node.jobs.sync_task import BoundTask
else:
    from millpond.lazy import lazy_names

    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "BoundTask": "millpond.node.jobs.sync_task",
            "Changes": "millpond.node.client.state.sync",
            "Channel": "millpond.node.client.sync.channel",
            "Channels": "millpond.node.client.sync.channel",
            "Handle": "millpond.node.jobs.sync",
            "Message": "millpond.node.client.sync.channel",
            "NodeState": "millpond.node.client.sync.streams",
            "Queue": "millpond.node.jobs.sync",
            "Receiver": "millpond.node.client.sync.channel",
            "Rustlog": "millpond.node.client.rustlog.sync",
            "RustlogConsumer": "millpond.node.client.rustlog.sync",
            "RustlogProducer": "millpond.node.client.rustlog.sync",
            "S3p": "millpond.node.client.s3p.sync",
            "S3pProducer": "millpond.node.client.s3p.sync",
            "StateView": "millpond.node.client.state.sync",
            "StateWriter": "millpond.node.client.state.sync",
            "Stream": "millpond.node.client.sync.streams",
            "Streams": "millpond.node.client.sync.streams",
            "SyncFuture": "millpond.node.client.sync.portal",
            "connect": "millpond.node.client.sync.channel",
            "connect_channels": "millpond.node.client.sync.channel",
            "connect_rustlog": "millpond.node.client.rustlog.sync",
            "connect_s3p": "millpond.node.client.s3p.sync",
            "connect_streams": "millpond.node.client.sync.streams",
            "follow_state": "millpond.node.client.state.sync",
        },
    )

__all__ = [
    "BoundTask",
    "Changes",
    "Channel",
    "Channels",
    "Handle",
    "Message",
    "NodeState",
    "Queue",
    "Receiver",
    "Rustlog",
    "RustlogConsumer",
    "RustlogProducer",
    "S3p",
    "S3pProducer",
    "StateView",
    "StateWriter",
    "Stream",
    "Streams",
    "SyncFuture",
    "connect",
    "connect_channels",
    "connect_rustlog",
    "connect_s3p",
    "connect_streams",
    "follow_state",
]

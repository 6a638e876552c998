"""Streams: append-only logs of a node, over its own protocol, S3P and RustLog
(docs/internals/streams.md).

`connect_streams` has everything; `connect_s3p` and `connect_rustlog` speak to any server of these
protocols. Programs without an event loop find the same names in `millpond.sync`.
"""

from millpond.actors.store.changes import Position
from millpond.actors.streams.messages import Headers
from millpond.node.client.requests.batching import BatchSettings, RecordFuture
from millpond.node.client.rustlog.client import (
    ConsumedRecord,
    ConsumerSettings,
    Rustlog,
    RustlogConsumer,
    connect_rustlog,
)
from millpond.node.client.rustlog.producer import PartitionOffset, RustlogProducer
from millpond.node.client.s3p.client import S3p, S3pProducer, connect_s3p
from millpond.node.client.s3p.records import RecordId, S3pRecord
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import Appended, NewRecord, Record, StreamInfo
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams

__all__ = [
    "Appended",
    "BatchSettings",
    "ConsumedRecord",
    "ConsumerSettings",
    "Headers",
    "NewRecord",
    "PartitionOffset",
    "Position",
    "Record",
    "RecordFuture",
    "RecordId",
    "Rustlog",
    "RustlogConsumer",
    "RustlogProducer",
    "S3p",
    "S3pProducer",
    "S3pRecord",
    "Stream",
    "StreamInfo",
    "Streams",
    "connect_rustlog",
    "connect_s3p",
    "connect_streams",
]

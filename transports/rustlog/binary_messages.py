"""The messages of RustLog's binary form that differ from those of its JSON form.

The requests are the same, those of `messages`; most answers, and the errors, have a form of their
own.

A payload begins with the byte of its request, also in the answer. Numbers are unsigned and
big-endian (docs/reference/compatibility.md, RB-01 to RB-43).
"""

from __future__ import annotations

from enum import IntEnum
from typing import final

import msgspec

from millpond.transports.rustlog.messages import (
    ListTopicsResponse,
    OffsetCommitResponse,
    OffsetFetchResponse,
    PackedProduce,
    Pong,
    ProduceResponse,
    Request,
)


class Kind(IntEnum):
    """The first byte of a request and of its answer."""

    PRODUCE = 0x01
    FETCH = 0x02
    OFFSET_COMMIT = 0x03
    OFFSET_FETCH = 0x04
    CREATE_TOPIC = 0x05
    LIST_TOPICS = 0x06
    DESCRIBE_TOPIC = 0x07
    DESCRIBE_PARTITION = 0x08
    METRICS_FETCH = 0x09
    ERROR = 0xFE
    PING = 0xFF


class ErrorCode(IntEnum):
    """The codes of errors (RB-31). Only FRAME closes the connection."""

    FRAME = 1
    DECODE = 2
    FETCH_FAILED = 4
    COMMIT_FAILED = 5
    NOT_FOUND = 10
    """No such topic, or no such partition."""
    TOPIC_EXISTS = 11
    PARTITION_COUNT = 12
    DESCRIBE_TOPIC_FAILED = 13
    DESCRIBE_PARTITION_FAILED = 14
    INTERNAL = 500
    """Storage, quotas, rates, refused access."""


@final
class BinaryError(msgspec.Struct, frozen=True, gc=False):
    """A request was refused. The message is one line of ASCII."""

    code: int
    message: str


@final
class BinaryRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that came in the binary form, and is answered in it; or the answer to one that is
    refused."""

    request: Request | PackedProduce | BinaryError


@final
class RecordRun(msgspec.Struct, frozen=True, gc=False):
    """The answer to Fetch: records with consecutive offsets from the start of the fetch on
    (RB-10)."""

    records: list[bytes]
    next_offset: int


class TopicCreated(msgspec.Struct, frozen=True, gc=False):
    """The answer to CreateTopic."""

    success: bool


class TopicWatermarks(msgspec.Struct, frozen=True, gc=False):
    """The answer to DescribeTopic: each partition with its high watermark, ascending."""

    topic: str
    watermarks: list[tuple[int, int]]


class PartitionWatermark(msgspec.Struct, frozen=True, gc=False):
    """The answer to DescribePartition."""

    topic: str
    partition: int
    high_watermark: int


class MetricsText(msgspec.Struct, frozen=True, gc=False):
    """The answer to MetricsFetch, in Prometheus's text format."""

    text: str


BinaryResponse = (
    ProduceResponse
    | RecordRun
    | OffsetCommitResponse
    | OffsetFetchResponse
    | TopicCreated
    | ListTopicsResponse
    | TopicWatermarks
    | PartitionWatermark
    | MetricsText
    | Pong
    | BinaryError
)

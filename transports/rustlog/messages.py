"""RustLog's requests and responses: a frame holds one of them as JSON, its name as `type`.

Bodies of records are Base64 in JSON and bytes here. Offsets are u64, partitions u32, timestamps
microseconds since the Unix epoch (docs/reference/compatibility.md).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from millpond.actors.streams.messages import PackedBodies

FRAME_BYTES_MAX = 10_485_760
"""The longest payload of a frame (RL-01)."""

Count = Annotated[int, msgspec.Meta(ge=0)]
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class Message(msgspec.Struct, frozen=True, gc=False, tag=True):
    """A request or a response; `type` on the wire is the name of its class (RL-12)."""


# Requests.


class Produce(Message, frozen=True, gc=False, tag=True):
    """Append `records` to a partition, all or none (RL-13)."""

    topic: str
    partition: U32
    records: list[bytes]


class PackedProduce(msgspec.Struct, frozen=True, gc=False):
    """A Produce of many records, as the native codec reads it."""

    topic: str
    partition: int
    records: PackedBodies


class Fetch(Message, frozen=True, gc=False, tag=True):
    """Records from `offset` on, about `max_bytes` of them (RL-19, RLA-08)."""

    topic: str
    partition: U32
    offset: Count
    max_bytes: Count | UnsetType = UNSET
    group_id: str | UnsetType = UNSET


class OffsetCommit(Message, frozen=True, gc=False, tag=True):
    """A group got as far as `offset`, exclusive (RL-26)."""

    group: str
    topic: str
    partition: U32
    offset: Count


class OffsetFetch(Message, frozen=True, gc=False, tag=True):
    """Get the offset of a group (RL-27)."""

    group: str
    topic: str
    partition: U32


class CreateTopic(Message, frozen=True, gc=False, tag=True):
    """RL-29."""

    topic: str
    partition_count: U32


class ListTopics(Message, frozen=True, gc=False, tag=True):
    """RL-30."""


class DescribeTopic(Message, frozen=True, gc=False, tag=True):
    """RL-31."""

    topic: str


class DescribePartition(Message, frozen=True, gc=False, tag=True):
    """RL-33."""

    topic: str
    partition: U32


class MetricsFetch(Message, frozen=True, gc=False, tag=True):
    """RL-34."""


class Ping(Message, frozen=True, gc=False, tag=True):
    """RL-35."""


Request = (
    Produce
    | Fetch
    | OffsetCommit
    | OffsetFetch
    | CreateTopic
    | ListTopics
    | DescribeTopic
    | DescribePartition
    | MetricsFetch
    | Ping
)


# Responses.


class ProduceResponse(Message, frozen=True, gc=False, tag=True):
    """Kept; the records have consecutive offsets from `base_offset` on."""

    base_offset: Count
    record_count: Count


class FetchedRecord(msgspec.Struct, frozen=True, gc=False):
    """One record of a partition."""

    offset: Count
    timestamp: Count
    data: bytes = msgspec.field(name="payload")


class FetchResponse(Message, frozen=True, gc=False, tag=True):
    """Ascending; go on at `next_offset` (RL-20)."""

    records: list[FetchedRecord]
    next_offset: Count


class OffsetCommitResponse(Message, frozen=True, gc=False, tag=True):
    """`success` False: there is no such partition."""

    success: bool


class OffsetFetchResponse(Message, frozen=True, gc=False, tag=True):
    """None: the group committed nothing there."""

    offset: Count | None


class CreateTopicResponse(Message, frozen=True, gc=False, tag=True):
    """`success` False: the name is taken (RLA-02)."""

    success: bool
    partitions_created: Count


class TopicRow(msgspec.Struct, frozen=True, gc=False):
    """A topic in a list."""

    name: str
    partition_count: Count


class ListTopicsResponse(Message, frozen=True, gc=False, tag=True, omit_defaults=True):
    """Topics in the order of their names. `truncated`: there are more than fit into a frame."""

    topics: list[TopicRow]
    truncated: bool = False


class PartitionRow(msgspec.Struct, frozen=True, gc=False):
    """Records are kept from `log_start_offset` to before `high_watermark` (RL-32)."""

    partition: Count
    high_watermark: Count
    log_start_offset: Count
    segment_count: Count


class DescribeTopicResponse(Message, frozen=True, gc=False, tag=True):
    """A row for each partition, in their order."""

    topic: str
    partitions: list[PartitionRow]


class DescribePartitionResponse(Message, frozen=True, gc=False, tag=True):
    """The row of DescribeTopic, with its topic (RLA-24)."""

    topic: str
    partition: Count
    high_watermark: Count
    log_start_offset: Count
    segment_count: Count


class MetricsFetchResponse(Message, frozen=True, tag=True, omit_defaults=True):
    """Figures by name, and the same as Prometheus has them (RLA-25)."""

    metrics: dict[str, Any]
    prometheus: str | None = None


class Pong(Message, frozen=True, gc=False, tag=True):
    """The answer to Ping."""


class Error(Message, frozen=True, tag=True):
    """A request was refused (RL-36); the connection stays unless it cannot be read any more."""

    code: int
    message: str
    details: dict[str, Any] | None = None


Response = (
    ProduceResponse
    | FetchResponse
    | OffsetCommitResponse
    | OffsetFetchResponse
    | CreateTopicResponse
    | ListTopicsResponse
    | DescribeTopicResponse
    | DescribePartitionResponse
    | MetricsFetchResponse
    | Pong
    | Error
)

INVALID_REQUEST = 400
TOPIC_NOT_FOUND = 404
PARTITION_NOT_FOUND = 405
RECORD_TOO_LARGE = 413
OFFSET_OUT_OF_RANGE = 416
INTERNAL_SERVER_ERROR = 500
STORAGE_ERROR = 503
INSUFFICIENT_SPACE = 507

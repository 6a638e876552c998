"""Responses of RustLog's JSON form, from the replies of streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from millpond.actors.errors import Code
from millpond.actors.messages import Failed, StreamFailed, StreamReply
from millpond.actors.streams import messages as m
from millpond.actors.streams.messages import StreamDescription
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.codec import ENVELOPE_BYTES, encode_response
from millpond.transports.rustlog.json_fallback import DecodedJson
from millpond.transports.rustlog.metrics import GroupLag
from millpond.transports.rustlog.scatter import Answers

TOPIC_ROW_BYTES = 40
"""At most what a row of ListTopicsResponse has besides the name."""
LAGS_MAX = 2000
"""The number of partitions that fit into a frame, however long their names are."""

COMMITTED = encode_response(r.OffsetCommitResponse(True))
NOT_COMMITTED = encode_response(r.OffsetCommitResponse(False))
NOT_CREATED = encode_response(r.CreateTopicResponse(False, 0))

ToStream = (
    r.Produce | r.PackedProduce | r.Fetch | r.OffsetCommit | r.OffsetFetch | r.DescribePartition
)
TO_STREAM = (
    r.Produce,
    r.PackedProduce,
    r.Fetch,
    r.OffsetCommit,
    r.OffsetFetch,
    r.DescribePartition,
)

_ERRORS = {
    Code.BUFFER_FULL: (r.INSUFFICIENT_SPACE, "the partition or the node is full"),
    Code.GROUPS_FULL: (r.INSUFFICIENT_SPACE, "there are too many consumer groups"),
    Code.STORAGE_FAILED: (r.STORAGE_ERROR, "storage failed"),
    Code.QUARANTINED: (r.STORAGE_ERROR, "the partition failed too often and is quarantined"),
    Code.SLOW_DOWN: (r.STORAGE_ERROR, "too many requests"),
    Code.DATA_TOO_LARGE: (r.RECORD_TOO_LARGE, "record too large"),
    Code.MALFORMED: (r.INVALID_REQUEST, "the request is not acceptable"),
    Code.CLOSED: (r.INVALID_REQUEST, "the partition is closed"),
    Code.ENCRYPTED: (r.INVALID_REQUEST, "encrypted"),
    Code.FENCED: (r.INVALID_REQUEST, "the partition has a fencing token"),
    Code.NON_MONOTONIC_ID: (r.INSUFFICIENT_SPACE, "the ids of the partition are used up"),
    Code.OUTCOME_UNKNOWN: (
        r.INTERNAL_SERVER_ERROR,
        "the request may or may not have been carried out",
    ),
}


def error_of(code: Code) -> r.Error:
    """The Error for a code without fields of its own (RL-36, RLA-33)."""
    number, text = _ERRORS.get(code, (r.INTERNAL_SERVER_ERROR, "refused"))
    return r.Error(number, text)


def out_of_range(offset: int, failed: StreamFailed) -> r.Error:
    """416: what is asked for is not kept any more (RL-22, RL-36)."""
    details = {
        "valid_range": {"start": failed.trim_point, "end": failed.tail},
        "high_watermark": failed.tail,
    }
    return r.Error(r.OFFSET_OUT_OF_RANGE, f"Offset {offset} out of range", details)


def lags_of(partitions: Sequence[tuple[str, int]], answers: Answers) -> list[GroupLag]:
    """The lag of each group, in the order of topics, partitions and groups."""
    lags = [
        GroupLag(
            *partitions[index], group.decode(errors="replace"), max(found.info.tail - offset, 0)
        )
        for index, found in answers.items()
        if isinstance(found, StreamDescription)
        for group, offset in found.info.groups.items()
    ]
    lags.sort(key=lambda lag: (lag.topic, lag.partition, lag.group_id))
    return lags[:LAGS_MAX]


def all_topics(topics: Iterable[tuple[bytes, int]], frame_bytes_max: int) -> bytes:
    """A ListTopicsResponse with all topics, or as many as fit into a frame."""
    left = frame_bytes_max - ENVELOPE_BYTES
    rows: list[r.TopicRow] = []
    for name, count in topics:
        left -= len(name) + TOPIC_ROW_BYTES
        if left < 0:
            return encode_response(r.ListTopicsResponse(rows, truncated=True))
        rows.append(r.TopicRow(name.decode(), count))
    return encode_response(r.ListTopicsResponse(rows))


def topic_described(topic: str, count: int, used: Sequence[int], answers: Answers) -> bytes:
    """A DescribeTopicResponse: `used` are the partitions that were asked, in the order of
    `answers`; the others have never had a record (3h)."""
    rows = [r.PartitionRow(each, 0, 0, 1) for each in range(count)]
    for index, found in answers.items():
        if isinstance(found, StreamDescription):
            row = (found.info.tail, found.info.trim_point, found.info.segments)
            rows[used[index]] = r.PartitionRow(used[index], *row)
        elif found is not Code.UNKNOWN_STREAM:
            return encode_response(error_of(found))
    return encode_response(r.DescribeTopicResponse(topic, rows))


def small_answer(request: DecodedJson, reply: StreamReply | Failed) -> bytes:
    """The answer to a request other than Produce and Fetch that was not refused."""
    match request, reply:
        case r.OffsetCommit(), m.Done():
            return COMMITTED
        case r.OffsetFetch(), m.GroupOffset(offset=offset):
            return encode_response(r.OffsetFetchResponse(offset))
        case r.CreateTopic(partition_count=count), m.Done():
            return encode_response(r.CreateTopicResponse(True, count))
        case r.DescribePartition(), m.StreamDescription():
            row = (reply.info.tail, reply.info.trim_point, reply.info.segments)
            return encode_response(
                r.DescribePartitionResponse(request.topic, request.partition, *row)
            )
        case _:
            raise AssertionError(f"{reply} answers no request")


def absent(request: ToStream, error: r.Error, early_offset: int | None) -> bytes:
    """The answer where there is no such partition (RL-14, RL-26, RL-27, RLA-27). `early_offset`:
    what the group of an OffsetFetch committed there in the binary form (RB-22)."""
    match request:
        case r.OffsetCommit():
            return NOT_COMMITTED
        case r.OffsetFetch():
            return encode_response(r.OffsetFetchResponse(early_offset))
        case _:
            return encode_response(error)

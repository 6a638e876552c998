"""The catalog of topics: the topics of several partitions, and early offsets of consumer groups.

A topic of one partition is a stream, so requests about it are forwarded to the stream.
"""

from __future__ import annotations

from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, CellMessage, Port, Reply, StreamFailed, StreamReply
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import DELETE_RETRY_S, entries_of
from millpond.actors.streams.catalogs.early_offsets import EarlyOffsets
from millpond.actors.streams.directory import Directory, is_topic_name, partition_name, partition_of
from millpond.actors.streams.messages import (
    CommitEarlyOffset,
    Create,
    CreateTopic,
    Delete,
    DeleteTopic,
    Done,
    ForgetEarlyOffsets,
    PartitionDeleted,
    ShowEarlyOffset,
    ShowTopic,
)
from millpond.actors.streams.names import TOPICS, stream_cell

PARTITIONS_MAX = 1000
TOPICS_MAX = 10_000
ALL_PARTITIONS_MAX = 1_000_000

_TOPIC = b"topic\0"
_REMOVED = b"removed\0"


class TopicCatalog:
    """The entries of the catalog: the numbers of partitions. `groups_max`: the consumer groups
    that the node has in all."""

    __slots__ = (
        "_deleted",
        "_directory",
        "_early",
        "_partitions",
        "_removed",
        "_shown",
        "_topics",
        "deadline",
    )

    def __init__(self, snapshot: LogSnapshot, directory: Directory, groups_max: int) -> None:
        self._directory = directory
        self._early = EarlyOffsets(snapshot, directory, groups_max)
        self._topics = entries_of(snapshot, _TOPIC, int.from_bytes)
        self._removed = entries_of(snapshot, _REMOVED, int.from_bytes)
        """Deleted topics of which some partitions may still exist."""
        self._deleted: dict[bytes, set[int]] = {name: set() for name in self._removed}
        """The partitions of those that are known to be deleted."""
        self._partitions = sum(self._topics.values())
        self._shown = dict(self._topics)
        """The topics that are durable."""
        directory.sync_topics(self._topics, self._removed, self._shown)
        self.deadline = -inf if self._removed else inf

    @property
    def is_empty(self) -> bool:
        return not self._topics and not self._removed and self._early.is_empty

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case CreateTopic() if port is not None:
                return self._create(port, message, effects)
            case DeleteTopic() if port is not None:
                return self._delete(port, message, now, effects)
            case ShowTopic(topic=topic) if port is not None:
                if topic in self._topics:  # else it was deleted meanwhile
                    self._shown[topic] = self._topics[topic]
                return Done(message.number)
            case CommitEarlyOffset() if port is not None:
                return self._commit_early(port, message, effects)
            case ShowEarlyOffset() if port is not None:
                self._early.show(message)
                return Done(message.number)
            case ForgetEarlyOffsets():
                self._early.forget(message, effects.changes)
                return None
            case PartitionDeleted(stream=stream):
                self._partition_deleted(stream, effects)
                return None
            case _:
                raise AssertionError(f"{type(message).__name__} is not for this catalog")

    def wake(self, now: float, effects: Effects) -> None:
        """Delete the partitions of deleted topics once more."""
        for topic in self._removed:
            self._delete_partitions(topic, effects)
        self.deadline = now + DELETE_RETRY_S if self._removed else inf

    def _commit_early(
        self, port: Port, request: CommitEarlyOffset, effects: Effects
    ) -> StreamReply | None:
        number = request.number
        code = self._early.commit(request, effects.changes)
        if code is not None:
            return StreamFailed(number, code)
        # Streams see it, and the answer goes, once the change is durable.
        place = request.topic, request.partition
        show = ShowEarlyOffset(number, *place, request.group, request.offset)
        effects.forwards += ((TOPICS, Batch(port, [show])),)
        return None

    def _create(self, port: Port, request: CreateTopic, effects: Effects) -> StreamReply | None:
        topic, count, directory = request.topic, request.partitions, self._directory
        if not is_topic_name(topic) or not 1 <= count <= PARTITIONS_MAX:
            return StreamFailed(request.number, Code.MALFORMED)
        if topic in self._topics or topic in self._removed or directory.is_created(topic):
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if count == 1:
            create = Batch(port, [Create(request.number)])
            effects.forwards += ((stream_cell(topic), create),)
            return None
        if any(directory.is_created(partition_name(topic, each)) for each in range(count)):
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if len(self._topics) >= TOPICS_MAX or self._partitions + count > ALL_PARTITIONS_MAX:
            return StreamFailed(request.number, Code.BUFFER_FULL)
        self._topics[topic] = count
        self._partitions += count
        effects.changes.append(MetadataSet(_TOPIC + topic, count.to_bytes(4)))
        # Others see it, and the answer goes, once the change is durable.
        effects.forwards += ((TOPICS, Batch(port, [ShowTopic(request.number, topic)])),)
        return None

    def _delete(
        self, port: Port, request: DeleteTopic, now: float, effects: Effects
    ) -> StreamReply | None:
        topic = request.topic
        count = self._topics.pop(topic, None)
        self._shown.pop(topic, None)
        if count is None:
            delete = Batch(port, [Delete(request.number)])
            effects.forwards += ((stream_cell(topic), delete),)
            return None
        self._partitions -= count
        self._removed[topic] = count
        self._deleted[topic] = set()
        effects.changes.append(MetadataSet(_TOPIC + topic, None))
        effects.changes.append(MetadataSet(_REMOVED + topic, count.to_bytes(4)))
        self._delete_partitions(topic, effects)
        self.deadline = min(self.deadline, now + DELETE_RETRY_S)
        return Done(request.number)

    def _delete_partitions(self, topic: bytes, effects: Effects) -> None:
        """Delete the partitions that a topic still has."""
        deleted = self._deleted[topic]
        effects.posts += tuple(
            (stream_cell(partition_name(topic, each)), Delete(0))
            for each in range(self._removed[topic])
            if each not in deleted
        )

    def _partition_deleted(self, stream: bytes, effects: Effects) -> None:
        """Remember that a partition is deleted; with the last one the topic is forgotten."""
        topic, partition = partition_of(stream) or (b"", 0)
        deleted = self._deleted.get(topic)
        if deleted is None:
            return
        deleted.add(partition)
        if len(deleted) == self._removed[topic]:
            del self._removed[topic], self._deleted[topic]
            effects.changes.append(MetadataSet(_REMOVED + topic, None))

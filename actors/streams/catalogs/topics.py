"""The behaviour of the catalogue of topics: those of several partitions, each with a note.

A topic of one partition is a stream, so what concerns it is passed on to that.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Port,
    Reply,
    StreamFailed,
    StreamReply,
    StreamRequest,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.directory import Directory, is_topic_name, partition_name, partition_of
from millpond.actors.streams.messages import (
    CancelRead,
    Create,
    CreateTopic,
    Delete,
    DeleteTopic,
    Done,
    PartitionDeleted,
)
from millpond.actors.streams.names import stream_cell

PARTITIONS_MAX = 1000
TOPICS_MAX = 10_000
ALL_PARTITIONS_MAX = 1_000_000
VACATE_RETRY_S = 30.0

_TOPIC = b"topic\0"
_REMOVED = b"removed\0"


class TopicCatalog:
    """The topics of a node."""

    __slots__ = ("_directory", "_partitions", "_removed", "_topics", "_vacant", "deadline")

    def __init__(self, outline: LogSnapshot, directory: Directory) -> None:
        self._directory = directory
        self._topics = _counts(outline, _TOPIC)
        self._removed = _counts(outline, _REMOVED)
        """Removed, but some of their partitions may still be there."""
        self._vacant: dict[bytes, set[int]] = {name: set() for name in self._removed}
        """Partitions of those that are known to be gone."""
        self._partitions = sum(self._topics.values())
        directory.sync_topics(self._topics, self._removed)
        self.deadline = -inf if self._removed else inf

    @property
    def is_empty(self) -> bool:
        return not self._topics and not self._removed

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return ()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            reply = self._answer(batch.port, message, now, effects)
            if reply is not None:
                effects.answers.append(reply)
        return effects

    def wake(self, now: float) -> Effects:
        """Tell partitions that are to go, once more."""
        effects = Effects()
        for topic in self._removed:
            self._vacate(topic, now, effects)
        self.deadline = now + VACATE_RETRY_S if self._removed else inf
        return effects

    def _answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case CreateTopic() if port is not None:
                return self._create(port, message, effects)
            case DeleteTopic() if port is not None:
                return self._delete(port, message, now, effects)
            case PartitionDeleted(stream=stream):
                self._forget(stream, effects)
                return None
            case Drain() | Detach() | CancelRead():
                return None
            case _:
                raise AssertionError(f"{type(message).__name__} is not for the catalogue")

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
        return Done(request.number)

    def _delete(
        self, port: Port, request: DeleteTopic, now: float, effects: Effects
    ) -> StreamReply | None:
        topic = request.topic
        count = self._topics.pop(topic, None)
        if count is None:
            delete = Batch(port, [Delete(request.number)])
            effects.forwards += ((stream_cell(topic), delete),)
            return None
        self._partitions -= count
        self._removed[topic] = count
        self._vacant[topic] = set()
        effects.changes.append(MetadataSet(_TOPIC + topic, None))
        effects.changes.append(MetadataSet(_REMOVED + topic, count.to_bytes(4)))
        self._vacate(topic, now, effects)
        return Done(request.number)

    def _vacate(self, topic: bytes, now: float, effects: Effects) -> None:
        """Tell what is left of a topic to go."""
        gone = self._vacant[topic]
        effects.posts += tuple(
            (stream_cell(partition_name(topic, each)), Delete(0))
            for each in range(self._removed[topic])
            if each not in gone
        )
        self.deadline = min(self.deadline, now + VACATE_RETRY_S)

    def _forget(self, stream: bytes, effects: Effects) -> None:
        """A partition is gone; with the last one there is nothing left of its topic."""
        topic, partition = partition_of(stream) or (b"", 0)
        gone = self._vacant.get(topic)
        if gone is None:
            return
        gone.add(partition)
        if len(gone) == self._removed[topic]:
            del self._removed[topic], self._vacant[topic]
            effects.changes.append(MetadataSet(_REMOVED + topic, None))


def _counts(outline: LogSnapshot, prefix: bytes) -> dict[bytes, int]:
    return {
        name[len(prefix) :]: int.from_bytes(value)
        for name, value in outline.metadata.items()
        if name.startswith(prefix)
    }

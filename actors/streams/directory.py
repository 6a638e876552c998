"""The directory of the streams and topics of a node, in memory.

Streams and the catalog of topics keep it up to date, also when they are built anew. It decides
nothing but that a stream and a topic of one name exclude each other.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge, nsmallest

from millpond.actors.errors import StorageFailed
from millpond.actors.messages import CellMessage
from millpond.actors.streams.messages import PartitionDeleted
from millpond.actors.streams.metadata import GroupProgress
from millpond.actors.streams.names import TOPICS, stream_cell

_TOPIC = re.compile(rb"[A-Za-z0-9_-]{1,255}")
_PARTITION = re.compile(rb"(0|[1-9][0-9]{0,8})")
_NO_OFFSETS: Mapping[bytes, int] = {}


class Directory:
    """The names of all streams that were created (`streams`), topics of one partition among
    them."""

    __slots__ = (
        *("_early", "_early_groups", "_groups", "_identities", "_removed", "_shown_topics"),
        *("_single", "_tombstones", "_topics"),
        *("groups", "is_incomplete", "on_deleted", "streams", "tail_of"),
    )

    def __init__(self) -> None:
        self.streams: set[bytes] = set()
        self._tombstones: set[bytes] = set()
        """Deleted streams that still have forks."""
        self.groups = 0
        """Consumer groups of the streams that were in use since the start, and those with early
        offsets."""
        self._early: Mapping[tuple[bytes, int], Mapping[bytes, int]] = {}
        """The early offsets of each partition, as far as they are durable."""
        self._early_groups = 0
        """The number of groups that have early offsets, durable or not yet."""
        self._groups: dict[bytes, tuple[int, GroupProgress]] = {}
        """The number of groups of each stream, and their offsets."""
        self._single: list[bytes] | None = None
        """Topics of one partition by name, once a caller asked for them: a start does not need them
        sorted."""
        self._topics: dict[bytes, int] = {}
        """Topics of several partitions, also those that are not durable yet: they exclude streams
        of their names."""
        self._shown_topics: dict[bytes, int] = {}
        """Those of them that are durable."""
        self._removed: dict[bytes, int] = {}
        """Deleted topics of which some partitions may still exist."""
        self.on_deleted: Callable[[bytes], None] = _nothing
        """Called with the name of a deleted stream."""
        self.is_incomplete = False
        """True: the store lost names that nothing tells of."""
        self._identities: dict[bytes, tuple[int, int]] = {}
        """The incarnation and the base of each stream that was in use since the start."""
        self.tail_of: Callable[[bytes], int | None] = _unknown
        """The tail of a cell's log, where the store knows it without a disk; else None."""

    # Calls of the cells.

    def sync_stream(
        self,
        name: bytes,
        *,
        is_created: bool,
        progress: GroupProgress | None = None,
        is_tombstone: bool = False,
        identity: tuple[int, int] | None = None,
    ) -> None:
        """Follow a stream: whether it exists, the progress of its groups, its incarnation and
        base."""
        if is_created and identity is not None:
            self._identities[name] = identity
        else:
            self._identities.pop(name, None)
        if is_tombstone != (name in self._tombstones):
            (self._tombstones.add if is_tombstone else self._tombstones.remove)(name)
        if is_created != (name in self.streams):
            self._change(name, is_created=is_created)
        count, _ = self._groups.pop(name, (0, None))
        self.groups -= count
        if progress is not None and progress.offsets:
            self._groups[name] = (len(progress.offsets), progress)
            self.groups += len(progress.offsets)

    def _change(self, name: bytes, *, is_created: bool) -> None:
        if is_created:
            self.streams.add(name)
        else:
            self.streams.remove(name)
            self.on_deleted(name)
        if self._single is None or not is_topic_name(name):
            return
        if is_created:
            insort(self._single, name)
        else:
            del self._single[bisect_left(self._single, name)]

    def sync_topics(
        self,
        topics: dict[bytes, int],
        removed: dict[bytes, int],
        durable: dict[bytes, int] | None = None,
    ) -> None:
        """Follow the catalog: the topics of several partitions, and those being deleted. `durable`:
        the topics that others may see; None: all."""
        self._topics = topics
        self._removed = removed
        self._shown_topics = topics if durable is None else durable

    def sync_early_offsets(
        self, durable: Mapping[tuple[bytes, int], Mapping[bytes, int]], groups: int
    ) -> None:
        """Follow the catalog: offsets of groups by topic and partition, and the number of groups
        that have any, also of those whose offsets are not durable yet."""
        self.groups += groups - self._early_groups
        self._early_groups = groups
        self._early = durable

    # Queries of the streams.

    def early_offsets(self, topic: bytes, partition: int) -> Mapping[bytes, int]:
        """The offsets that groups committed to a partition before it existed."""
        return self._early.get((topic, partition), _NO_OFFSETS)

    def early_offsets_of(self, name: bytes) -> Mapping[bytes, int]:
        """The same of the partition whose records a stream has."""
        return self.early_offsets(*self.topic_partition_of(name)) if self._early else _NO_OFFSETS

    def topic_partition_of(self, name: bytes) -> tuple[bytes, int]:
        """The topic and the partition whose records a stream has."""
        found = partition_of(name)
        if found is not None and (self.is_partition(name) or self.is_being_deleted(name)):
            return found
        return name, 0

    def cell_of(self, name: bytes) -> bytes:
        """The cell of a stream of this name."""
        return stream_cell(name)

    def deletion_notice(self, name: bytes) -> tuple[bytes, CellMessage]:
        """A cell, and the message that tells it that a stream of a deleted topic or basin is
        gone."""
        return TOPICS, PartitionDeleted(0, name)

    # Queries of others.

    def check_complete(self) -> None:
        """Before the names of streams or topics are listed. Raises StorageFailed if some are lost:
        a list without them would be wrong."""
        if self.is_incomplete:
            raise StorageFailed

    def progress(self) -> list[GroupProgress]:
        """The offsets of the groups of each stream that has any and was in use since the start."""
        return [progress for _, progress in self._groups.values()]

    def group_progress(self) -> list[tuple[bytes, GroupProgress]]:
        """The same, with the names of the streams."""
        return [(name, progress) for name, (_, progress) in self._groups.items()]

    def progress_of(self, name: bytes) -> GroupProgress | None:
        """The progress of the groups of a stream; None: it has none."""
        found = self._groups.get(name)
        return None if found is None else found[1]

    def partitions(self, topic: bytes) -> int | None:
        """The number of partitions of a topic; None: there is no such topic."""
        count = self._shown_topics.get(topic)
        if count is None and topic in self.streams and is_topic_name(topic):
            return 1
        return count

    def topics(self) -> Iterator[tuple[bytes, int]]:
        """All topics with their partitions, in the order of their names; to be iterated at once."""
        if self._single is None:
            self._single = sorted(filter(is_topic_name, self.streams))
        several = self._shown_topics
        single = ((name, 1) for name in self._single if name not in several)
        return merge(single, sorted(several.items()))

    def names(self, prefix: bytes = b"", after: bytes = b"", limit: int = 1000) -> list[bytes]:
        """The streams that were created or appended to, in the order of their names."""
        streams = [each for each in self.streams if each.startswith(prefix) and each > after]
        return sorted(streams) if len(streams) <= limit else nsmallest(limit, streams)

    def positions(self, names: Iterable[bytes]) -> Iterator[tuple[int, int] | None]:
        """The incarnation and the tail of each stream that is at rest; None: its cell knows."""
        identities, tail_of, cell_of = self._identities, self.tail_of, self.cell_of
        for name in names:
            identity = identities.get(name)
            tail = None if identity is None else tail_of(cell_of(name))
            if identity is None or tail is None:
                yield None
            else:
                incarnation, base = identity
                yield incarnation, tail if tail > base else base

    def is_created(self, name: bytes) -> bool:
        """True: there is a stream or a tombstone of this name; unused partitions of topics do not
        count."""
        return name in self.streams or name in self._tombstones

    def has_topic(self, name: bytes) -> bool:
        """True: there is a topic of several partitions of this name."""
        return name in self._topics

    def is_partition(self, name: bytes) -> bool:
        """True: the stream is a partition of a topic of several."""
        return bool(self._topics) and _is_among(name, self._topics)

    def is_being_deleted(self, name: bytes) -> bool:
        """True: the stream is a partition of a deleted topic."""
        return bool(self._removed) and _is_among(name, self._removed)


class StagingDirectory(Directory):
    """The parts of batches that are not published yet; their names are those of their cells.

    `unwanted` are those that are being deleted; `expired` counts those that expired instead.
    """

    __slots__ = ("expired", "unwanted")

    def __init__(self) -> None:
        super().__init__()
        self.unwanted: set[bytes] = set()
        self.expired = 0

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self.streams)

    def cell_of(self, name: bytes) -> bytes:
        return name

    def _change(self, name: bytes, *, is_created: bool) -> None:
        super()._change(name, is_created=is_created)
        if not is_created and name not in self.unwanted:
            self.expired += 1


def is_topic_name(name: bytes) -> bool:
    """True: a topic may have this name (RL-29)."""
    return _TOPIC.fullmatch(name) is not None


def partition_name(topic: bytes, partition: int) -> bytes:
    """The name of the stream of a topic's partition."""
    return b"%b/%d" % (topic, partition)


def partition_of(name: bytes) -> tuple[bytes, int] | None:
    """The topic and the partition that have a stream of this name; None: there are none."""
    topic, _, number = name.rpartition(b"/")
    return (topic, int(number)) if _PARTITION.fullmatch(number) and topic else None


def _is_among(name: bytes, topics: dict[bytes, int]) -> bool:
    found = partition_of(name)
    return found is not None and found[1] < topics.get(found[0], 0)


def _unknown(cell: bytes) -> int | None:
    """None: there is no store."""
    return None


def _nothing(name: bytes) -> None:
    """Do nothing: no callback is set."""

"""Early offsets: what consumer groups committed to partitions of topics before these exist.

RustLog's binary form accepts such commits (docs/reference/compatibility.md, RB-22). They are in the
catalog of topics, and streams look there for groups that committed nothing to them.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.store.changes import Change, LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import entries_of
from millpond.actors.streams.directory import Directory, is_topic_name
from millpond.actors.streams.messages import (
    CommitEarlyOffset,
    ForgetEarlyOffsets,
    ShowEarlyOffset,
)
from millpond.actors.streams.metadata import GROUP_BYTES_MAX

_OFFSET = b"offset\0"

_Offsets = dict[tuple[bytes, int], dict[bytes, int]]
"""By topic and partition, and by group."""


class EarlyOffsets:
    """The entries of the catalog of topics that are such commits.

    Streams see them in the directory once they are durable.
    """

    __slots__ = ("_count", "_directory", "_groups_max", "_offsets", "_shown")

    def __init__(self, snapshot: LogSnapshot, directory: Directory, groups_max: int) -> None:
        self._directory = directory
        self._groups_max = groups_max
        """The number of consumer groups that a node has in all."""
        self._offsets: _Offsets = {}
        self._shown: _Offsets = {}
        """Those that are durable, and not forgotten since."""
        self._count = 0
        """The number of groups in `_offsets`, which count from their commit on."""
        for key, offset in entries_of(snapshot, _OFFSET, int.from_bytes).items():
            topic, _, rest = key.partition(b"\0")
            place = topic, int.from_bytes(rest[:4])
            for offsets in (self._offsets, self._shown):
                offsets.setdefault(place, {})[rest[4:]] = offset
            self._count += 1
        self._sync()

    def _sync(self) -> None:
        self._directory.sync_early_offsets(self._shown, self._count)

    @property
    def is_empty(self) -> bool:
        """True: there are none."""
        return not self._offsets

    def commit(self, request: CommitEarlyOffset, changes: list[Change]) -> Code | None:
        """Set the offset of a group; gives the reason if that is refused."""
        topic, partition, group = request.topic, request.partition, request.group
        if not is_topic_name(topic) or len(group) > GROUP_BYTES_MAX:
            return Code.MALFORMED
        groups = self._offsets.get((topic, partition), {})
        if group not in groups:
            if self._directory.groups >= self._groups_max:
                return Code.GROUPS_FULL
            self._offsets[topic, partition] = groups
            self._count += 1
            self._sync()
        groups[group] = request.offset
        changes.append(MetadataSet(_key(topic, partition, group), request.offset.to_bytes(8)))
        return None

    def show(self, request: ShowEarlyOffset) -> None:
        """The offset of a group is durable; it may be forgotten by now."""
        place, group = (request.topic, request.partition), request.group
        if group in self._offsets.get(place, ()):
            self._shown.setdefault(place, {})[group] = request.offset

    def forget(self, request: ForgetEarlyOffsets, changes: list[Change]) -> None:
        """Remove the offset of a group, or those of all groups of the partition."""
        place = request.topic, request.partition
        groups, shown = self._offsets.get(place, {}), self._shown.get(place, {})
        for group in [*groups] if request.group is None else [request.group]:
            shown.pop(group, None)
            if groups.pop(group, None) is not None:
                self._count -= 1
                changes.append(MetadataSet(_key(*place, group), None))
        for offsets in (self._offsets, self._shown):
            if not offsets.get(place, True):
                del offsets[place]
        self._sync()


def _key(topic: bytes, partition: int, group: bytes) -> bytes:
    return b"%b%b\0%b%b" % (_OFFSET, topic, partition.to_bytes(4), group)

"""Early offsets: what consumer groups committed to partitions of topics before these exist.

RustLog's binary form accepts such commits (docs/reference/compatibility.md, RB-22). They are in the
catalog of topics, and streams look there for groups that committed nothing to them.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.store.changes import Change, LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import entries_of
from millpond.actors.streams.directory import Directory, is_topic_name
from millpond.actors.streams.messages import CommitEarlyOffset, ForgetEarlyOffsets
from millpond.actors.streams.metadata import GROUP_BYTES_MAX

_OFFSET = b"offset\0"


class EarlyOffsets:
    """The entries of the catalog of topics that are such commits."""

    __slots__ = ("_directory", "_groups_max", "_offsets")

    def __init__(self, snapshot: LogSnapshot, directory: Directory, groups_max: int) -> None:
        self._directory = directory
        self._groups_max = groups_max
        """The number of consumer groups that a node has in all."""
        self._offsets: dict[tuple[bytes, int], dict[bytes, int]] = {}
        for key, offset in entries_of(snapshot, _OFFSET, int.from_bytes).items():
            topic, _, rest = key.partition(b"\0")
            partition = int.from_bytes(rest[:4])
            self._offsets.setdefault((topic, partition), {})[rest[4:]] = offset
        directory.sync_early_offsets(self._offsets)

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
            self._directory.groups += 1
        groups[group] = request.offset
        changes.append(MetadataSet(_key(topic, partition, group), request.offset.to_bytes(8)))
        return None

    def forget(self, request: ForgetEarlyOffsets, changes: list[Change]) -> None:
        """Remove the offset of a group, or those of all groups of the partition."""
        place = request.topic, request.partition
        groups = self._offsets.get(place, {})
        for group in [*groups] if request.group is None else [request.group]:
            if groups.pop(group, None) is not None:
                self._directory.groups -= 1
                changes.append(MetadataSet(_key(*place, group), None))
        if not groups:
            self._offsets.pop(place, None)


def _key(topic: bytes, partition: int, group: bytes) -> bytes:
    return b"%b%b\0%b%b" % (_OFFSET, topic, partition.to_bytes(4), group)

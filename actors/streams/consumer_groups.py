"""Consumer groups: the offsets that clients commit to a stream, within limits."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.store.changes import Change
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.messages import CommitOffset, Settings
from millpond.actors.streams.metadata import GROUP_BYTES_MAX, StreamMetadata
from millpond.actors.streams.settings import StreamLimits


def commit_offset(
    request: CommitOffset,
    metadata: StreamMetadata,
    directory: Directory,
    limits: StreamLimits,
    now_ms: int,
    changes: list[Change],
) -> Code | None:
    """Set the offset of a group, whose name may be empty; gives the reason if that is refused. A
    commit creates a topic's partition."""
    if len(request.group) > GROUP_BYTES_MAX:
        return Code.MALFORMED
    if request.group not in metadata.groups and (
        len(metadata.groups) >= limits.groups_max or directory.groups >= limits.node_groups_max
    ):
        return Code.GROUPS_FULL
    if metadata.created is None:
        changes.append(metadata.create(now_ms, Settings()))
    changes.append(metadata.commit_offset(request.group, request.offset))
    return None

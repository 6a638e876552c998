"""Consumer groups of a stream: how far they got, within limits."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.store.changes import Change
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.messages import CommitOffset, Settings
from millpond.actors.streams.metadata import GROUP_BYTES_MAX, StreamMetadata
from millpond.actors.streams.settings import StreamLimits


def commit_offset(
    request: CommitOffset,
    properties: StreamMetadata,
    directory: Directory,
    limits: StreamLimits,
    now_ms: int,
    changes: list[Change],
) -> Code | None:
    """A group gets so far; or why not. A topic's partition is made by that."""
    if not 0 < len(request.group) <= GROUP_BYTES_MAX:
        return Code.MALFORMED
    if request.group not in properties.groups and (
        len(properties.groups) >= limits.groups_max or directory.groups >= limits.node_groups_max
    ):
        return Code.GROUPS_FULL
    if properties.created is None:
        changes.append(properties.create(now_ms, Settings()))
    changes.append(properties.commit(request.group, request.offset))
    return None

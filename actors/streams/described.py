"""What a stream tells of itself and of its groups."""

from __future__ import annotations

from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.messages import (
    Describe,
    GetGroupOffset,
    GroupOffset,
    StreamDescription,
)
from millpond.actors.streams.metadata import StreamMetadata

SEGMENT_BYTES = 16 * 2**20
"""What `segments` of an outline are counted in."""


def tell(
    asked: Describe | GetGroupOffset, extent: StreamBounds, properties: StreamMetadata, waiting: int
) -> StreamDescription | GroupOffset:
    """The answer to a question that changes nothing."""
    if isinstance(asked, GetGroupOffset):
        return GroupOffset(asked.number, properties.groups.get(asked.group))
    return describe(asked.number, extent, properties, waiting)


def describe(
    number: int, extent: StreamBounds, properties: StreamMetadata, waiting: int
) -> StreamDescription:
    """The outline of a stream for which `waiting` reads wait."""
    created = properties.created
    return StreamDescription(
        number,
        settings=properties.settings,
        created_ms=0 if created is None else created.ms,
        trim_point=extent.trim_point,
        tail=extent.tail,
        last_id=extent.last_id,
        last_timestamp=extent.last_timestamp,
        bytes=extent.size,
        segments=1 + extent.size // SEGMENT_BYTES,
        waiting=waiting,
        fencing_token=properties.fence,
        groups=dict(properties.groups),
        is_closed=properties.durable.is_closed,
        lifetime=properties.durable.lifetime,
        incarnation=properties.incarnation,
    )

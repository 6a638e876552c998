"""The rights that RustLog's requests take (docs/guides/access.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from millpond.actors.messages import Rights
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.json_fallback import DecodedJson

MayDo = Callable[[Rights, bytes], bool]
"""Has the client one of these rights in a topic? The empty name: in all of them."""


def is_allowed(request: DecodedJson, may: MayDo) -> bool:
    """Has the client the right that the request takes (docs/guides/access.md)?

    A reader may also commit the offsets of groups.
    """
    match request:
        case r.Produce() | r.PackedProduce() | r.CreateTopic():
            return may(Rights.PUT, request.topic.encode())
        case r.Fetch() | r.OffsetCommit() | r.OffsetFetch():
            return may(Rights.GET, request.topic.encode())
        case r.DescribeTopic() | r.DescribePartition():
            return may(Rights.GET | Rights.LIST, request.topic.encode())
        case r.MetricsFetch():
            return may(Rights.LIST, b"")
        case r.ListTopics() | r.Ping() | r.Error():
            return True
        case _:
            assert_never(request)

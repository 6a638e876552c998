"""Which right each RustLog request takes, and the answer to one without it
(docs/guides/access.md)."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from millpond.actors.messages import Rights
from millpond.transports.rustlog import messages as r
from millpond.transports.rustlog.codec import encode_response
from millpond.transports.rustlog.json_fallback import DecodedRequest

MayDo = Callable[[Rights, bytes], bool]
"""Has the client one of these rights in a topic? The empty name: in all of them."""

REFUSED = encode_response(r.Error(r.INVALID_REQUEST, "access refused"))
"""The connection stays. Whether there is such a topic is not told (RLA-33)."""
TOLD = Rights.GET | Rights.LIST


def may_ask(request: DecodedRequest, may: MayDo) -> bool:
    """Is this client allowed what it asks? Where a group is, is known to whoever may read."""
    match request:
        case r.Produce() | r.CreateTopic():
            return may(Rights.PUT, request.topic.encode())
        case r.Fetch() | r.OffsetCommit() | r.OffsetFetch():
            return may(Rights.GET, request.topic.encode())
        case r.DescribeTopic() | r.DescribePartition():
            return may(TOLD, request.topic.encode())
        case r.MetricsFetch():
            return may(Rights.LIST, b"")
        case r.ListTopics() | r.Ping() | r.Error():
            return True
        case _:
            assert_never(request)

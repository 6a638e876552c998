"""The unique keys of the jobs of flows, by which a channel knows them."""

from __future__ import annotations

from struct import Struct

RESERVED = b"\0"
"""No unique key of a client begins so."""
_PREFIX = b"\0flow"
_KEY = Struct(">QH")


def flow_key(flow: int, step: int) -> bytes:
    """The unique key of the job of a step."""
    return _PREFIX + _KEY.pack(flow, step)


def flow_step_of(unique: bytes) -> tuple[int, int] | None:
    """The flow and the step that a unique key is of."""
    if not unique.startswith(_PREFIX) or len(unique) != len(_PREFIX) + _KEY.size:
        return None
    flow, step = _KEY.unpack(unique[len(_PREFIX) :])
    return flow, step

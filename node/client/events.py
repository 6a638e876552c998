"""What a channel tells about its connection: `connect(..., on_event=print)`."""

from __future__ import annotations

import msgspec


class Connected(msgspec.Struct, frozen=True):
    """The channel is open; `connection` counts from 1."""

    connection: int


class Disconnected(msgspec.Struct, frozen=True):
    """The connection ended, or was not to be had; `lived_s` is 0 then."""

    reason: str
    lived_s: float


class Retrying(msgspec.Struct, frozen=True):
    """The node will be dialled again in `delay_s` seconds."""

    delay_s: float


Event = Connected | Disconnected | Retrying

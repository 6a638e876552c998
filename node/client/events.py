"""Events of a connection: `connect(..., on_event=print)` shows them."""

from __future__ import annotations

import msgspec


class Connected(msgspec.Struct, frozen=True):
    """The channel is open; `connection` counts from 1."""

    connection: int


class Disconnected(msgspec.Struct, frozen=True):
    """The connection ended, or could not be opened; `lived_s` is 0 then.

    `address` is that of the node. `refused`: it refuses this client for good. The client retries
    as long as another address of its list may come back.
    """

    reason: str
    lived_s: float
    address: str = ""
    refused: bool = False


class Retrying(msgspec.Struct, frozen=True):
    """The node will be dialled again in `delay_s` seconds."""

    delay_s: float


Event = Connected | Disconnected | Retrying

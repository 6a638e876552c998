"""How a channel hands out messages."""

from __future__ import annotations

import msgspec

UNSTARTED_MAX = 20
"""Who says when it begins may lose a message so often in a row without a word; then it counts as an
attempt, so that what ends everybody who is only shown it does not go round for ever."""
BACKOFF_SHARE = 0.1
"""A message whose lease timed out rests for this share of its ack timeout before the next try."""


class DeliverySettings(msgspec.Struct, frozen=True):
    """Times in seconds, windows in messages.

    `attempts_max` holds in queue mode only.
    """

    ack_timeout_s: float = 30.0
    attempts_max: int = 10
    window: int = 32
    window_max: int = 1024
    window_queue_max: int = 8
    window_bytes: int = 2**20

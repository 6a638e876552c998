"""Rules and limits of channels; docs/reference/limits.md has them in one table."""

from __future__ import annotations

from enum import Enum

import msgspec

from millpond.actors.messages import Mode

UNSTARTED_MAX = 20
"""A consumer that reports the start of its work may lose a message so often in a row before it
starts; then the loss counts as an attempt, so that a message that crashes every consumer does not
go round for ever."""
TTL_UNLIMITED = 2**32 - 1
"""The ttl of a message that does not expire: the longest that a packet can carry, 136 years."""
BACKOFF_SHARE = 0.1
"""A message whose lease timed out is delayed for this share of its ack timeout."""


class DeliverySettings(msgspec.Struct, frozen=True):
    """Rules of delivery. Times in seconds, windows in messages.

    `attempts_max` counts in queue mode only.
    """

    ack_timeout_s: float = 30.0
    attempts_max: int = 10
    window: int = 32
    window_max: int = 1024
    window_queue_max: int = 8
    window_bytes: int = 2**20


class EmptyPolicy(Enum):
    """The treatment of a PUT without data (PA-22)."""

    IGNORE = "ignore"
    REFUSE = "refuse"
    STORE = "store"


class ChannelSettings(msgspec.Struct, frozen=True):
    """One channel's rules and limits. Times in seconds.

    `ttl_default` is the ttl of a PUT that has none, `ttl_queue` the same in queue mode: nobody said
    that a job is worthless after a time. `subscribers_max`: identities with a number.
    `dead_letter_expired`: expired messages go to the dead-letter channel; None: in queue mode.
    `tee` is the stream that its messages are appended to
    (b"": none); `is_kept`: they outlive the node.
    """

    mode: Mode | None = None
    ttl_default: int = 86_400
    ttl_queue: int = TTL_UNLIMITED
    ttl_max: int = 604_800
    ttl_strict: bool = False
    dead_ttl: int = 604_800
    empty: EmptyPolicy = EmptyPolicy.IGNORE
    data_bytes_max: int = 2**20 - 64
    messages_max: int = 100_000
    bytes_max: int = 64 * 2**20
    keys_max: int = 65_536
    subscribers_max: int = 10_000
    dead_letter_expired: bool | None = None
    tee: bytes = b""
    is_kept: bool = True
    list_page: int = 1000
    delivery: DeliverySettings = DeliverySettings()


class NodeLimits(msgspec.Struct, frozen=True):
    """Limits of all channels of a node together."""

    messages_max: int = 1_000_000
    bytes_max: int = 2**30
    keys_max: int = 2_000_000

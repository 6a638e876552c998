"""Settings of queues that are set while the node runs: a pause, and limits.

They are durable: entries of the catalog of channels, which are deleted with the channel. The table
has them in memory, where each queue looks for its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

import msgspec

from millpond.actors.messages import JobReply, JobRequest

RATE_PERIOD_MS_MAX = 366 * 86_400_000
KEYS_MAX = 20_000
"""So many keys of a queue may have a bucket that is not full; jobs of further keys wait until one
is."""
KEYS_FULL_RETRY_S = 1.0
SWEEP_GAP_S = 0.1
"""Sweeps of all buckets keep this distance, however many keys ask and however soon one is full."""
AGEING_MS = 60_000
"""A job that waits so long counts as one of the next higher priority, and so on."""


class Rate(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A token bucket: `count` starts of jobs in `period_ms`, and up to `burst` of them at once
    (0: `count`)."""

    count: int
    period_ms: int
    burst: int = 0

    @property
    def interval_s(self) -> float:
        """The time in which a token comes."""
        return self.period_ms / 1000 / self.count

    @property
    def tolerance_s(self) -> float:
        """The time in which all tokens but one come."""
        return self.interval_s * ((self.burst or self.count) - 1)


class QueueSettings(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The settings of one queue. `is_paused`: no job is pushed; puts go on, and so do running
    jobs. `concurrency`: the most jobs that run at once, and `rate`: that start in a time, of all
    workers; `key_concurrency` and `key_rate`: the same for the jobs of one limit key. `ageing_ms`
    as `AGEING_MS`; 0: priorities are strict. 0 or None elsewhere: no limit."""

    is_paused: bool = False
    concurrency: int = 0
    rate: Rate | None = None
    key_concurrency: int = 0
    key_rate: Rate | None = None
    ageing_ms: int = AGEING_MS

    @property
    def has_limits(self) -> bool:
        """True: jobs may have to wait for a limit."""
        return bool(self.concurrency or self.rate or self.key_concurrency or self.key_rate)


NO_SETTINGS = QueueSettings()

encode_settings = msgspec.msgpack.Encoder().encode
decode_settings = msgspec.msgpack.Decoder(QueueSettings).decode


class Buckets:
    """The token buckets of one queue: that of the queue itself, and those of limit keys.

    A bucket is one time, that at which it is full again ("theoretical arrival time" of the generic
    cell rate algorithm); a full one is not kept.
    """

    __slots__ = (
        "_frees_at",
        "_full_at",
        "_key_full_at",
        "_swept_at",
        "_swept_at_count",
        "_unknown_full_at",
    )

    def __init__(self, full_at: float = 0.0, key_full_at: float = 0.0) -> None:
        """`full_at` and `key_full_at`: when the bucket of the queue, and those of keys that are not
        known, are full."""
        self._full_at = full_at
        self._unknown_full_at = key_full_at
        self._key_full_at: dict[bytes, float] = {}
        self._swept_at_count = 0
        self._swept_at = 0.0
        self._frees_at = 0.0
        """No bucket that the last sweep left is full before."""

    @classmethod
    def after_restart(cls, settings: QueueSettings, now: float) -> Self:
        """The buckets of a queue whose former ones are lost: each has one token. So a restart adds
        at most one job to a rate, and holds none up."""
        rate, key_rate = settings.rate, settings.key_rate
        return cls(
            0.0 if rate is None else now + rate.tolerance_s,
            0.0 if key_rate is None else now + key_rate.tolerance_s,
        )

    def opens_at(self, rate: Rate, now: float) -> float:
        """The time from which the queue's bucket has a token."""
        return _capped(self._full_at, rate, now) - rate.tolerance_s

    def take(self, rate: Rate, now: float) -> None:
        """Take a token of the queue's bucket."""
        self._full_at = max(_capped(self._full_at, rate, now), now) + rate.interval_s

    def key_opens_at(self, key: bytes, rate: Rate, now: float) -> float:
        """The time from which the bucket of a key has a token, as far as is known now."""
        full_at = self._key_full_at.get(key)
        if full_at is None:
            if len(self._key_full_at) >= KEYS_MAX and not self._sweep(now):
                return max(self._frees_at, now + KEYS_FULL_RETRY_S)
            full_at = self._unknown_full_at
        return _capped(full_at, rate, now) - rate.tolerance_s

    def take_of_key(self, key: bytes, rate: Rate, now: float) -> None:
        """Take a token of a key's bucket."""
        full_at = _capped(self._key_full_at.get(key, self._unknown_full_at), rate, now)
        self._key_full_at[key] = full_at = max(full_at, now) + rate.interval_s
        self._frees_at = min(self._frees_at, full_at)
        if len(self._key_full_at) > 2 * self._swept_at_count + 64:
            self._sweep(now)

    def _sweep(self, now: float) -> bool:
        """Forget the buckets that are full. True: there is room for others."""
        if now < max(self._frees_at, self._swept_at + SWEEP_GAP_S):
            return len(self._key_full_at) < KEYS_MAX  # many keys may ask while none is full
        self._swept_at = now
        oldest = max(now, self._unknown_full_at)
        self._key_full_at = {k: at for k, at in self._key_full_at.items() if at > oldest}
        self._swept_at_count = len(self._key_full_at)
        self._frees_at = min(self._key_full_at.values(), default=0.0)
        return self._swept_at_count < KEYS_MAX


def _capped(full_at: float, rate: Rate, now: float) -> float:
    """The time at which a bucket is full, which is empty at worst: the rate may be another one than
    that by which it was computed."""
    return min(full_at, now + rate.tolerance_s + rate.interval_s)


class QueueTable:
    """The settings of the queues that have any, by channel, and their buckets. The catalog of
    channels changes it; the buckets outlive the behaviour of a channel."""

    __slots__ = ("_buckets", "_settings")

    def __init__(self) -> None:
        self._settings: dict[bytes, QueueSettings] = {}
        self._buckets: dict[bytes, Buckets] = {}

    def __len__(self) -> int:
        return len(self._settings)

    def __contains__(self, channel: bytes) -> bool:
        return channel in self._settings

    def of(self, channel: bytes) -> QueueSettings:
        """The settings of a queue."""
        return self._settings.get(channel, NO_SETTINGS)

    def buckets(self, channel: bytes, now: float) -> Buckets:
        """The buckets of a queue that has settings."""
        found = self._buckets.get(channel)
        if found is None:
            found = self._buckets[channel] = Buckets.after_restart(self.of(channel), now)
        return found

    def channels(self) -> Iterator[bytes]:
        """The channels of queues that have settings."""
        return iter(self._settings)

    def load(self, settings: dict[bytes, QueueSettings]) -> list[bytes]:
        """Have these alone, as they are stored. Gives the channels whose settings change by it."""
        before, self._settings = self._settings, settings
        for channel in [each for each in self._buckets if each not in settings]:
            del self._buckets[channel]
        return [each for each in {**before, **settings} if before.get(each) != settings.get(each)]

    def set(self, channel: bytes, settings: QueueSettings) -> None:
        """Have these settings for a queue from now on. Buckets that are new are full."""
        if settings == NO_SETTINGS:
            self._settings.pop(channel, None)
            self._buckets.pop(channel, None)
            return
        if channel not in self._settings:
            self._buckets[channel] = Buckets()
        self._settings[channel] = settings


class SetQueue(JobRequest, frozen=True, gc=False):
    """Change settings of the queue; None: as they are. A rate of count 0 is none. Answered by
    `QueueShown`."""

    is_paused: bool | None = None
    concurrency: int | None = None
    rate: Rate | None = None
    key_concurrency: int | None = None
    key_rate: Rate | None = None
    ageing_ms: int | None = None

    def applied(self, before: QueueSettings) -> QueueSettings:
        """The settings with the change."""
        given = {
            field: value
            for field in QueueSettings.__struct_fields__
            if (value := getattr(self, field)) is not None
        }
        for field in ("rate", "key_rate"):
            if field in given and not given[field].count:
                given[field] = None
        return msgspec.structs.replace(before, **given)


class StoreQueueSettings(JobRequest, frozen=True, gc=False):
    """A change of a channel's settings, for the catalog of channels, which answers. `number` is
    that of the change."""

    channel: bytes
    change: SetQueue


class QueueShown(JobReply, frozen=True, gc=False):
    """The settings of the queue."""

    settings: QueueSettings

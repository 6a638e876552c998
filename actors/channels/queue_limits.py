"""The limits of a queue: how many of its jobs run at once, and how often one starts.

The channel holds to them where it leases jobs, so they are those of all workers together. Jobs that
a limit holds back stay ready and are counted nowhere else: a running job is a lease, and buckets
are of the node's table (`actors.queue_settings`).
"""

from __future__ import annotations

from math import inf

from millpond.actors.jobs.options import JobOptions
from millpond.actors.queue_settings import Buckets, QueueSettings


class QueueLimits:
    """The limits of one queue, with its running jobs."""

    __slots__ = ("_buckets", "_keys", "_running_by_key", "_settings", "running")

    def __init__(self, settings: QueueSettings, buckets: Buckets) -> None:
        self._settings = settings
        self._buckets = buckets
        self.running = 0
        """The number of leases of the queue."""
        self._keys: dict[int, bytes] = {}
        """The limit keys of running jobs that have one."""
        self._running_by_key: dict[bytes, int] = {}

    def use(self, settings: QueueSettings, buckets: Buckets) -> None:
        """The limits are these from now on."""
        self._settings = settings
        self._buckets = buckets

    @property
    def ageing_ms(self) -> int:
        """The time in which a waiting job gains a priority; 0: never."""
        return self._settings.ageing_ms

    def opens_at(self, now: float) -> float:
        """The time from which a job may start; infinity: once one has ended."""
        settings = self._settings
        if settings.concurrency and self.running >= settings.concurrency:
            return inf
        return 0.0 if settings.rate is None else self._buckets.opens_at(settings.rate, now)

    def key_opens_at(self, key: bytes, now: float) -> float:
        """The time from which a job of this key may start; infinity: once one has ended."""
        settings = self._settings
        most, rate = settings.key_concurrency, settings.key_rate
        if most and self._running_by_key.get(key, 0) >= most:
            return inf
        return 0.0 if rate is None else self._buckets.key_opens_at(key, rate, now)

    def started(self, message_id: int, options: JobOptions | None, now: float) -> None:
        """A job starts."""
        settings = self._settings
        self.running += 1
        if settings.rate is not None:
            self._buckets.take(settings.rate, now)
        if options is not None and options.limit_key:
            key = options.limit_key
            self._count(message_id, key)
            if settings.key_rate is not None:
                self._buckets.take_of_key(key, settings.key_rate, now)

    def restored(self, message_id: int, options: JobOptions | None) -> None:
        """A job runs that started in a former life of the channel."""
        self.running += 1
        if options is not None and options.limit_key:
            self._count(message_id, options.limit_key)

    def _count(self, message_id: int, key: bytes) -> None:
        self._keys[message_id] = key
        self._running_by_key[key] = self._running_by_key.get(key, 0) + 1

    def ended(self, message_id: int) -> bytes:
        """A job runs no more. Gives its limit key; empty: it has none."""
        self.running -= 1
        key = self._keys.pop(message_id, b"")
        if key:
            left = self._running_by_key[key] - 1
            if left:
                self._running_by_key[key] = left
            else:
                del self._running_by_key[key]
        return key

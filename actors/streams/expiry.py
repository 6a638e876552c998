"""Expiry: the removal of records that are too old or too many, and of streams whose time is up."""

from __future__ import annotations

from math import inf

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Change, Chunk, MetadataSet
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.durable.messages import NO_EXPIRY
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.read import StreamReader
from millpond.actors.streams.retention import SLICE_BYTES, Retention, TrimPlan
from millpond.actors.streams.settings import StreamContext, StreamLimits

GRAIN_MS_MIN = 1000
GRAIN_FRACTION = 16
"""A use is written to the store once the stored one is older than this part of the TTL."""


class Expiry:
    """The times at which a stream loses records, or is deleted.

    A stream of Durable Streams lives for a time after its last use, or until a fixed time (B.5 32).
    Uses are stored now and then, so that not every read costs a change; a stream built from the
    store counts the last use as late as it may have been, so it never goes too early. A stream of
    S2 may be deleted once it was empty for some time (docs/reference/s2.md).
    """

    __slots__ = (
        "_bounds",
        "_context",
        "_is_scanning_for",
        "_limits",
        "_may_be_deleted",
        "_metadata",
        "_must_check_forks",
        "_name",
        "_reader",
        "_retention",
        "_used_ms",
        "has_limits",
    )

    def __init__(
        self,
        name: bytes,
        bounds: StreamBounds,
        metadata: StreamMetadata,
        reader: StreamReader,
        limits: StreamLimits,
        context: StreamContext,
    ) -> None:
        self._name = name
        self._bounds = bounds
        self._metadata = metadata
        self._reader = reader
        self._limits = limits
        self._context = context
        self._retention = Retention(0, 0)
        self._is_scanning_for: object | None = None
        """The scan of the oldest chunks that the store has under way."""
        self._may_be_deleted = False
        """True: the stream may be deleted by itself."""
        self.has_limits = True
        """False: nothing is ever removed by itself."""
        self._must_check_forks = metadata.durable.is_tombstone
        """True: the stream is a tombstone, and its forks have to be asked whether they exist."""
        self._used_ms = metadata.durable.touched_ms + self._grain_ms

    def configure(self) -> Retention:
        """Follow the stream's settings, or the node's."""
        settings, limits = self._metadata.settings, self._limits
        keep = limits.keep_bytes if settings.bytes_max is None else settings.bytes_max
        self._retention = Retention(self._age_s(settings.age_s), keep, self._metadata.ages)
        self._is_scanning_for = None
        has_end = self._metadata.durable.lifetime != NO_EXPIRY
        self._may_be_deleted = has_end or self._empty_s > 0 or self._must_check_forks
        self.has_limits = self._may_be_deleted or self._retention.has_limits
        return self._retention

    def _age_s(self, own_s: int | None) -> int:
        return self._limits.age_s if own_s is None else own_s

    def change_age(self, age_s: int | None, *, is_for_all: bool) -> MetadataSet | None:
        """The settings get this age: the change by which the records that are there keep theirs.

        None: there is nothing to remember. `is_for_all`: the age is theirs as well.
        """
        metadata, bounds = self._metadata, self._bounds
        if is_for_all:
            return metadata.forget_ages()
        before_s = self._age_s(metadata.settings.age_s)
        if self._age_s(age_s) == before_s:
            return None
        return metadata.keep_age(before_s, bounds.trim_point, bounds.tail)

    @property
    def _grain_ms(self) -> int:
        ttl_s = self._metadata.durable.lifetime.ttl_s or 0
        return max(GRAIN_MS_MIN, ttl_s * 1000 // GRAIN_FRACTION)

    def restart(self, now_ms: int) -> None:
        """The stream is created, or deleted: its lifetime begins now."""
        self._used_ms = now_ms

    def use(self, now_ms: int, changes: list[Change]) -> None:
        """The stream is read, or appended to."""
        durable = self._metadata.durable
        if durable.lifetime.ttl_s is None:
            return
        self._used_ms = max(self._used_ms, now_ms)
        may_write = self._context.health.is_writable or not self._limits.is_durable
        if may_write and now_ms - durable.touched_ms >= self._grain_ms:
            changes.append(durable.touch(now_ms))

    def check_empty(self, now_ms: int, changes: list[Change]) -> None:
        """Records were removed, or the settings changed: remember since when the stream is empty,
        so that a restart does not begin anew."""
        if self._empty_s and self._is_empty and self._bounds.tail:
            changes.append(self._metadata.set_emptied(now_ms))

    @property
    def _empty_s(self) -> int:
        options = self._metadata.settings.options
        return 0 if options is None else options.empty_s

    @property
    def _is_empty(self) -> bool:
        return self._bounds.trim_point == self._bounds.tail

    @property
    def next_at(self) -> float:
        """The time at which there may be something to do; infinity: never."""
        retention, bounds = self._retention, self._bounds
        deleted_at = self.deleted_at if self._may_be_deleted else inf
        if self._is_scanning_for is not None or not retention.has_limits:
            return deleted_at
        trim_at = retention.next_at(bounds.trim_point, bounds.tail, bounds.size)
        return min(trim_at, deleted_at)

    @property
    def deleted_at(self) -> float:
        """The time at which the stream is deleted; partitions of a topic go with it alone."""
        if self._must_check_forks:
            return -inf
        durable = self._metadata.durable
        if durable.is_tombstone or self._context.directory.is_partition(self._name):
            return inf
        lifetime, expires_at = durable.lifetime, inf
        if lifetime.ttl_s is not None:
            expires_at = self._used_ms / 1000 + lifetime.ttl_s
        elif lifetime.expires_ms is not None:
            expires_at = lifetime.expires_ms / 1000
        created = self._metadata.created
        if created is None or not self._empty_s or not self._is_empty:
            return expires_at
        emptied_at = max(created.ms, self._metadata.emptied_ms) / 1000
        return min(emptied_at + self._empty_s, expires_at)

    def take_fork_check(self) -> bool:
        """True, once: the forks of this tombstone have to be asked whether they exist."""
        must_check, self._must_check_forks = self._must_check_forks, False
        return must_check

    @property
    def is_scanning(self) -> bool:
        """True: the store reads the oldest chunks."""
        return self._is_scanning_for is not None

    def plan_trim(self, now: float) -> TrimPlan | None:
        """The oldest records that may go; None: none, or the store has to read them first."""
        point = self._bounds.trim_point
        # Records beyond the size are not fetched from the replica, and go while that is away.
        for_sizes = self._retention.is_above(self._bounds.size)
        seek = Seek(SeekBy.SEQUENCE, point, bytes_max=SLICE_BYTES, for_sizes=for_sizes)
        chunks = self._reader.stored_chunks(seek)
        if isinstance(chunks, Deferred):
            self._is_scanning_for = scan = object()
            self._reader.deliver_later(scan, chunks)
            return None
        return self._plan_trim(chunks, now)

    def end_scan(self, scan: object) -> bool:
        """True: this is the scan that the store had under way."""
        if scan is not self._is_scanning_for:
            return False
        self._is_scanning_for = None
        return True

    def resume_trim(self, chunks: list[Chunk] | Fault | None, now: float) -> TrimPlan | None:
        """The same as `plan_trim`, with the chunks that the store read."""
        if chunks is None or isinstance(chunks, Fault):
            self._retention.pause(now)
            return None
        return self._plan_trim(chunks, now)

    def _plan_trim(self, chunks: list[Chunk], now: float) -> TrimPlan:
        bounds = self._bounds
        return self._retention.plan(chunks, bounds.trim_point, bounds.tail, bounds.size, now)

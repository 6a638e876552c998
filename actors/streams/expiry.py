"""What goes by itself: records that are too old or too many, and a stream whose time is up."""

from __future__ import annotations

import logging
from math import inf

from millpond.actors.positions import SeekBy
from millpond.actors.store.changes import Change, Chunk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.chunks import BadChunk
from millpond.actors.streams.durable.messages import NO_EXPIRY
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.read import StreamReader
from millpond.actors.streams.retention import SLICE_BYTES, Retention, TrimPlan
from millpond.actors.streams.settings import StreamContext, StreamLimits
from millpond.actors.streams.tenure import Tenure
from millpond.actors.streams.vacancy import Vacancy

log = logging.getLogger(__name__)


class Expiry:
    """One stream's. Its `Retention` is the reader's as well, which shows nothing too old."""

    __slots__ = (
        "_directory",
        "_extent",
        "_health",
        "_is_mortal",
        "_limits",
        "_moment",
        "_name",
        "_properties",
        "_reader",
        "_tenure",
        "is_claiming",
        "vacancy",
    )

    def __init__(
        self,
        name: bytes,
        extent: StreamBounds,
        properties: StreamMetadata,
        reader: StreamReader,
        moment: Moment,
        limits: StreamLimits,
        shared: StreamContext,
    ) -> None:
        self._name = name
        self._extent = extent
        self._properties = properties
        self._reader = reader
        self._moment = moment
        self._limits = limits
        self._directory = shared.directory
        self._health = shared.health
        self._tenure = Tenure(properties.durable)
        self.vacancy = Vacancy(extent, properties)
        self._is_mortal = False
        """Might the stream go by itself?"""
        self.is_claiming = properties.durable.is_tombstone
        """The stream is buried, and its forks are to be asked whether they are there."""

    def configure(self) -> int:
        """Follow the stream's settings, or the node's; what it keeps, in bytes (0: all)."""
        settings, limits = self._properties.settings, self._limits
        age_s = limits.age_s if settings.age_s is None else settings.age_s
        keep = limits.keep_bytes if settings.bytes_max is None else settings.bytes_max
        self._reader.retention = Retention(age_s * 1000, keep)
        has_end = self._properties.durable.lifetime != NO_EXPIRY
        self._is_mortal = has_end or settings.traits is not None or self.is_claiming
        return keep

    def begin(self) -> None:
        """The stream is made, or gone."""
        self._tenure = Tenure(self._properties.durable, self._moment.now_ms)

    def use(self, changes: list[Change]) -> None:
        """The stream is read, or written to."""
        if self._tenure.slides:
            may_note = self._health.is_writable or not self._limits.is_kept
            self._tenure.use(self._moment.now_ms, changes, may_note=may_note)

    @property
    def next_at(self) -> float:
        """When there may be something to do."""
        retention, extent = self._reader.retention, self._extent
        ends_at = self.ends_at if self._is_mortal else inf
        if not retention.age_ms and not retention.keep_bytes:
            return ends_at
        return min(retention.next_at(extent.tail - extent.trim_point, extent.size), ends_at)

    @property
    def ends_at(self) -> float:
        """When the stream goes; partitions of a topic go with it alone."""
        if self.is_claiming:
            return -inf
        if self._properties.durable.is_tombstone or self._directory.is_partition(self._name):
            return inf
        return min(self.vacancy.ends_at, self._tenure.ends_at)

    def look(self) -> TrimPlan | None:
        """Which of the oldest records may go; None: none, or the store has to look first."""
        seek = Seek(SeekBy.SEQUENCE, self._extent.trim_point, bytes_max=SLICE_BYTES)
        chunks = self._reader.kept(seek)
        if isinstance(chunks, Deferred):
            self._reader.retention.search = search = object()
            self._reader.bring(search, chunks)
            return None
        return self.cut(chunks)

    def take(self, search: object) -> bool:
        """Is this what the store was to look for?"""
        retention = self._reader.retention
        if search is not retention.search:
            return False
        retention.search = None
        return True

    def cut(self, chunks: list[Chunk] | Fault | None) -> TrimPlan | None:
        """The same, now that the oldest chunks are there."""
        extent, retention, now = self._extent, self._reader.retention, self._moment.now
        if chunks is None or isinstance(chunks, Fault):
            retention.rest(now)
            return None
        try:
            return retention.cut(chunks, extent.trim_point, extent.tail, extent.size, now)
        except BadChunk as exc:
            log.error("records not read: name=%r error=%s", self._name, exc)
            retention.rest(now)
            return None

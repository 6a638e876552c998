"""An empty stream that nobody writes to goes by itself, where its settings say so (http.md A.6)."""

from __future__ import annotations

from math import inf

from millpond.actors.store.changes import Change
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.metadata import StreamMetadata


class Vacancy:
    """Since when a stream is empty is noted with it, so that a restart does not begin anew."""

    __slots__ = ("_extent", "_properties")

    def __init__(self, extent: StreamBounds, properties: StreamMetadata) -> None:
        self._extent = extent
        self._properties = properties

    @property
    def ends_at(self) -> float:
        """When the stream goes; infinity: never, as it is now."""
        created = self._properties.created
        empty_s = self._empty_s
        if created is None or not empty_s or not self._is_empty:
            return inf
        return max(created.ms, self._properties.emptied_ms) / 1000 + empty_s

    def note(self, now_ms: int, changes: list[Change]) -> None:
        """Records went, or the settings are others: note when the stream was found empty."""
        if self._empty_s and self._is_empty and self._extent.tail:
            changes.append(self._properties.set_emptied(now_ms))

    @property
    def _empty_s(self) -> int:
        traits = self._properties.settings.traits
        return 0 if traits is None else traits.empty_s

    @property
    def _is_empty(self) -> bool:
        return self._extent.trim_point == self._extent.tail

"""Whether a stream is there, whether one can be made, and what others are told of it."""

from __future__ import annotations

from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.metadata import StreamMetadata


class Registration:
    """One stream's, among the names of its node."""

    __slots__ = ("_directory", "_extent", "_properties", "name")

    def __init__(
        self, name: bytes, properties: StreamMetadata, extent: StreamBounds, directory: Directory
    ) -> None:
        self.name = name
        self._properties = properties
        self._extent = extent
        self._directory = directory

    @property
    def is_there(self) -> bool:
        """Was it made, or is it a partition of a topic; and is it not buried?"""
        properties = self._properties
        if properties.created is None:
            return self._directory.is_partition(self.name)
        return not properties.durable.is_tombstone

    @property
    def is_taken(self) -> bool:
        """Nothing can be made under this name, although nothing is there."""
        directory = self._directory
        is_taken = directory.has_topic(self.name) or directory.is_vacated(self.name)
        return is_taken or self._properties.durable.is_tombstone

    def tell(self) -> None:
        """What this stream is, for all who look for names."""
        properties = self._properties
        properties.progress.tail = self._extent.tail
        is_tombstone = properties.durable.is_tombstone
        self._directory.sync_stream(
            self.name,
            is_created=properties.created is not None and not is_tombstone,
            progress=properties.progress,
            is_tombstone=is_tombstone,
        )

"""Registration: whether a stream exists, whether its name is free, and its directory entry."""

from __future__ import annotations

from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.metadata import StreamMetadata


class Registration:
    """One stream among the names of its node."""

    __slots__ = ("_bounds", "_directory", "_metadata", "name")

    def __init__(
        self, name: bytes, metadata: StreamMetadata, bounds: StreamBounds, directory: Directory
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._bounds = bounds
        self._directory = directory

    @property
    def exists(self) -> bool:
        """True: the stream was created and is no tombstone, or is a partition of a topic."""
        metadata = self._metadata
        if metadata.created is None:
            return self._directory.is_partition(self.name)
        return not metadata.durable.is_tombstone

    @property
    def is_taken(self) -> bool:
        """True: the stream does not exist, but its name is not free either."""
        directory = self._directory
        is_taken = directory.has_topic(self.name) or directory.is_being_deleted(self.name)
        return is_taken or self._metadata.durable.is_tombstone

    def sync(self) -> None:
        """Bring the directory's entry up to date."""
        metadata = self._metadata
        metadata.progress.tail = self._bounds.tail
        is_tombstone = metadata.durable.is_tombstone
        self._directory.sync_stream(
            self.name,
            is_created=metadata.created is not None and not is_tombstone,
            progress=metadata.progress,
            is_tombstone=is_tombstone,
            identity=(metadata.incarnation, self._bounds.base),
        )

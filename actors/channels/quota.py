"""Room in a channel: its own limits and the node's, whichever is reached first (PA-35)."""

from __future__ import annotations

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings


class Quota:
    """What may still come. Measured once for each batch, counted down within it."""

    __slots__ = (
        "_buffer",
        "_health",
        "_limits",
        "_settings",
        "_usage",
        "bytes",
        "is_measured",
        "is_writable",
        "messages",
        "owed_bytes",
        "owed_messages",
    )

    def __init__(self, buffer: Buffer, settings: ChannelSettings, shared: ChannelContext) -> None:
        self._buffer = buffer
        self._settings = settings
        self._limits = shared.limits
        self._usage = shared.usage
        self._health = shared.health
        self.messages = 0
        self.bytes = 0
        self.owed_messages = 0
        self.owed_bytes = 0
        """What has left, but is kept until the stream that the channel feeds has it."""
        self.is_measured = False
        self.is_writable = True
        """False: the store takes nothing new for now."""

    def measure(self) -> None:
        """Look at what is kept now. The store knows of changes only at the end of a batch."""
        settings, limits, usage, buffer = self._settings, self._limits, self._usage, self._buffer
        self.is_measured = True
        self.is_writable = self._health.is_writable
        messages = settings.messages_max - len(buffer.rows) - self.owed_messages
        node_messages = limits.messages_max - usage.messages
        self.messages = messages if messages < node_messages else node_messages
        size = settings.bytes_max - buffer.bytes - self.owed_bytes
        node_size = limits.bytes_max - usage.bytes
        self.bytes = size if size < node_size else node_size

    def fits(self, size: int) -> bool:
        """Is there room for a message of `size` bytes?"""
        return self.is_writable and self.messages >= 1 and self.bytes >= size

"""The quota of a channel: its own limits and the node's, whichever is reached first (PA-35)."""

from __future__ import annotations

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings


class Quota:
    """The messages and bytes that a channel may still take. Measured once for each batch, and
    counted down within it, as the store counts changes only at the end of a batch. The channel says
    with `is_measured` that a batch begins; the publisher counts down."""

    __slots__ = (
        "_buffer",
        "_bytes_max",
        "_health",
        "_limits",
        "_messages_max",
        "_settings",
        "_usage",
        "bytes",
        "is_measured",
        "is_writable",
        "messages",
    )

    def __init__(self, buffer: Buffer, settings: ChannelSettings, context: ChannelContext) -> None:
        self._buffer = buffer
        self._settings = settings
        self._limits = context.limits
        self._usage = context.usage
        self._health = context.health
        self._messages_max = settings.messages_max
        self._bytes_max = settings.bytes_max
        """The channel's limits without what is withheld."""
        self.is_measured = False
        self.messages = 0
        self.bytes = 0
        self.is_writable = True
        """False: the store takes nothing new for now."""

    def measure(self) -> None:
        """Compute what is left."""
        self.is_measured = True
        limits, usage, buffer = self._limits, self._usage, self._buffer
        self.is_writable = self._health.is_writable
        messages = self._messages_max - len(buffer.rows)
        node_messages = limits.messages_max - usage.messages
        self.messages = messages if messages < node_messages else node_messages
        size = self._bytes_max - buffer.bytes
        node_size = limits.bytes_max - usage.bytes
        self.bytes = size if size < node_size else node_size

    def fits(self, size: int, count: int = 1) -> bool:
        """Is there room for a message of `size` bytes, or for so many that have them together?"""
        if not self.is_measured:
            self.measure()
        return self.is_writable and self.messages >= count and self.bytes >= size

    def release(self, size: int) -> None:
        """A message of `size` bytes was removed."""
        self.messages += 1
        self.bytes += size

    def withhold(self, messages: int, size: int) -> None:
        """Count data that was removed and stays stored until the stream of the tee has it."""
        self._messages_max = self._settings.messages_max - messages
        self._bytes_max = self._settings.bytes_max - size

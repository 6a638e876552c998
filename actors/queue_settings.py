"""Settings of queues that are set while the node runs: a pause, and limits.

They are durable: entries of the catalog of channels, which are deleted with the channel. The table
has them in memory, where each queue looks for its own.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millpond.actors.messages import JobReply, JobRequest


class QueueSettings(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The settings of one queue. `is_paused`: no job is pushed; puts go on, and so do running
    jobs."""

    is_paused: bool = False


NO_SETTINGS = QueueSettings()

encode_settings = msgspec.msgpack.Encoder().encode
decode_settings = msgspec.msgpack.Decoder(QueueSettings).decode


class QueueTable:
    """The settings of the queues that have any, by channel. The catalog of channels changes it."""

    __slots__ = ("_settings",)

    def __init__(self) -> None:
        self._settings: dict[bytes, QueueSettings] = {}

    def __len__(self) -> int:
        return len(self._settings)

    def __contains__(self, channel: bytes) -> bool:
        return channel in self._settings

    def of(self, channel: bytes) -> QueueSettings:
        """The settings of a queue."""
        return self._settings.get(channel, NO_SETTINGS)

    def channels(self) -> Iterator[bytes]:
        """The channels of queues that have settings."""
        return iter(self._settings)

    def load(self, settings: dict[bytes, QueueSettings]) -> list[bytes]:
        """Have these alone, as they are stored. Gives the channels whose settings change by it."""
        before, self._settings = self._settings, settings
        return [each for each in {**before, **settings} if before.get(each) != settings.get(each)]

    def set(self, channel: bytes, settings: QueueSettings) -> None:
        """Have these settings for a queue from now on."""
        if settings == NO_SETTINGS:
            self._settings.pop(channel, None)
        else:
            self._settings[channel] = settings


class SetQueue(JobRequest, frozen=True, gc=False):
    """Change settings of the queue; None: as they are. Answered by `QueueShown`."""

    is_paused: bool | None = None

    def applied(self, before: QueueSettings) -> QueueSettings:
        """The settings with the change."""
        if self.is_paused is None:
            return before
        return msgspec.structs.replace(before, is_paused=self.is_paused)


class StoreQueueSettings(JobRequest, frozen=True, gc=False):
    """A change of a channel's settings, for the catalog of channels, which answers. `number` is
    that of the change."""

    channel: bytes
    change: SetQueue


class QueueShown(JobReply, frozen=True, gc=False):
    """The settings of the queue."""

    settings: QueueSettings

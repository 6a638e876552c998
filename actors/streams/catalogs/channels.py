"""The catalog of channels: those that were created, each with the mode that it has for good.

A channel needs no entry: a client that joins one makes it, and it is forgotten once it is empty. An
entry keeps the mode, also while the channel is empty, and over restarts. The settings of queues are
entries as well, of queues that have any, created or not.
"""

from __future__ import annotations

from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import (
    CatalogChannel,
    CellMessage,
    Failed,
    Mode,
    Port,
    QueueSettingsChanged,
    Reply,
)
from millpond.actors.queue_settings import (
    NO_SETTINGS,
    QueueShown,
    QueueTable,
    StoreQueueSettings,
    decode_settings,
    encode_settings,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import entries_of

CHANNELS_MAX = QUEUES_MAX = 10_000

_CHANNEL = b"channel\0"
_QUEUE = b"queue\0"
_CLEARED = b"cleared"
"""The channel that was cleared last. Removals of messages are writes that no caller waits for; this
one comes behind them in the journal, so what waits for it has waited for them."""


class ChannelCatalog:
    """The entries of the catalog. `created` is the table of modes that the channels look into, and
    `queues` that of the settings of queues."""

    __slots__ = ("_changed", "_created", "_queues", "deadline")

    def __init__(
        self, snapshot: LogSnapshot, created: dict[bytes, Mode], queues: QueueTable
    ) -> None:
        self._created = created
        self._queues = queues
        self._changed = queues.load(entries_of(snapshot, _QUEUE, decode_settings))
        """Queues that may have settings that the disk refused."""
        self.deadline = 0.0 if self._changed else inf
        created.clear()
        created.update(entries_of(snapshot, _CHANNEL, _mode))

    @property
    def is_empty(self) -> bool:
        return not self._created and not self._queues

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case CatalogChannel(channel=channel, keeps_mode=True):
                effects.changes.append(MetadataSet(_CLEARED, channel))
            case CatalogChannel(channel=channel, mode=None):
                self._created.pop(channel, None)
                effects.changes.append(MetadataSet(_CHANNEL + channel, None))
                if channel in self._queues:
                    self._queues.set(channel, NO_SETTINGS)
                    effects.changes.append(MetadataSet(_QUEUE + channel, None))
                    effects.posts += ((channel, QueueSettingsChanged()),)
            case CatalogChannel(channel=channel, mode=Mode() as mode):
                if channel in self._created:
                    return Failed(message, Code.CHANNEL_EXISTS)
                if len(self._created) >= CHANNELS_MAX:
                    return Failed(message, Code.BUFFER_FULL)
                self._created[channel] = mode
                effects.changes.append(MetadataSet(_CHANNEL + channel, mode.to_bytes()))
            case StoreQueueSettings():
                return self._set_queue(message, effects)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for this catalog")
        return message.reply

    def _set_queue(self, request: StoreQueueSettings, effects: Effects) -> Reply:
        channel, queues = request.channel, self._queues
        before = queues.of(channel)
        settings = request.change.applied(before)
        if settings != before:
            if channel not in queues and len(queues) >= QUEUES_MAX:
                return Failed(request.change, Code.BUFFER_FULL)
            queues.set(channel, settings)
            value = None if settings == NO_SETTINGS else encode_settings(settings)
            effects.changes.append(MetadataSet(_QUEUE + channel, value))
            effects.posts += ((channel, QueueSettingsChanged()),)
        return QueueShown(request.number, settings)

    def wake(self, now: float, effects: Effects) -> None:
        """Tell queues that their settings are others. Entries do not expire."""
        effects.posts += tuple((each, QueueSettingsChanged()) for each in self._changed)
        self._changed, self.deadline = [], inf


def _mode(value: bytes) -> Mode:
    return Mode(int.from_bytes(value))

"""The catalog of channels: those that were created, each with the mode that it has for good.

A channel needs no entry: a client that joins one makes it, and it is forgotten once it is empty. An
entry keeps the mode, also while the channel is empty, and over restarts.
"""

from __future__ import annotations

from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import CatalogChannel, CellMessage, Failed, Mode, Port, Reply
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import entries_of

CHANNELS_MAX = 10_000

_CHANNEL = b"channel\0"
_CLEARED = b"cleared"
"""The channel that was cleared last. Removals of messages are writes that no caller waits for; this
one comes behind them in the journal, so what waits for it has waited for them."""


class ChannelCatalog:
    """The entries of the catalog. `created` is the table of modes that the channels look into."""

    __slots__ = ("_created", "deadline")

    def __init__(self, snapshot: LogSnapshot, created: dict[bytes, Mode]) -> None:
        self._created = created
        self.deadline = inf
        created.clear()
        created.update(entries_of(snapshot, _CHANNEL, _mode))

    @property
    def is_empty(self) -> bool:
        return not self._created

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case CatalogChannel(channel=channel, keeps_mode=True):
                effects.changes.append(MetadataSet(_CLEARED, channel))
            case CatalogChannel(channel=channel, mode=None):
                self._created.pop(channel, None)
                effects.changes.append(MetadataSet(_CHANNEL + channel, None))
            case CatalogChannel(channel=channel, mode=Mode() as mode):
                if channel in self._created:
                    return Failed(message, Code.CHANNEL_EXISTS)
                if len(self._created) >= CHANNELS_MAX:
                    return Failed(message, Code.BUFFER_FULL)
                self._created[channel] = mode
                effects.changes.append(MetadataSet(_CHANNEL + channel, mode.to_bytes()))
            case _:
                raise AssertionError(f"{type(message).__name__} is not for this catalog")
        return message.reply

    def wake(self, now: float, effects: Effects) -> None:
        """Nothing to do: entries do not expire."""


def _mode(value: bytes) -> Mode:
    return Mode(int.from_bytes(value))

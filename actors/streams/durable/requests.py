"""What clients of Durable Streams ask of a stream, and forks and sources of each other: who does
what of it."""

from __future__ import annotations

from millpond.actors.messages import Port, Reply
from millpond.actors.runtime.cell import Effects
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.durable import messages as d
from millpond.actors.streams.durable.append import DurableAppends
from millpond.actors.streams.durable.forks import Forks
from millpond.actors.streams.metadata import StreamMetadata
from millpond.actors.streams.moment import Moment
from millpond.actors.streams.registration import Registration


class DurableRequests:
    """One stream's. `is_vacant`: it was buried, and its last fork is gone."""

    __slots__ = ("_appender", "_entries", "_founder", "_presence", "_properties", "is_vacant")

    def __init__(
        self,
        presence: Registration,
        cell: bytes,
        extent: StreamBounds,
        properties: StreamMetadata,
        appender: StreamAppender,
        moment: Moment,
    ) -> None:
        self._presence = presence
        self._properties = properties
        self._appender = appender
        self._entries = DurableAppends(extent, properties, appender, moment)
        self._founder = Forks(
            presence.name, cell, extent, properties, appender, self._entries, moment
        )
        self.is_vacant = False

    def answer(
        self, port: Port | None, message: d.DurableRequest, effects: Effects
    ) -> Reply | None:
        """Do it."""
        is_there, is_taken = self._presence.is_there, self._presence.is_taken
        founder, number = self._founder, message.number
        is_buried = self._properties.durable.is_tombstone
        match message:
            case d.DurableAppend():
                if not is_there:
                    return d.DurableRefused(
                        number, d.RefusalReason.BURIED if is_buried else d.RefusalReason.MISSING
                    )
                return self._entries.submit(message, effects.changes)
            case d.DurableCreate():
                return founder.establish(message, effects, is_there=is_there, is_taken=is_taken)
            case d.BeginFork():
                return founder.begin_fork(message, effects, is_there=is_there, is_taken=is_taken)
            case d.Fork():
                if not is_there or port is None:
                    why = (
                        d.RefusalReason.SOURCE_BURIED
                        if is_buried
                        else d.RefusalReason.SOURCE_MISSING
                    )
                    return d.DurableRefused(number, why)
                self._appender.flush(effects.changes)
                return founder.fork(port, message, effects)
            case d.Claim():
                founder.answer_claim(message, effects)
            case d.Release():
                self.is_vacant = founder.release(message, effects)
            case _:
                raise AssertionError(f"{type(message).__name__} is not for streams")
        return None

    def take_closing(self) -> bool:
        """Was the stream closed since this was asked last?"""
        was_closed, self._entries.has_closed = self._entries.has_closed, False
        return was_closed

    def claim_all(self, effects: Effects) -> None:
        """Ask all forks that are noted whether they are there."""
        self._founder.claim_all(effects)

    def part(self, effects: Effects) -> None:
        """The stream goes: its source hears of it."""
        self._founder.part(effects)

"""The history of the workload so far, and the data of its messages."""

from __future__ import annotations

import hashlib
from random import Random
from typing import TypeVar

from tests.crash.events import Done, Event, Kept, Label
from tests.crash.stream_events import StreamEvent

E = TypeVar("E", bound=Event | StreamEvent)

FENCE = b"fence|"
FILLER_BYTES = (0, 60, 200, 700, 3000)


class History:
    """The history of a run, and per channel the messages that are kept and not acked."""

    def __init__(self, seed: int) -> None:
        self.events: list[Event | StreamEvent] = []
        self.life = 0
        self.connections = 0
        self.standing: dict[str, set[int]] = {}
        self._done: set[int] = set()
        self._seed = seed

    def connection(self) -> int:
        """A number for the next connection."""
        self.connections += 1
        return self.connections

    def record(self, event: E) -> E:
        """Add an event to the history."""
        self.events.append(event)
        return event

    def kept(self, channel: str, event: Kept) -> None:
        """A PUT was acknowledged; its reader may have been faster."""
        self.record(event)
        if event.id not in self._done:
            self.standing.setdefault(channel, set()).add(event.id)

    def done(self, channel: str, message_id: int) -> None:
        """A reader acks."""
        self.record(Done(message_id, self.life))
        self._done.add(message_id)
        self.standing.setdefault(channel, set()).discard(message_id)

    def data(self, label: Label) -> bytes:
        """The data of a PUT: its label, and filler that only it has."""
        text = f"{label.writer}|{label.n}|"
        size = Random(f"{self._seed}|{text}").choice(FILLER_BYTES)
        return text.encode() + hashlib.shake_128(f"{self._seed}|{text}".encode()).digest(size)

    def read(self, data: bytes) -> tuple[Label, bool]:
        """The label in some data, and whether the data are what its writer sent."""
        try:
            writer, n, _ = data.split(b"|", 2)
            label = Label(writer.decode(), int(n))
        except ValueError:
            return Label("?", 0), False
        return label, data == self.data(label)

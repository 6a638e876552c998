"""The records of the stream writers, and the state of each stream that is written."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from tests.crash.events import Label
from tests.crash.history import History
from tests.crash.stream_events import Append, Dropped, Place, Placed, Run

RECORDS_MAX = 20
FILLER_BYTES = (0, 20, 60, 200, 900)


class Row(NamedTuple):
    """A record as a reader got it."""

    place: Place
    body: bytes


@dataclass(frozen=True)
class Batch:
    """An append that was acknowledged: its first record, and how many there are."""

    place: Place
    count: int


class WrittenStream:
    """One stream: the acknowledged appends that nobody has trimmed, oldest first."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.records = 0

    def add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.records += batch.count

    def drop(self, count: int) -> None:
        """The oldest ones are trimmed, or nobody knows."""
        for _ in range(min(count, len(self.batches))):
            self.records -= self.batches.popleft().count


class WrittenStreams:
    """All streams of a run; what is done to them is recorded in `history`."""

    def __init__(self, history: History, seed: int) -> None:
        self.history = history
        self._seed = seed
        self._streams: dict[str, WrittenStream] = {}
        self._bodies: dict[Label, list[bytes]] = {}
        self._numbers = 0

    def __getitem__(self, stream: str) -> WrittenStream:
        return self._streams.setdefault(stream, WrittenStream())

    def number(self) -> int:
        """Of the next trim or reader."""
        self._numbers += 1
        return self._numbers

    def bodies(self, label: Label) -> list[bytes]:
        """The records of an append: label, place in it, and filler that only this record has."""
        if label not in self._bodies:
            rng = Random(f"{self._seed}|{label.writer}|{label.n}")
            count = rng.randint(1, RECORDS_MAX)
            self._bodies[label] = [self._body(label, index, rng) for index in range(count)]
        return self._bodies[label]

    def _body(self, label: Label, index: int, rng: Random) -> bytes:
        text = f"{label.writer}|{label.n}|{index}|".encode()
        filler = hashlib.shake_128(b"%d|%b" % (self._seed, text))
        return text + filler.digest(rng.choice(FILLER_BYTES))

    def sends(
        self, stream: str, label: Label, connection: int, *, is_owed: bool = False
    ) -> list[bytes]:
        """An append goes out now; its records."""
        bodies = self.bodies(label)
        self.history.record(Append(stream, label, len(bodies), connection, is_owed))
        return bodies

    def placed(self, stream: str, label: Label, place: Place, *, is_told: bool = True) -> None:
        """An append is kept."""
        self.history.record(Placed(stream, label, place, is_told))
        self[stream].add(Batch(place, len(self.bodies(label))))

    def dropped(self, stream: str, label: Label) -> None:
        """An append was not done."""
        self.history.record(Dropped(stream, label))

    def saw(self, stream: str, reader: str, rows: Iterable[Row]) -> None:
        """Record what a reader got, in this order."""
        for run in self._runs(stream, reader, rows):
            self.history.record(run)

    def _runs(self, stream: str, reader: str, rows: Iterable[Row]) -> Iterator[Run]:
        label, first, count, follows = Label("?", 0), Row(Place(0, 0), b""), 0, 0
        is_whole, bodies, index = False, list[bytes](), 0
        for row in rows:
            is_next = (
                count > 0
                and row.place == first.place.moved(count)
                and follows < len(bodies)
                and row.body == bodies[follows]
            )
            if is_next:
                count, follows = count + 1, follows + 1
                continue
            if count:
                yield Run(stream, reader, label, index, count, first.place, is_whole)
            first, count = row, 1
            label, index, is_whole = self._read(row.body)
            bodies, follows = (self.bodies(label) if is_whole else []), index + 1
        if count:
            yield Run(stream, reader, label, index, count, first.place, is_whole)

    def _read(self, body: bytes) -> tuple[Label, int, bool]:
        """Label and index in a record, and whether it is what its writer sent."""
        try:
            writer, n, index, _ = body.split(b"|", 3)
            label, at = Label(writer.decode(), int(n)), int(index)
        except ValueError:
            return Label("?", 0), 0, False
        bodies = self.bodies(label)
        return label, at, 0 <= at < len(bodies) and bodies[at] == body

"""The history of one stream: records that must be there, that may be, and that must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import assert_never

from tests.crash.events import Label
from tests.crash.stream_events import (
    Append,
    Below,
    Dropped,
    Id,
    Look,
    Looked,
    Place,
    Placed,
    Run,
    StreamEvent,
    Trim,
    Trimmed,
)

FAULTS = (
    *("lost", "duplicated", "reordered", "torn", "revived", "damaged", "invented"),
    "unanswered",
)


@dataclass
class _Try:
    """A batch that was sent. `floor`: the highest id that was known then. `open`: sent so often
    without the client saying that it was not done."""

    count: int
    at: int
    floor: Id
    is_owed: bool
    open: int = 0


@dataclass
class _Batch:
    """A batch that is kept. Of its records the first `gone` must not be there any more, and the
    first `may` need not be."""

    place: Place
    count: int
    at: int
    gone: int = 0
    may: int = 0

    def below(self, bound: Below, unknown: int) -> int:
        """The number of its records below; `unknown` if that cannot be known."""
        if isinstance(bound, int):
            sequence = self.place.sequence
            return unknown if sequence is None else _clamp(bound - sequence, self.count)
        ms, seq = bound
        if ms != self.place.ms:
            return self.count if ms > self.place.ms else 0
        return _clamp(seq - self.place.seq, self.count)


@dataclass
class _Cut:
    """A trim. It may happen at any time from `at` to `over`."""

    below: Below
    at: int
    over: float = inf


@dataclass
class _Look:
    """Somebody reads. `gone`: what had to be missing of each batch when it began."""

    at: int
    gone: dict[Label, int]
    is_calm: bool
    seen: dict[Label, set[int]] = field(default_factory=dict)
    last: Place | None = None


class StreamHistory:
    """Takes the events of one stream, numbered as they came."""

    def __init__(self, stream: str) -> None:
        self.tries: dict[Label, _Try] = {}
        self.acked: set[Label] = set()
        self.unknown: set[Label] = set()
        self.kept_unseen: set[Label] = set()
        self.dropped = self.delivered = self.trims_done = self.looks_done = 0
        self.faults: dict[str, dict[object, str]] = {name: {} for name in FAULTS}
        self._stream = stream
        self._batches: dict[Label, _Batch] = {}
        self._owners: dict[Id, Label] = {}
        self._cuts: dict[int, _Cut] = {}
        self._looks: dict[str, _Look] = {}
        self._sent: dict[int, dict[Label, None]] = {}
        self._connection: dict[Label, int] = {}
        self._top: Id = (-1, -1)

    def restarted(self, clock: int) -> None:
        """The node is another: requests to the one before happen no more."""
        for cut in self._cuts.values():
            cut.over = min(cut.over, clock)
        self.unknown |= {
            label for label, one in self.tries.items() if one.open and label not in self.acked
        }

    def take(self, event: StreamEvent, clock: int) -> None:
        match event:
            case Append():
                self._append(event, clock)
            case Placed():
                self._placed(event, clock)
            case Dropped():
                self.dropped += 1
                self.tries[event.label].open -= 1
                self._sent[self._connection[event.label]].pop(event.label)
            case Trim():
                self._trim(event, clock)
            case Trimmed():
                self._trimmed(event, clock)
            case Look():
                gone = {label: batch.gone for label, batch in self._batches.items()}
                is_calm = all(cut.over < clock for cut in self._cuts.values())
                self._looks[event.reader] = _Look(clock, gone, is_calm)
            case Run():
                self._run(event, clock)
            case Looked():
                self._looked(event)
            case _:
                assert_never(event)

    def conclude(self) -> None:
        """Find what shows only at the end."""
        for label, one in self.tries.items():
            if one.is_owed and label not in self.acked:
                self._blame("unanswered", label, f"{label}")
        for connection, labels in self._sent.items():
            last: Id = (-1, -1)
            for label in labels:
                batch = self._batches.get(label)
                if batch is None:
                    continue
                if batch.place.id <= last:
                    text = f"{label} at {batch.place} on connection {connection}"
                    self._blame("reordered", label, text)
                last = max(last, batch.place.id)

    def _append(self, sent: Append, clock: int) -> None:
        label = sent.label
        one = self.tries.setdefault(label, _Try(sent.count, clock, self._top, sent.is_owed))
        one.open += 1
        if label in self._connection:
            self._sent[self._connection[label]].pop(label, None)
        self._connection[label] = sent.connection
        self._sent.setdefault(sent.connection, {})[label] = None

    def _placed(self, placed: Placed, clock: int) -> None:
        self.acked.add(placed.label)
        if not placed.is_told:
            self.kept_unseen.add(placed.label)
        self._locate(placed.label, placed.place, clock)

    def _locate(self, label: Label, place: Place, clock: int) -> None:
        """A batch is kept, and begins there."""
        one, batch = self.tries[label], self._batches.get(label)
        what = f"{label} at {place}"
        if batch is not None:
            known = batch.place
            sequences = {known.sequence, place.sequence} - {None}
            if known.id != place.id or len(sequences) > 1:
                self._blame("duplicated", label, f"{what}, and at {known}")
            elif known.sequence is None:
                batch.place = place
            return
        if place.id <= one.floor:
            self._blame("reordered", label, f"{what}, sent when there was {one.floor}")
        last = place.moved(one.count - 1).id
        if (owner := self._owners.setdefault(last, label)) != label:
            self._blame("duplicated", label, f"{what}, where {owner} is")
        self._top = max(self._top, last)
        batch = self._batches[label] = _Batch(place, one.count, clock)
        for cut in self._cuts.values():
            if cut.over > one.at:
                batch.may = max(batch.may, batch.below(cut.below, batch.count))

    def _trim(self, trim: Trim, clock: int) -> None:
        self._cuts[trim.number] = _Cut(trim.below, clock)
        for batch in self._batches.values():
            batch.may = max(batch.may, batch.below(trim.below, batch.count))

    def _trimmed(self, trimmed: Trimmed, clock: int) -> None:
        self.trims_done += 1
        cut = self._cuts[trimmed.number]
        cut.over = clock
        for batch in self._batches.values():
            if batch.at < cut.at:
                batch.gone = max(batch.gone, batch.below(cut.below, 0))

    def _run(self, run: Run, clock: int) -> None:
        self.delivered += run.count
        what = f"{run.label} from {run.index} on at {run.place}, {run.reader}"
        one = self.tries.get(run.label)
        look = self._looks.setdefault(run.reader, _Look(clock, {}, is_calm=False))
        self._follow_on(run, look, what)
        if not run.is_whole:
            self._blame("damaged", (run.reader, run.place), what)
            return
        if one is None or not (one.open or run.label in self._batches):
            self._blame("invented", run.label, what)
            return
        if run.label in self.unknown and run.label not in self._batches:
            self.kept_unseen.add(run.label)
        self._locate(run.label, run.place.moved(-run.index), clock)
        indexes = range(run.index, run.index + run.count)
        seen = look.seen.setdefault(run.label, set())
        if not seen.isdisjoint(indexes):
            self._blame("duplicated", run.label, f"{what}, again")
        seen.update(indexes)
        if run.index < look.gone.get(run.label, 0):
            self._blame("revived", run.label, what)

    def _follow_on(self, run: Run, look: _Look, what: str) -> None:
        """The records of one reader ascend; sequences have no gaps."""
        last = look.last
        look.last = run.place.moved(run.count - 1)
        if last is None:
            return
        begin = last.moved(1)
        is_next = None in (begin.sequence, run.place.sequence) or (
            begin.sequence == run.place.sequence or self._is_cut(begin, look.at)
        )
        if run.place.id <= last.id or not is_next:
            self._blame("reordered", (run.reader, run.place), f"{what}, behind {last}")

    def _is_cut(self, place: Place, since: int) -> bool:
        """May a trim have taken the record at this place while somebody read?"""
        only = _Batch(place, 1, since)
        return any(cut.over > since and only.below(cut.below, 1) for cut in self._cuts.values())

    def _looked(self, looked: Looked) -> None:
        self.looks_done += 1
        look = self._looks.pop(looked.reader)
        is_calm = look.is_calm and all(cut.at < look.at for cut in self._cuts.values())
        for label in look.gone.keys() | look.seen.keys():
            batch, seen = self._batches[label], look.seen.get(label, set())
            if missing := [at for at in range(batch.may, batch.count) if at not in seen]:
                text = f"{label} at {batch.place}: {len(missing)} of {batch.count}, {looked.reader}"
                self._blame("torn" if seen else "lost", label, text)
            elif label in look.gone:
                batch.gone = max(batch.gone, batch.count - len(seen))
                batch.may = batch.gone if is_calm else batch.may

    def _blame(self, fault: str, what: object, text: str) -> None:
        self.faults[fault].setdefault(what, f"{fault}: {self._stream}: {text}")


def _clamp(number: int, most: int) -> int:
    return max(0, min(number, most))

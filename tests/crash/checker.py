"""The checker of channels: a pure function of the history of a run to its counts and faults."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from millpond.actors.ids import created_ms
from tests.crash.events import (
    Done,
    Event,
    Found,
    Got,
    Kept,
    Label,
    Missed,
    Refused,
    Sent,
    Settled,
    Started,
)


class CheckResult(msgspec.Struct, frozen=True):
    """The figures of a run: those of `FAULTS` must be 0, the others say how much was tried.

    attempted    different PUTs
    acked        of these, acknowledged
    unknown      of these, those whose connection ended before an answer at least once
    recovered    of these, answered by a retry
    kept_unseen  of these, those that the node had kept all the same
    refused      answers that were a NACK
    delivered    pushes, and messages found at the end
    done         messages that a reader acked
    redelivered  of these, seen again after a kill that came before their ack was durable (allowed)
    lost         acknowledged, acked by nobody, and not there
    duplicated   stored under two ids
    reordered    ids that do not ascend as the PUTs of one connection were sent
    revived      seen again although their ack was durable, or in the life that had their ack
    damaged      data that are not what was sent
    invented     messages that nobody sent
    undead       found at the end although long expired
    unanswered   never answered, not even after the last restart
    """

    attempted: int
    acked: int
    unknown: int
    recovered: int
    kept_unseen: int
    refused: int
    delivered: int
    done: int
    redelivered: int
    lost: int
    duplicated: int
    reordered: int
    revived: int
    damaged: int
    invented: int
    undead: int
    unanswered: int
    examples: tuple[str, ...] = ()

    @property
    def faults(self) -> dict[str, int]:
        """The violations by name; empty when all is well."""
        counts = {name: getattr(self, name) for name in FAULTS}
        return {name: count for name, count in counts.items() if count}


FAULTS = (
    *("lost", "duplicated", "reordered", "revived", "damaged", "invented", "undead"),
    "unanswered",
)
EXAMPLES_MAX = 5
"""So many of each fault are told one by one."""


def check(history: Iterable[Event]) -> CheckResult:
    """Check a whole run: its last events are what was found at the end."""
    reading = _Reading()
    for event in history:
        reading.take(event)
    return reading.result()


class _Connection:
    """The PUTs of one connection, in the order sent, and the ids they were answered with."""

    def __init__(self) -> None:
        self.answers: dict[Label, int | None] = {}

    def sent(self, label: Label) -> None:
        self.answers.pop(label, None)  # sent again after a NACK: only this time counts
        self.answers[label] = None

    def reordered(self) -> list[Label]:
        """The PUTs whose ids are not above all ids of the PUTs before them."""
        last, found = 0, []
        for label, message_id in self.answers.items():
            if message_id is None:
                continue
            if message_id <= last:
                found.append(label)
            last = max(last, message_id)
        return found


class _Reading:
    """The state of a check: what the events so far say."""

    def __init__(self) -> None:
        self.started_ms = 0
        self.brief: dict[Label, bool] = {}
        self.ids: dict[Label, set[int]] = {}
        self.acked: dict[Label, int] = {}
        self.open: dict[Label, int] = {}
        self.unknown: set[Label] = set()
        self.kept_unseen: set[Label] = set()
        self.connections: dict[int, _Connection] = {}
        self.done: dict[int, int] = {}
        self.settled: set[int] = set()
        self.found: set[int] = set()
        self.delivered = self.refused = 0
        self.redelivered: set[int] = set()
        self.faults: dict[str, dict[object, str]] = {name: {} for name in FAULTS}

    def take(self, event: Event) -> None:
        match event:
            case Started():
                self.started_ms = event.at_ms
            case Sent():
                self._sent(event)
            case Kept():
                self._kept(event)
            case Refused():
                self.refused += 1
                self.open.pop(event.label, None)
            case Got():
                self._seen(event)
            case Done():
                self.done[event.id] = event.life
            case Settled():
                self.settled.update(event.ids)
            case Missed():
                self._blame("lost", event.id, f"id {event.id} not listed in life {event.life}")
            case Found():
                self._seen(event)
                self.found.add(event.id)
                if self.brief.get(event.label):
                    self._blame("undead", event.label, f"{event.label} under id {event.id}")
            case _:
                assert_never(event)

    def _sent(self, sent: Sent) -> None:
        if sent.label in self.open and sent.label not in self.acked:
            self.unknown.add(sent.label)
        self.open[sent.label] = sent.connection
        self.brief[sent.label] = sent.is_brief
        self.connections.setdefault(sent.connection, _Connection()).sent(sent.label)

    def _kept(self, kept: Kept) -> None:
        label = kept.label
        self.open.pop(label, None)
        self.acked[label] = kept.id
        self.ids.setdefault(label, set()).add(kept.id)
        self.connections[kept.connection].answers[label] = kept.id
        if label in self.unknown and created_ms(kept.id) < self.started_ms:
            self.kept_unseen.add(label)

    def _seen(self, seen: Got | Found) -> None:
        self.delivered += 1
        what = f"{seen.label} under id {seen.id} in life {seen.life}"
        if seen.label not in self.brief:
            self._blame("invented", seen.id, what)
            return
        self.ids.setdefault(seen.label, set()).add(seen.id)
        if not seen.is_whole:
            self._blame("damaged", seen.id, what)
        if seen.id in self.settled or self.done.get(seen.id) == seen.life:
            self._blame("revived", seen.id, f"{what}, acked in life {self.done[seen.id]}")
        elif seen.id in self.done:
            self.redelivered.add(seen.id)

    def _blame(self, fault: str, what: object, text: str) -> None:
        self.faults[fault].setdefault(what, f"{fault}: {text}")

    def _conclude(self) -> None:
        """Find the faults that show only at the end."""
        for label, message_id in self.acked.items():
            is_there = message_id in self.found or message_id in self.done
            if not is_there and not self.brief[label]:
                self._blame("lost", message_id, f"{label} under id {message_id}")
        for label, ids in self.ids.items():
            if len(ids) > 1:
                self._blame("duplicated", label, f"{label} under ids {sorted(ids)}")
        for number, connection in self.connections.items():
            for label in connection.reordered():
                self._blame("reordered", (number, label), f"{label} on connection {number}")
        self.open = {each: at for each, at in self.open.items() if each not in self.acked}
        for label, number in self.open.items():
            self._blame("unanswered", label, f"{label}, last on connection {number}")

    def result(self) -> CheckResult:
        self._conclude()
        told = [list(each.values())[:EXAMPLES_MAX] for each in self.faults.values()]
        return CheckResult(
            attempted=len(self.brief),
            acked=len(self.acked),
            unknown=len(self.unknown | self.open.keys()),
            recovered=len(self.unknown & self.acked.keys()),
            kept_unseen=len(self.kept_unseen),
            refused=self.refused,
            delivered=self.delivered,
            done=len(self.done),
            redelivered=len(self.redelivered),
            examples=tuple(text for texts in told for text in texts),
            **{name: len(each) for name, each in self.faults.items()},
        )

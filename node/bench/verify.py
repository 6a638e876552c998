"""Checks of answers and pushes: every receipt once, every message whole, none lost."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from millpond.actors.messages import PutAck
from millpond.node.bench.payload import Payload


class Fault(StrEnum):
    """A kind of mistake that a server must not make."""

    REFUSED = "refused"
    UNACKNOWLEDGED = "unacknowledged"
    UNEXPECTED = "unexpected"
    DISORDERED = "disordered"
    LOST = "lost"
    DAMAGED = "damaged"
    DISCONNECTED = "disconnected"


class Faults:
    """Counts of each fault, and the first one in words."""

    def __init__(self) -> None:
        self.counts: Counter[Fault] = Counter()
        self.first = ""

    def __bool__(self) -> bool:
        return bool(self.counts)

    def by_name(self) -> dict[str, int]:
        """Counts by the names of faults."""
        return {fault.value: count for fault, count in self.counts.items()}

    def note(self, fault: Fault, text: str, count: int = 1) -> None:
        """Count a fault, described by `text`."""
        self.counts[fault] += count
        self.first = self.first or text


class Receipts:
    """The receipts of a connection's PUTs: one for each, with ascending ids (P2P-06, P2P-08)."""

    __slots__ = ("_faults", "_last_id", "outstanding")

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._last_id = 0
        self.outstanding: set[int] = set()

    def settle(self, ack: PutAck) -> bool:
        """Whether this is the receipt of a PUT that waits for one."""
        if ack.key not in self.outstanding:
            text = f"a receipt came for key {ack.key}, which is not under way"
            self._faults.note(Fault.UNEXPECTED, text)
            return False
        self.outstanding.remove(ack.key)
        if ack.id <= self._last_id:
            text = f"id {ack.id} was given after id {self._last_id}"
            self._faults.note(Fault.DISORDERED, text)
        self._last_id = ack.id
        return True

    def close(self) -> None:
        """Count as faults the receipts that did not come."""
        if self.outstanding:
            text = f"no receipt for key {min(self.outstanding)}"
            self._faults.note(Fault.UNACKNOWLEDGED, text, len(self.outstanding))


class Deliveries:
    """The messages of one producer, numbered from 0, that reach one subscriber.

    A message may come again (P2P-15); `duplicates` counts that.
    """

    __slots__ = ("_ahead", "_faults", "_floor", "_payload", "duplicates")

    def __init__(self, payload: Payload, faults: Faults) -> None:
        self._payload = payload
        self._faults = faults
        self._floor = 0
        self._ahead: set[int] = set()
        self.duplicates = 0

    def take(self, data: bytes, count: int) -> int | None:
        """The number of a message that comes for the first time; `count` were put so far."""
        sequence = self._payload.read(data)
        if sequence is None or sequence >= count:
            text = f"a message of {len(data)} bytes is not what was put"
            self._faults.note(Fault.DAMAGED, text)
            return None
        if sequence < self._floor or sequence in self._ahead:
            self.duplicates += 1
            return None
        if sequence != self._floor:
            self._ahead.add(sequence)
            return sequence
        self._floor += 1
        while self._ahead and self._floor in self._ahead:
            self._ahead.remove(self._floor)
            self._floor += 1
        return sequence

    def close(self, count: int) -> None:
        """Count as faults the messages that did not come; `count` were put."""
        lost = count - self._floor - len(self._ahead)
        if lost > 0:
            self._faults.note(Fault.LOST, f"message {self._floor} never came", lost)

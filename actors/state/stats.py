"""Statistics of states: counts of events, and sizes."""

from __future__ import annotations

import msgspec

from millpond.actors.state.events import Control, ControlEvent, InvalidRecord


class EventStats(msgspec.Struct):
    """Counts since the stream's first event that was seen, or since a checkpoint.

    `rejected` is by reason. `unmatched`: snapshots that ended without a beginning, or began within
    another (C3, C4). `repeated` records came again and were passed over (T2), `missed` ones were
    trimmed before they were read. `other_types`: of types that the definition does not have.
    """

    changes: int = 0
    controls: int = 0
    resets: int = 0
    snapshots: int = 0
    unmatched: int = 0
    repeated: int = 0
    missed: int = 0
    other_types: int = 0
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    in_snapshot: bool = False

    @property
    def skipped(self) -> int:
        """The number of records that were no valid events."""
        return sum(self.rejected.values())

    def copy(self) -> EventStats:
        """The counts as they are now."""
        return msgspec.structs.replace(self, rejected=self.rejected.copy())

    def reject(self, what: InvalidRecord) -> None:
        """Count a record that is no valid event."""
        name = what.reason.name.lower()
        self.rejected[name] = self.rejected.get(name, 0) + 1

    def count_control(self, event: ControlEvent) -> Control:
        """Count a control event; a RESET is applied by the caller."""
        self.controls += 1
        control = event.headers.control
        match control:
            case Control.SNAPSHOT_START:
                self.unmatched += self.in_snapshot
                self.in_snapshot = True
            case Control.SNAPSHOT_END:
                self.unmatched += not self.in_snapshot
                self.snapshots += self.in_snapshot
                self.in_snapshot = False
            case Control.RESET:
                self.resets += 1
                self.in_snapshot = False
            case Control.UP_TO_DATE:
                pass
        return control


class StateUsage:
    """The size of all states of a node together, in bytes."""

    __slots__ = ("_sizes", "bytes")

    def __init__(self) -> None:
        self._sizes: dict[bytes, int] = {}
        self.bytes = 0

    def set(self, name: bytes, size: int) -> None:
        """Set the size of the state of one stream."""
        self.bytes += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size

    @property
    def count(self) -> int:
        """The number of states that are not empty."""
        return len(self._sizes)

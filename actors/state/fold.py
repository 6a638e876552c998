"""Fold: the records of a stream materialized as state, each once and in order.

A fold knows how far it got. It can be written down at any record (`checkpoint`) and goes on from
there; what comes again because of that is passed over (T1, T2).
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec
from msgspec import UNSET

from millpond.actors.errors import MillpondError
from millpond.actors.state.events import (
    ChangeEvent,
    ChangeHeaders,
    Control,
    ControlEvent,
    InvalidReason,
    InvalidRecord,
    Operation,
    decode,
)
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.schema import StreamState
from millpond.actors.state.stats import EventStats


class OnReset(Enum):
    """The effect of a reset (C6)."""

    CLEAR = "clear"
    """The state is empty, and the following records begin anew."""
    STOP = "stop"
    """StateReset is raised; nothing behind the reset is applied."""


class OnInvalid(Enum):
    """The treatment of a record that is no event, or does not fit its schema (V3). The state stays
    as it was in any case, and each is counted."""

    DROP = "drop"
    STOP = "stop"
    """InvalidEvent is raised; the fold stays before it."""
    QUARANTINE = "quarantine"
    """The record is handed on with its reason."""


class StateReset(MillpondError):
    """a reset in the stream: the state before is no longer valid; `sequence` is its record"""

    def __init__(self, sequence: int) -> None:
        super().__init__(f"reset at sequence {sequence}")
        self.sequence = sequence


class InvalidEvent(MillpondError):
    """a record is no event, or does not fit; `sequence`, `reason`, `text` and `body` tell it"""

    def __init__(self, sequence: int, error: InvalidRecord, body: bytes) -> None:
        words = f": {error.text}" if error.text else ""
        super().__init__(f"sequence {sequence}: {error.reason.value}{words}")
        self.sequence, self.reason, self.text, self.body = sequence, error.reason, error.text, body


class BadCheckpoint(MillpondError, ValueError):
    """The bytes are no checkpoint, or one of another stream."""


class Changed(msgspec.Struct, frozen=True):
    """A value was set or removed. `value` and `before` are UNSET where there is none."""

    sequence: int
    type: str
    key: str
    value: object
    before: object
    operation: Operation
    txid: str | None = None


class ControlApplied(msgspec.Struct, frozen=True):
    """A control event; behind a RESET the state is empty."""

    sequence: int
    control: Control


class Rejected(msgspec.Struct, frozen=True):
    """A record that is no valid event, and changed nothing."""

    sequence: int
    error: InvalidRecord
    data: bytes


Taken = Changed | ControlApplied | Rejected


class _Checkpoint(msgspec.Struct):
    format: str
    born: int
    position: int
    changes: int
    controls: int
    resets: int
    snapshots: int
    unmatched: int
    missed: int
    other_types: int
    rejected: dict[str, int]
    in_snapshot: bool
    state: dict[str, dict[str, Any]]
    witness: str = ""


FORMAT = "millpond-state-1"
_SETS = ChangeHeaders(Operation.INSERT)
_checkpoints = msgspec.json.Decoder(_Checkpoint)
_COUNTS = (
    *("changes", "controls", "resets", "snapshots", "unmatched", "missed", "other_types"),
    *("rejected", "in_snapshot"),
)


class Fold:
    """The state of a stream up to `position`, the sequence of the next record. `definition` None:
    any type, any value."""

    def __init__(
        self,
        definition: StreamState | None = None,
        on_invalid: OnInvalid = OnInvalid.DROP,
        on_reset: OnReset = OnReset.CLEAR,
    ) -> None:
        self.state = MaterializedState()
        self.stats = EventStats()
        self.position = 0
        self._definition = definition
        self._on_invalid = on_invalid
        self._on_reset = on_reset

    def take(self, sequence: int, body: bytes) -> Taken | None:
        """Take the record of that sequence; None: it came before, or is of another type.

        Raises InvalidEvent and StateReset, where the policies say so; the fold stays before it.
        """
        if sequence < self.position:
            self.stats.repeated += 1
            return None
        event = decode(body)
        if isinstance(event, ChangeEvent) and self._definition is not None:
            event = self._definition.check(event) or event
        taken = self._apply(sequence, event, body)
        self.stats.missed += sequence - self.position
        self.position = sequence + 1
        return taken

    def skip_to(self, position: int) -> None:
        """Continue at `position`: there is nothing of use before it."""
        self.position = max(self.position, position)

    def put(self, kind: str, key: str, value: Any) -> None:
        """Set a value that a node materialized from the same stream."""
        event = ChangeEvent(kind, key, _SETS, value)
        if self._definition is None or self._definition.check(event) is None:
            self.state.put(kind, key, value)

    def _apply(self, sequence: int, event: Any, body: bytes) -> Taken | None:
        match event:
            case ChangeEvent():
                before = self.state.apply(event)
                self.stats.changes += 1
                txid = event.headers.txid
                return Changed(
                    sequence,
                    event.type,
                    event.key,
                    UNSET if event.headers.operation is Operation.DELETE else event.value,
                    before,
                    event.headers.operation,
                    None if txid is UNSET else txid,
                )
            case ControlEvent():
                return self._mark(sequence, event)
            case _:
                return self._reject(sequence, event, body)

    def _mark(self, sequence: int, event: ControlEvent) -> ControlApplied:
        is_reset = event.headers.control is Control.RESET
        if is_reset and self._on_reset is OnReset.STOP:
            raise StateReset(sequence)
        control = self.stats.count_control(event)
        if is_reset:
            self.state.clear()
        return ControlApplied(sequence, control)

    def _reject(self, sequence: int, error: InvalidRecord, body: bytes) -> Rejected | None:
        if error.reason is InvalidReason.UNKNOWN_TYPE:
            self.stats.other_types += 1
            return None
        if self._on_invalid is OnInvalid.STOP:
            raise InvalidEvent(sequence, error, body)
        self.stats.reject(error)
        return Rejected(sequence, error, body)

    # Checkpoints.

    def checkpoint(self, born: int = 0, witness: str = "") -> bytes:
        """The state and its position as bytes. `born` is the `created_ms` of the stream, which
        tells it from a later one of its name; `witness` tells its last record from another one."""
        counts = {name: getattr(self.stats, name) for name in _COUNTS}
        state = {kind: dict(self.state.get_type(kind)) for kind in self.state.types}
        stored = _Checkpoint(FORMAT, born, self.position, state=state, witness=witness, **counts)
        return msgspec.json.encode(stored)

    def restore(self, data: bytes, born: int = 0) -> str:
        """Go on from a checkpoint; gives its witness. Values that do not fit the definition any
        more are rejected as if they came now. Raises BadCheckpoint, and what `take` raises."""
        try:
            stored = _checkpoints.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise BadCheckpoint(str(exc)) from exc
        if stored.format != FORMAT or stored.born != born:
            raise BadCheckpoint("this is no checkpoint of this stream")
        state = MaterializedState()
        stats = EventStats(**{name: getattr(stored, name) for name in _COUNTS})
        self.stats = stats
        for kind, values in stored.state.items():
            for key, value in values.items():
                event = ChangeEvent(kind, key, _SETS, value)
                error = self._definition.check(event) if self._definition is not None else None
                if error is None:
                    state.put(kind, key, value)
                else:
                    self._reject(stored.position - 1, error, b"")
        self.state, self.position = state, stored.position
        return stored.witness

"""Checkpointing: the points at which a state cell writes checkpoints, and the start from one.

A checkpoint counts only if the stream is the same one and still has the last record of the state
at its sequence. A stream with less than disk durability may have lost its end in a crash, and have
another one now.
"""

from __future__ import annotations

from collections.abc import Callable

from millpond.actors.messages import CellMessage
from millpond.actors.positions import Seek, SeekBy
from millpond.actors.state.checkpoint_format import (
    Checkpoint,
    RecordFingerprint,
    fingerprint_of_last,
)
from millpond.actors.state.checkpoint_store import CheckpointStore
from millpond.actors.state.messages import ENTRY_BYTES, CheckpointLoaded
from millpond.actors.state.table import StateTable
from millpond.actors.streams import messages as m

NEW_RECORDS_MIN = 1000
"""A state that is dropped is written if it has so many new records."""


class Checkpointing:
    """The checkpoints of one state. `checkpoints` None: none are written. Else one is written after
    `every` records at least, and four times as many as the state has values."""

    __slots__ = (
        "_checkpoints",
        "_every",
        "_incarnation",
        "_is_loaded",
        "_last",
        "_name",
        "_saved_position",
        "candidate",
        "is_waiting",
    )

    def __init__(self, name: bytes, checkpoints: CheckpointStore | None, every: int) -> None:
        self._name = name
        self._checkpoints = checkpoints
        self._every = every
        self.reset()

    def reset(self) -> None:
        """Forget everything of the stream: its state is empty."""
        self._is_loaded = self.is_waiting = False
        self.candidate: Checkpoint | None = None
        """The checkpoint that was loaded and is not compared with the stream yet."""
        self._incarnation = 0
        self._last: m.RecordColumns | None = None
        self._saved_position = 0

    def load(self, incarnation: int, port: object, post: Callable[[CellMessage], None]) -> None:
        """Load the checkpoint, once for each start. The reply is `CheckpointLoaded`."""
        self._incarnation = incarnation
        if self._is_loaded or self._checkpoints is None or not incarnation:
            return
        self._is_loaded = self.is_waiting = True
        loading = self._checkpoints.load(self._name)
        loading.when_done(lambda saved: post(CheckpointLoaded(0, port, saved)))

    def loaded(self, saved: object) -> None:
        """The checkpoint that was loaded; one of another incarnation counts as none."""
        if (
            self.is_waiting
            and isinstance(saved, Checkpoint)
            and saved.incarnation == self._incarnation
        ):
            self.candidate = saved
        self.is_waiting = False

    def comparison_read(self, number: int) -> m.Read | None:
        """The read of the record with which the checkpoint is compared; None: no checkpoint."""
        if self.candidate is None:
            return None
        start = Seek(SeekBy.SEQUENCE, self.candidate.fingerprint.sequence)
        return m.Read(number, start, 1, 1, incarnation=self._incarnation, from_start=True)

    def compare(self, reply: object) -> Checkpoint | None:
        """The checkpoint, if the stream has its record; else None."""
        saved, self.candidate = self.candidate, None
        match reply:
            case m.Records(spans=[span]) if saved is not None and _is_record(
                span, saved.fingerprint
            ):
                self._saved_position = saved.position
                self._last = None
                return saved
            case _:
                return None

    def applied(self, span: m.RecordColumns) -> None:
        """Note the last records that the state has."""
        self._last = span

    def save(self, table: StateTable, first: int, *, is_end: bool = False) -> None:
        """Write the state, if enough records are new."""
        span, checkpoints = self._last, self._checkpoints
        if span is None or checkpoints is None or not self._incarnation:
            return
        position = span.first + len(span.bodies)
        records_min = max(self._every, 4 * table.size // ENTRY_BYTES)
        if position - self._saved_position < (
            min(self._every, NEW_RECORDS_MIN) if is_end else records_min
        ):
            return
        saved = Checkpoint(
            self._name,
            self._incarnation,
            fingerprint_of_last(span),
            first,
            table.stats.copy(),
            table.state.copy(),
        )
        if checkpoints.save(saved):
            self._saved_position = position


def _is_record(span: m.RecordColumns, fingerprint: RecordFingerprint) -> bool:
    return len(span.bodies) == 1 and fingerprint_of_last(span) == fingerprint

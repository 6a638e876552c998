"""How a state's cell goes on from what was written down of it, and when it writes.

What was written counts only if the stream is the same one, and has the very record that the state
was made of last where it was: a stream that promises less than the disk may have lost its end in a
crash, and have another one now.
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

LEAST = 1000
"""Records for which it is worth to write a state that is given up."""


class Checkpointing:
    """Of one state. `checkpoints` None: nothing of this stream is written down. Else it is after
    `every` records at least, and four times as many as it has values."""

    __slots__ = (
        "_checkpoints",
        "_every",
        "_incarnation",
        "_is_asked",
        "_last",
        "_name",
        "_saved_at",
        "is_waiting",
        "saved",
    )

    def __init__(self, name: bytes, checkpoints: CheckpointStore | None, every: int) -> None:
        self._name = name
        self._checkpoints = checkpoints
        self._every = every
        self.begin()

    def begin(self) -> None:
        """The cell knows nothing."""
        self._is_asked = self.is_waiting = False
        self.saved: Checkpoint | None = None
        """What was found, and is to be compared with the stream."""
        self._incarnation = 0
        self._last: m.RecordColumns | None = None
        self._saved_at = 0

    def ask(self, incarnation: int, ear: object, post: Callable[[CellMessage], None]) -> None:
        """Once for each beginning: what is there? Heard as `CheckpointLoaded`."""
        self._incarnation = incarnation
        if self._is_asked or self._checkpoints is None or not incarnation:
            return
        self._is_asked = self.is_waiting = True
        found = self._checkpoints.load(self._name)
        found.when_done(lambda saved: post(CheckpointLoaded(0, ear, saved)))

    def hear(self, saved: object) -> None:
        """What there is; not of this stream, or not of what is left of it: as good as nothing."""
        if (
            self.is_waiting
            and isinstance(saved, Checkpoint)
            and saved.incarnation == self._incarnation
        ):
            self.saved = saved
        self.is_waiting = False

    def question(self, number: int) -> m.Read | None:
        """What the stream is asked for to know it."""
        if self.saved is None:
            return None
        start = Seek(SeekBy.SEQUENCE, self.saved.witness.sequence)
        return m.Read(number, start, 1, 1, incarnation=self._incarnation, from_start=True)

    def compare(self, reply: object) -> Checkpoint | None:
        """What was written, if the stream says that it has that record."""
        saved, self.saved = self.saved, None
        match reply:
            case m.Records(spans=[span]) if saved is not None and _is_it(span, saved.witness):
                self._saved_at = saved.position
                self._last = None
                return saved
            case _:
                return None

    def take(self, span: m.RecordColumns) -> None:
        """These records are in the state."""
        self._last = span

    def save(self, holding: StateTable, first: int, *, is_end: bool = False) -> None:
        """Write the state, if that is worth it by now."""
        span, checkpoints = self._last, self._checkpoints
        if span is None or checkpoints is None or not self._incarnation:
            return
        position = span.first + len(span.bodies)
        least = max(self._every, 4 * holding.weight // ENTRY_BYTES)
        if position - self._saved_at < (min(self._every, LEAST) if is_end else least):
            return
        saved = Checkpoint(
            self._name,
            self._incarnation,
            fingerprint_of_last(span),
            first,
            holding.tally.copy(),
            holding.state.copy(),
        )
        if checkpoints.save(saved):
            self._saved_at = position


def _is_it(span: m.RecordColumns, witness: RecordFingerprint) -> bool:
    return len(span.bodies) == 1 and fingerprint_of_last(span) == witness

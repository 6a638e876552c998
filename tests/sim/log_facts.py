"""Facts of a log: what its partition must hold and may hold, by what was written to it.

A log is always what some first part of its writes makes of it: all that are kept, and of those that
were on their way any number, in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from msgspec import structs

from millpond.actors.store.changes import (
    Change,
    Chunk,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MetadataSet,
    Position,
)
from millpond.actors.store.interface import Seek
from tests.sim.queue_facts import Level, View, Write

NOWHERE = Position(0, 0)
BYTES_MAX = 2**62
"""A read may give a chunk more than it was asked for."""


@dataclass(repr=False)
class LogState:
    """A log, all of it."""

    chunks: list[Chunk] = field(default_factory=list)
    trim_point: int = 0
    tail: int = 0
    last_id: Position = NOWHERE
    last_timestamp: int = 0
    metadata: dict[bytes, bytes] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"{brief(self.chunks)} from {self.trim_point} to {self.tail} {self.metadata}"

    def after(self, changes: list[Change]) -> LogState:
        """Another state: this one with changes."""
        state = replace(self, chunks=list(self.chunks), metadata=dict(self.metadata))
        for change in changes:
            state = state._apply(change)
        return state

    def _apply(self, change: Change) -> LogState:
        match change:
            case Chunk():
                self.chunks.append(change)
                self.tail = change.end
                self.last_id, self.last_timestamp = change.last_id, change.last_timestamp
            case LogTrimmed():
                self.trim_point = max(self.trim_point, change.point)
                self.chunks = [each for each in self.chunks if each.end > self.trim_point]
            case MetadataSet(name=name, value=value):
                if value is None:
                    self.metadata.pop(name, None)
                else:
                    self.metadata[name] = value
            case LogDeleted():
                return LogState()
            case _:
                raise AssertionError(f"a log never says {change}")
        return self

    def has_outline(self, outline: LogSnapshot) -> bool:
        facts = (outline.trim_point, outline.tail, outline.last_id, outline.last_timestamp)
        mine = (self.trim_point, self.tail, self.last_id, self.last_timestamp)
        return facts == mine and outline.metadata == self.metadata

    def pick(self, seek: Seek) -> list[Chunk]:
        """The records of a read by sequence."""
        picked: list[Chunk] = []
        size = 0
        for chunk in self.chunks:
            if chunk.end > seek.sequence:
                size += len(chunk.data)
                if picked and size > seek.bytes_max:
                    break
                picked.append(chunk)
        return picked


class LogFacts:
    """The state a restart found, and the writes upon it; `states` has what each made of it.

    `ghosts` are states that writes which failed would have made.
    """

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.states = [LogState()]
        self.ghosts: list[tuple[Write, LogState]] = []

    def record(self, write: Write) -> None:
        self.writes.append(write)
        self.states.append(self.state.after(write.changes))

    def undo(self, write: Write) -> None:
        """It failed, and never was."""
        at = self.writes.index(write)
        later = self.writes[at + 1 :]
        self.ghosts += ((write, state) for state in self.states[at + 1 :])
        del self.writes[at:], self.states[at + 1 :]
        for each in later:
            self.record(each)

    @property
    def state(self) -> LogState:
        """With everything that did not fail."""
        return self.states[-1]

    @property
    def is_settled(self) -> bool:
        """Nothing is on its way."""
        return all(write.level is not Level.OPEN for write in self.writes)

    def kept(self, view: View) -> int:
        """The number of writes that must be there: everything before one that must be is."""
        return max((at for at, each in enumerate(self.writes, 1) if view.must(each)), default=0)

    def found(self, outline: LogSnapshot, chunks: list[Chunk], view: View) -> Iterator[str]:
        """A restart found this log, with all chunks; if nothing is wrong, it is the truth now."""
        ghosts = [state for write, state in self.ghosts if view.may(write)]
        for state in self.states[self.kept(view) :] + ghosts:
            if state.has_outline(outline) and state.chunks == chunks:
                self.writes.clear()
                self.ghosts.clear()
                self.states = [state]
                return
        yield f"the log is {outline} {brief(chunks)}, none of {self.states[self.kept(view) :]}"

    def check_outline(self, outline: LogSnapshot, first: int) -> Iterator[str]:
        """`first` is what `kept` was when it was requested."""
        if not any(state.has_outline(outline) for state in self.states[first:]):
            yield f"the outline is {outline}, none of {self.states[first:]}"

    def check_read(self, chunks: list[Chunk], seek: Seek, first: int, view: View) -> Iterator[str]:
        """Kept writes are there from now on; those on their way may be shown to the stream,
        whose own answers wait for it. If it is not all, there is more to read."""
        for at, state in enumerate(self.states[first:], first):
            wanted = state.pick(structs.replace(seek, bytes_max=BYTES_MAX))
            if chunks == wanted[: len(chunks)] and bool(chunks) == bool(wanted):
                for write in self.writes[:at]:
                    if write.level is not Level.OPEN:
                        write.level = max(write.level, view.level)
                return
        yield f"{seek} shows {brief(chunks)}, and there is {self.states[first:]}"


def brief(chunks: list[Chunk]) -> list[tuple[int, int]]:
    """Sequences and counts."""
    return [(chunk.first, chunk.count) for chunk in chunks]

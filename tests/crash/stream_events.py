"""Events of streams in a run of the kill loop, as values, in one history with `events`.

An append is known by its label, like a PUT; the label and the place within its batch stand in each
record. The records that a reader finds are told in runs: records of one append that follow each
other.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from tests.crash.events import Label

Id = tuple[int, int]
Below = Id | int
"""The end of a trim, exclusive: an id, or a sequence."""


class Place(NamedTuple):
    """The position of a record: its id, and its sequence where the protocol tells it."""

    ms: int
    seq: int
    sequence: int | None = None

    @property
    def id(self) -> Id:
        return self.ms, self.seq

    def moved(self, count: int) -> Place:
        """The place so many records further on within the same append."""
        sequence = None if self.sequence is None else self.sequence + count
        return Place(self.ms, self.seq + count, sequence)


class Append(msgspec.Struct, frozen=True, tag=True):
    """A batch goes out. `is_owed`: its writer repeats it until it knows that it is kept."""

    stream: str
    label: Label
    count: int
    connection: int
    is_owed: bool = False


class Placed(msgspec.Struct, frozen=True, tag=True):
    """A batch is kept, its first record at `place`: the node has said so, or (not `is_told`) its
    writer found it after the connection had ended without an answer."""

    stream: str
    label: Label
    place: Place
    is_told: bool = True


class Dropped(msgspec.Struct, frozen=True, tag=True):
    """The client says that the append had no effect."""

    stream: str
    label: Label


class Trim(msgspec.Struct, frozen=True, tag=True):
    """A trim goes out, numbered over all of a run."""

    stream: str
    number: int
    below: Below


class Trimmed(msgspec.Struct, frozen=True, tag=True):
    """A trim was acknowledged."""

    stream: str
    number: int


class Look(msgspec.Struct, frozen=True, tag=True):
    """The start of a read of a whole stream."""

    stream: str
    reader: str


class Run(msgspec.Struct, frozen=True, tag=True):
    """A reader got `count` records of an append, from the so manieth of it on, the first of them at
    `place`. `is_whole`: they are what the label's writer sent."""

    stream: str
    reader: str
    label: Label
    index: int
    count: int
    place: Place
    is_whole: bool = True


class Looked(msgspec.Struct, frozen=True, tag=True):
    """The reader has come to the end: what it did not get is not there."""

    stream: str
    reader: str


StreamEvent = Append | Placed | Dropped | Trim | Trimmed | Look | Run | Looked

"""The notes of clients: results of the client library, and their own actions."""

from __future__ import annotations

import msgspec


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something that program `who` saw. `at` as in `events`."""

    at: float
    who: str


class OfChannel(Note, frozen=True, gc=False):
    """About a channel of a node."""

    node: str
    channel: str


class Putting(OfChannel, frozen=True, gc=False):
    """It begins to put this, under this key."""

    data: bytes
    key: int


class Receipt(OfChannel, frozen=True, gc=False):
    """The put returned."""

    data: bytes
    key: int
    id: int


class Got(OfChannel, frozen=True, gc=False):
    """A message was handed to the program."""

    id: int
    attempt: int
    data: bytes


class Acked(OfChannel, frozen=True, gc=False):
    """It said that it is done with it."""

    id: int


class Retrying(OfChannel, frozen=True, gc=False):
    """Its connection ended, or was not to be had, and is dialled again after `delay_s`; `failures`
    went before it since one stood for long."""

    delay_s: float
    failures: int


class Appending(Note, frozen=True, gc=False):
    """It appends this to a stream, once or until it is told that it is kept or may be."""

    stream: str
    bodies: tuple[bytes, ...]


class Appended(Note, frozen=True, gc=False):
    """The append returned; `place` is what it gave: by the protocol, the first sequence or the last
    id."""

    stream: str
    protocol: str
    bodies: tuple[bytes, ...]
    place: tuple[int, ...]


class Read(Note, frozen=True, gc=False):
    """A reader got these, in this order: sequence, id, body. `is_all`: everything, at the end."""

    stream: str
    records: tuple[tuple[int, tuple[int, int], bytes], ...]
    is_all: bool


class JobPut(Note, frozen=True, gc=False):
    """A job was put. `attempts` 0: as many as the task has."""

    queue: str
    payload: int
    id: int
    existing: bool
    unique: str


class JobBegins(Note, frozen=True, gc=False):
    """A handler is called."""

    queue: str
    payload: int
    id: int
    attempt: int


class JobEnds(Note, frozen=True, gc=False):
    """It came back, or was cancelled. `how`: what it did."""

    queue: str
    payload: int
    id: int
    attempt: int
    how: str


class JobSettled(Note, frozen=True, gc=False):
    """The worker's result of an attempt."""

    queue: str
    id: int
    attempt: int
    what: str


class Result(Note, frozen=True, gc=False):
    """A waiting client got a result."""

    queue: str
    payload: int
    id: int
    value: str


class Cancelled(Note, frozen=True, gc=False):
    """A job was cancelled by its producer, who was told so."""

    queue: str
    id: int


class LetterSent(Note, frozen=True, gc=False):
    """A letter is kept for a peer; `who` is the sender's node."""

    target: str
    data: bytes


class LetterRead(Note, frozen=True, gc=False):
    """A letter was opened by its addressee, `who`."""

    source: str
    data: bytes


def line(note: Note) -> str:
    """One line of the trace."""
    words = [f"{note.at:.6f}", note.who, f"({type(note).__name__.lower()})"]
    for name in note.__struct_fields__[2:]:
        value = getattr(note, name)
        if isinstance(value, bytes):
            value = value[:32].decode("latin-1").encode("unicode_escape").decode()
        words.append(f"{name}={value}")
    return " ".join(words)

"""Client events: results of the client library, and the clients' own actions."""

from __future__ import annotations

import msgspec


class ClientEvent(msgspec.Struct, frozen=True, gc=False):
    """An event that program `who` saw. `at` as in `events`."""

    at: float
    who: str


class OfChannel(ClientEvent, frozen=True, gc=False):
    """An event of a channel of a node."""

    node: str
    channel: str


class Putting(OfChannel, frozen=True, gc=False):
    """The start of a put, with its idempotency key."""

    data: bytes
    key: int


class Receipt(OfChannel, frozen=True, gc=False):
    """The end of a put: its receipt."""

    data: bytes
    key: int
    id: int


class Got(OfChannel, frozen=True, gc=False):
    """A message that was handed to the program."""

    id: int
    attempt: int
    data: bytes


class Acked(OfChannel, frozen=True, gc=False):
    """The program's ack of a message."""

    id: int


class Retrying(OfChannel, frozen=True, gc=False):
    """A connection that ended or failed, and is dialled again after `delay_s`; `failures` before it
    since one lasted for long."""

    delay_s: float
    failures: int


class Appending(ClientEvent, frozen=True, gc=False):
    """The start of an append, repeated until its outcome is that it is kept, or may be."""

    stream: str
    bodies: tuple[bytes, ...]


class Appended(ClientEvent, frozen=True, gc=False):
    """The end of an append; `position` is its result: by the protocol, the first sequence or the
    last id."""

    stream: str
    protocol: str
    bodies: tuple[bytes, ...]
    position: tuple[int, ...]


class Read(ClientEvent, frozen=True, gc=False):
    """Records that a reader got, in this order: sequence, id, body. `is_all`: the whole stream, at
    the end."""

    stream: str
    records: tuple[tuple[int, tuple[int, int], bytes], ...]
    is_all: bool


class Subscribed(ClientEvent, frozen=True, gc=False):
    """A subscription follows the stream, and begins at `acked`."""

    stream: str
    asked_at: float
    acked: int


class Claimed(ClientEvent, frozen=True, gc=False):
    """A worker has the lease of a wake, and was shown the stream up to `tail`."""

    stream: str
    generation: int
    asked_at: float
    acked: int
    tail: int


class Settling(ClientEvent, frozen=True, gc=False):
    """A worker asks to acknowledge a position; `ends`: and to end its lease."""

    stream: str
    generation: int
    position: int
    ends: bool


class Settled(ClientEvent, frozen=True, gc=False):
    """The node says that this is so."""

    stream: str
    generation: int
    position: int


class JobPut(ClientEvent, frozen=True, gc=False):
    """A job that was put."""

    queue: str
    payload: int
    id: int
    existing: bool
    unique: str


class JobBegins(ClientEvent, frozen=True, gc=False):
    """The start of a handler."""

    queue: str
    payload: int
    id: int
    attempt: int


class JobEnds(ClientEvent, frozen=True, gc=False):
    """The end of a handler: it returned or was cancelled. `how`: what it did."""

    queue: str
    payload: int
    id: int
    attempt: int
    how: str


class JobSettled(ClientEvent, frozen=True, gc=False):
    """The worker's result of an attempt."""

    queue: str
    id: int
    attempt: int
    what: str


class Result(ClientEvent, frozen=True, gc=False):
    """The result that a waiting client got."""

    queue: str
    payload: int
    id: int
    value: str


class Cancelled(ClientEvent, frozen=True, gc=False):
    """A job that its producer cancelled, with the node's reply."""

    queue: str
    id: int


class FlowPut(ClientEvent, frozen=True, gc=False):
    """A flow that is kept: `place` in the plan, and its number."""

    queue: str
    place: int
    flow: int


class FlowRequested(ClientEvent, frozen=True, gc=False):
    """A request to `cancel` or `retry` a flow, before it is sent."""

    queue: str
    flow: int
    what: str


class FlowCancelled(ClientEvent, frozen=True, gc=False):
    """The node's reply to a cancellation that was asked for at `asked_at`."""

    queue: str
    flow: int
    asked_at: float


class FlowEnded(ClientEvent, frozen=True, gc=False):
    """A flow that has ended, with the states of its steps and the results of the last ones."""

    queue: str
    flow: int
    state: str
    steps: tuple[str, ...]
    results: tuple[str, ...]


class StepBegins(ClientEvent, frozen=True, gc=False):
    """The start of the handler of a step. `results` of the steps before it; `payload` as text."""

    queue: str
    place: int
    step: int
    id: int
    attempt: int
    results: tuple[str, ...]
    payload: str


class StepEnds(ClientEvent, frozen=True, gc=False):
    """The end of the handler of a step. `how`: what it did."""

    queue: str
    place: int
    step: int
    id: int
    attempt: int
    how: str


class KeptResult(ClientEvent, frozen=True, gc=False):
    """The reply to a request, sent at `asked_at`, for the result of a job: its text, or `gone`."""

    queue: str
    id: int
    asked_at: float
    value: str


class ScheduleSet(ClientEvent, frozen=True, gc=False):
    """A schedule that is kept. `next_ms`: its next moment, in ms since 1970."""

    queue: str
    name: str
    next_ms: int


class ScheduleGone(ClientEvent, frozen=True, gc=False):
    """A schedule that is deleted. Before `asked_at` it had put `jobs`, the last one for `last_ms`;
    both 0: that is not known."""

    queue: str
    name: str
    asked_at: float
    last_ms: int
    jobs: int


class TickBegins(ClientEvent, frozen=True, gc=False):
    """The start of the handler of a schedule's job."""

    queue: str
    name: str
    moment_ms: int
    id: int
    attempt: int


class MailSent(ClientEvent, frozen=True, gc=False):
    """An envelope is kept for a peer; `who` is the sender's node."""

    target: str
    data: bytes


class MailRead(ClientEvent, frozen=True, gc=False):
    """An envelope was opened by its addressee, `who`."""

    source: str
    data: bytes


def line(event: ClientEvent) -> str:
    """One line of the trace."""
    words = [f"{event.at:.6f}", event.who, f"({type(event).__name__.lower()})"]
    for name in event.__struct_fields__[2:]:
        value = getattr(event, name)
        if isinstance(value, bytes):
            value = value[:32].decode("latin-1").encode("unicode_escape").decode()
        words.append(f"{name}={value}")
    return " ".join(words)

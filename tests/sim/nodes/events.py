"""The events at the nodes' ends of connections, and the faults of the world.

Times (`at`) are seconds since the world began. `conn` numbers connections over all nodes, from 1.
Nothing here knows what a node thinks: these are the bytes that came and went, and when.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Ending = Literal["stop", "crash", "power"]


class Event(msgspec.Struct, frozen=True, gc=False):
    """An event at one node."""

    at: float
    node: str


# The world.


class Boot(Event, frozen=True, gc=False):
    """The node runs; its clock is so many seconds ahead. `is_reboot`: so does its machine anew."""

    skew: float
    is_reboot: bool = False


class Halt(Event, frozen=True, gc=False):
    """It does not any more."""

    how: Ending


class Skewed(Event, frozen=True, gc=False):
    """The clock on its wall was set so much ahead."""

    skew: float


class Trouble(Event, frozen=True, gc=False):
    """Its disk fails in some way from here on."""

    what: str


class Sound(Event, frozen=True, gc=False):
    """Its disk works."""


# Connections.


class Wired(Event, frozen=True, gc=False):
    """Something on a connection; `who` is the name of the program at its other end."""

    conn: int
    who: str


class Open(Wired, frozen=True, gc=False):
    """The connection is open."""


class Closed(Wired, frozen=True, gc=False):
    """The connection ended, and the node knows it."""


class Hello(Wired, frozen=True, gc=False):
    """HELLO. `identity`: the public key that it says it has."""

    channel: bytes
    role: int
    identity: bytes
    resume_after: int | None


class Ready(Wired, frozen=True, gc=False):
    """READY."""

    window: int
    mode: int
    durability: int


class Bye(Wired, frozen=True, gc=False):
    """One of both says that it leaves, or breaks off."""

    by_node: bool


class Put(Wired, frozen=True, gc=False):
    """A message came. `due`: not before this, in seconds since 1970; 0: at once."""

    key: int
    ttl: int
    data: bytes
    due: float = 0.0


class Kept(Wired, frozen=True, gc=False):
    """The node promises to keep it."""

    key: int
    ttl: int
    id: int


class Refused(Wired, frozen=True, gc=False):
    """A NACK to a request of this type."""

    type: int
    code: int
    correlation: int


class Push(Wired, frozen=True, gc=False):
    """The node hands a message out. `attempt` 0: not told."""

    id: int
    attempt: int
    data: bytes


class Missed(Wired, frozen=True, gc=False):
    """The node hands a message out on a connection that it has just been told is gone: nobody gets
    it, and who decided on it could not know."""

    id: int
    attempt: int
    data: bytes


class Ack(Wired, frozen=True, gc=False):
    """The ack of a message."""

    id: int


class Nack(Wired, frozen=True, gc=False):
    """Given back; `code` 0x31 rejects it."""

    id: int
    code: int
    delay_ms: int


class Credit(Wired, frozen=True, gc=False):
    """CREDIT: so many more messages may be pushed."""

    count: int


class Touch(Wired, frozen=True, gc=False):
    """TOUCH: a request to extend a lease."""

    id: int
    ms: int


class Touched(Wired, frozen=True, gc=False):
    """The reply to a TOUCH: the lease lasts so long from here."""

    id: int
    ms: int


class ListRequested(Wired, frozen=True, gc=False):
    """LIST of ids from `start` to `end`."""

    limit: int
    start: int
    end: int


class Listed(Wired, frozen=True, gc=False):
    """The reply to a LIST."""

    ids: tuple[int, ...]


class Shown(Wired, frozen=True, gc=False):
    """The reply to a GET."""

    id: int
    data: bytes


class JobRequested(Wired, frozen=True, gc=False):
    """A request about jobs, but a put: that is a `Put`."""

    request: int
    operation: int
    body: dict[str, Any]


class JobReplied(Wired, frozen=True, gc=False):
    """The reply to a request about jobs, but a put: that is `Kept`."""

    request: int
    operation: int
    body: dict[str, Any]


def line(event: Event) -> str:
    """One line of the trace."""
    words = [f"{event.at:.6f}", event.node, type(event).__name__.lower()]
    for name in event.__struct_fields__[2:]:
        value = getattr(event, name)
        if isinstance(value, bytes):
            value = value[:32].decode("latin-1").encode("unicode_escape").decode()
        words.append(f"{name}={value}")
    return " ".join(words)

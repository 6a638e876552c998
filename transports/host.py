"""What a P2P connection is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from actors.messages import Batch, Durability, Join, Port, Rights
from transports.greeting import Admission, GreetingSettings

if TYPE_CHECKING:
    from transports.stream_desk import Names


class ConnectionSettings(msgspec.Struct, frozen=True):
    """Limits of a connection; docs/limits.md. Times in seconds.

    `requests_per_s_max` 0 is no limit; `rate_refusals_max` in a row end the connection.
    """

    greeting: GreetingSettings = GreetingSettings()
    handshake_s: float = 5.0
    bare_push_after_s: float = 0.25
    refusal_delay_s: float = 0.2
    stalled_s: float = 30.0
    unread_bytes_max: int = 2**20
    unsent_bytes_max: int = 32 * 2**20
    malformed_max: int = 10
    malformed_window_s: float = 60.0
    requests_per_s_max: int = 0
    rate_refusals_max: int = 1000


@dataclass(slots=True)
class WireCounters:
    """What came and went over P2P connections since the start."""

    connections: int = 0
    packets_in: int = 0
    bytes_in: int = 0
    malformed: int = 0
    dropped: int = 0
    refused: int = 0
    aborted: int = 0
    stalled: int = 0
    slowed: int = 0


class Visitor(Protocol):
    """A connection, as its node sees it."""

    deadline: float

    @property
    def peer(self) -> str:
        """Where the other end is, as `host:port`."""

    @property
    def address(self) -> str:
        """The other end's host, without its port."""

    def wake(self, now: float) -> None:
        """The deadline that was armed has passed."""

    def say_goodbye(self) -> None:
        """No new pushes; acks count until the other end closes (PA-36)."""

    def close(self) -> None:
        """The end of the node's patience."""


class Host(Protocol):
    """What a connection needs of its node."""

    settings: ConnectionSettings
    counters: WireCounters

    @property
    def directory(self) -> Names:
        """What there is of streams and topics."""

    @property
    def durability(self) -> Callable[[bytes], Durability]:
        """What an acknowledgement of a channel promises."""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]: ...
    @property
    def attach(self) -> Callable[[bytes, Port, Join, float], bool]: ...
    @property
    def detach(self) -> Callable[[bytes, Port], None]: ...
    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]: ...
    @property
    def arm(self) -> Callable[[Visitor, float], None]:
        """Have `wake` called at a time; an earlier one stands (`actors.timers`)."""

    @property
    def disarm(self) -> Callable[[Visitor], None]: ...

    def entered(self, visitor: Visitor) -> bool:
        """A connection stands. False: there are too many."""

    def left(self, visitor: Visitor) -> None: ...

    def greeted(self, visitor: Visitor) -> None:
        """The connection is past its handshake."""

    def authorize(self, token: bytes | None, channel: bytes, address: str) -> Rights | None:
        """See `greeting.Authorize`; `address` is the other end's."""

    @property
    def admin(self) -> Callable[[int, bytes, Admission], bytes]:
        """Carry out an administrative operation for who was admitted so. Raises RequestError."""

"""Settings of a client that few need, and those of a simulated world, which has its own sources."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Protocol

from anyio.abc import TaskGroup

if TYPE_CHECKING:
    from millpond.node.client.session import Session


class Dialer(Protocol):
    """Opens a wire for `session`, by default a socket; OSError when there is none to be had."""

    async def __call__(
        self, tasks: TaskGroup, host: str, port: int, session: Session, /
    ) -> None: ...


@dataclass(frozen=True, kw_only=True)
class ConnectSettings:
    """Settings of `connect` and its like that few need. Times in seconds.

    `keep_alive_s`: silence after which the node is asked whether it is there.
    `in_flight_max`: puts without a receipt; `put` waits then, `put_nowait` raises WouldBlock.
    `key_counter`: a file that keeps idempotency keys apart across restarts of this program.
    `ordered`: one message at a time, so that they come in their order.
    `resume_after`: an id up to which no message is pushed here; 0: all that a fanout channel keeps.
    `begins`: `Message.begin` tells the node when work on a message begins; in a queue, a message
    that is lost before has not used up an attempt.
    `bare`: go on without the handshake when the other end has none (after 3 s).
    `name`: how lists of consumers and workers call this connection, at most 128 bytes of UTF-8.
    `delivery_key`: prove that the delivery token of the mailbox `channel` at the relay `peer` is
    known (docs/reference/peer-formats.md).
    """

    keep_alive_s: float = 20.0
    in_flight_max: int = 1024
    key_counter: str | os.PathLike[str] | None = None
    ordered: bool = False
    resume_after: int | None = None
    begins: bool = False
    bare: bool = False
    name: str = ""
    delivery_key: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class SimulatedSettings(ConnectSettings):
    """The same with sources in place of the system's, or of the running loop's environment: the
    dialer, chance, the clock (monotonic, in seconds), and so many unpredictable bytes."""

    dialer: Dialer | None = None
    rng: Random | None = None
    now: Callable[[], float] | None = None
    entropy: Callable[[int], bytes] | None = None


DEFAULT_SETTINGS = ConnectSettings()


def simulated(settings: ConnectSettings) -> SimulatedSettings:
    """The settings with their sources; without any, those of the system."""
    if isinstance(settings, SimulatedSettings):
        return settings
    return SimulatedSettings(**vars(settings))

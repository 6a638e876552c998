"""The wake of a subscription: whether a worker is called, and who has the lease."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from millpond.actors.store.changes import MetadataSet

WAKE = b"wake"


class WakePhase(IntEnum):
    """Nothing is called; a worker is called; a worker has claimed the lease (pull-wake)."""

    IDLE = 0
    WOKEN = 1
    CLAIMED = 2


class Wake(msgspec.Struct, array_like=True):
    """The value of the key `wake`, as MessagePack. Times are in seconds since 1970; 0: none.

    `generation` counts the wakes, and never goes back. `retry_at` is that of the delivery or the
    event, after `failures` in a row; `announced_at` that of the last event. `error` is the reason
    of the last failure, while `is_failed`.
    """

    generation: int = 0
    phase: WakePhase = WakePhase.IDLE
    id: str = ""
    holder: str = ""
    lease_until: float = 0.0
    retry_at: float = 0.0
    failures: int = 0
    is_failed: bool = False
    announced_at: float = 0.0
    error: str = ""

    def change(self) -> MetadataSet:
        """The change that stores it."""
        return MetadataSet(WAKE, _encode(self))

    def end(self) -> None:
        """Nobody has the lease any more."""
        self.phase, self.id, self.holder = WakePhase.IDLE, "", ""
        self.lease_until = self.retry_at = 0.0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Wake).decode


def stored_wake(value: bytes | None) -> Wake:
    """The wake that a partition has."""
    return Wake() if value is None else _decode(value)

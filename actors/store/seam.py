"""The seam of the store: what a channel keeps, and how its changes get there.

A channel never reads the store while it works. It is built from a `Snapshot`, and from then on
every change it makes to itself goes to the store as a value; what it answers is released when the
store says that the changes are as durable as its mode promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from actors.messages import Durability, Mode


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a dead letter comes from (PS-14)."""

    id: int
    attempts: int
    reason: str


class Row(msgspec.Struct, frozen=True, gc=False):
    """A kept message (P2P-30, PA-33), and the change that keeps it.

    `expires_at` is absolute; `source` is the number of the connection that put it, which means
    something only while that connection lives (0: none).
    """

    id: int
    key: int
    ttl: int
    expires_at: float
    data: bytes
    source: int = 0
    origin: Origin | None = None


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """An idempotency key, remembered until `until` (PA-08).

    `digest` is the SHA-256 of the data once the message is gone; until then the message itself is
    there to be compared with.
    """

    id: int
    ttl: int
    until: float
    digest: bytes | None = None


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The message left; its key stays behind with the digest (None: the key had left before)."""

    id: int
    key: int
    digest: bytes | None


class KeyGone(msgspec.Struct, frozen=True, gc=False):
    """The key's window is over: the same key is new again."""

    key: int


class Tried(msgspec.Struct, frozen=True, gc=False):
    """So many deliveries of the message have failed."""

    id: int
    attempts: int


class ModeSet(msgspec.Struct, frozen=True, gc=False):
    """The channel's mode, as long as it holds a message (PS-05)."""

    mode: Mode


class KeySet(msgspec.Struct, frozen=True, gc=False):
    """A key enters with its message; it comes right after the message's row."""

    key: int
    row: KeyRow


Change = Row | Gone | KeyGone | Tried | ModeSet | KeySet


class Snapshot(msgspec.Struct):
    """Everything a channel is rebuilt from; `rows` ascend by id, `keys` by age."""

    rows: list[Row] = []
    keys: dict[int, KeyRow] = {}
    attempts: dict[int, int] = {}
    mode: Mode | None = None


class Usage(msgspec.Struct):
    """What all partitions of a node hold together."""

    messages: int = 0
    bytes: int = 0
    keys: int = 0


class Store(Protocol):
    """All partitions of a node, by name."""

    durability: Durability
    usage: Usage

    def load(self, name: bytes) -> Snapshot:
        """What is kept for `name`; an unknown name gives an empty snapshot."""

    def write(self, name: bytes, changes: Sequence[Change], done: Callable[[], None]) -> None:
        """Apply `changes` in order; call `done` once they are as durable as promised.

        `done` may be called before `write` returns. Calls of one name are done in their order.
        """

"""The seam of the store: what a channel keeps, and how its changes get there.

A channel never reads the store while it works. It is built from a `Snapshot`, and from then on
every change it makes to itself goes to the store as a value; what it answers is released when the
store says that the changes are as durable as its mode promises.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from actors.messages import Durability, Mode

WINDOW_S_MIN = 600
WINDOW_S_MAX = 86_400


def window_s(ttl: int) -> int:
    """How long the key of a message is remembered after its PUT (PA-08)."""
    if ttl < WINDOW_S_MIN:
        return WINDOW_S_MIN
    return ttl if ttl < WINDOW_S_MAX else WINDOW_S_MAX


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where a dead letter comes from (PS-14)."""

    id: int
    attempts: int
    reason: str


class Row(msgspec.Struct, frozen=True, gc=False):
    """A kept message (P2P-30, PA-33), and the change that keeps it.

    `expires_at` is absolute; `source` is the number of the connection that put it, which means
    something only while that lives (0: none).
    """

    id: int
    key: int
    ttl: int
    expires_at: float
    data: bytes
    source: int = 0
    origin: Origin | None = None

    @property
    def until(self) -> float:
        """When the window of its key ends. Derived: a field would cost every message 32 bytes."""
        return self.expires_at - self.ttl + window_s(self.ttl)


class KeyRow(msgspec.Struct, frozen=True, gc=False):
    """What is left of a message once it is gone: its key, and the SHA-256 of its data."""

    id: int
    ttl: int
    until: float
    digest: bytes


class Gone(msgspec.Struct, frozen=True, gc=False):
    """The message left; `left` stays behind for its key (None: the key had left before)."""

    id: int
    key: int
    left: KeyRow | None


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


Change = Row | Gone | KeyGone | Tried | ModeSet


class Snapshot(msgspec.Struct):
    """Everything a channel is rebuilt from; `rows` ascend by id, `keys` by age.

    While a message is kept, its row is what its key stands for.
    """

    rows: list[Row] = []
    keys: dict[int, Row | KeyRow] = {}
    attempts: dict[int, int] = {}
    mode: Mode | None = None


@dataclass(slots=True)
class Usage:
    """What all partitions of a node hold together; `keys` are those whose message is gone."""

    messages: int = 0
    bytes: int = 0
    keys: int = 0


class Weight(msgspec.Struct, frozen=True):
    """What a partition holds, counted without loading it."""

    messages: int = 0
    bytes: int = 0
    keys: int = 0
    mode: Mode | None = None


class Commit(Protocol):
    """Changes on their way to the disk."""

    def when_done(self, done: Callable[[], None]) -> None:
        """Call `done` once they are as durable as promised; commits of one name end in order."""


class Store(Protocol):
    """All partitions of a node, by name."""

    durability: Durability
    usage: Usage

    def load(self, name: bytes) -> Snapshot:
        """What is kept for `name`; an unknown name gives an empty snapshot."""

    def weigh(self, name: bytes) -> Weight:
        """How much is kept for `name`, at no more than the cost of a look-up."""

    def write(self, name: bytes, changes: Sequence[Change]) -> Commit | None:
        """Apply `changes` in order. None: they are as durable as promised already."""

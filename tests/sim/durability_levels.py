"""Durability levels: how safe a write is, and what a reader of a partition may expect of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import TypeVar

from millpond.actors.store.changes import Change
from millpond.actors.store.interface import Commit

T = TypeVar("T")


class Level(IntEnum):
    """The safety of a write: `OS` outlives the process, `DISK` the machine."""

    FAILED = -1
    OPEN = 0
    OS = 1
    DISK = 2


@dataclass(eq=False)
class Write:
    """One call of `Store.write`.

    `commit` is None when nobody waits for it. `is_sealed`: it failed, and a later write was kept.
    `segment` is where it is for sure; None: that is not known.
    """

    name: bytes
    changes: list[Change]
    boot: int
    level: Level = Level.OPEN
    commit: Commit | None = None
    is_sealed: bool = False
    segment: Path | None = None

    def __deepcopy__(self, memo: dict[int, object]) -> Write:
        """The write as it is now, without a commit that would go on."""
        return replace(self, commit=None)

    @property
    def is_failed(self) -> bool:
        """It failed, and any restart may find it all the same."""
        return self.level is Level.FAILED and not self.is_sealed


@dataclass(frozen=True)
class View:
    """From this level on a write must be there. `is_restart`: open ones may be undone."""

    level: Level
    is_restart: bool
    now: float

    def must(self, write: Write) -> bool:
        return write.level >= self.level

    def may(self, write: Write) -> bool:
        """It failed, and a restart right after found it all the same."""
        return self.is_restart and write.is_failed

    def counts(self, write: Write) -> bool:
        """Nothing undid it: it did not fail, and no restart may have lost it."""
        return self.must(write) or (not self.is_restart and write.level is not Level.FAILED)

    def allow(self, allowed: set[T], write: Write, value: T) -> None:
        """The value that `write` set may be found, and nothing older if it counts."""
        if self.counts(write):
            allowed.clear()
        if not self.must_not(write):
            allowed.add(value)

    def must_not(self, write: Write) -> bool:
        return write.level is Level.FAILED and not self.may(write)

"""Settings of the durable store, and the interface of the environment that runs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from millpond.actors.store.workers import StoreWorker, WorkerTask

Item = TypeVar("Item")
Result = TypeVar("Result")


class StoreSettings(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds; docs/reference/limits.md has them in one table.

    A partition's net changes are written again in the journal while they are no more than
    `rewrite_bytes_max`, and go to its file when they are more; messages younger than `settle_s`
    never go there. Above `slow_factor` times its budget, the journal's commits are reported only
    when compaction has made room, so clients wait; above `stall_factor` times it takes nothing new.
    Both are at least 1.

    The scrub reads `scrub_bytes_s` (0: there is none), the first time `scrub_delay_s` after the
    start, and again `scrub_every_s` after the end of a pass.
    """

    segment_bytes: int = 16 * 2**20
    journal_bytes_max: int = 64 * 2**20
    slow_factor: int = 2
    stall_factor: int = 4
    segments_max: int = 32
    rewrite_bytes_max: int = 64 * 2**10
    waste_bytes_max: int = 2**20
    settle_s: float = 5.0
    handles_max: int = 256
    retry_s: float = 1.0
    scrub_bytes_s: int = 0
    scrub_delay_s: float = 60.0
    scrub_every_s: float = 86_400.0


class StoreEnvironment(Protocol):
    """The event loop that a store lives in, and its worker threads."""

    def now(self) -> float:
        """Seconds since the Unix epoch."""

    def soon(self, callback: Callable[[], None], /) -> object:
        """Call back at the end of this pass of the loop."""

    def worker(self, name: str, work: WorkerTask[Item, Result]) -> StoreWorker[Item]:
        """Start a worker that reports to this loop."""

    def salt(self) -> int:
        """32 random bits that clients cannot know."""

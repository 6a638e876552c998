"""Looks at a test while virtual time passes, without timers of their own, which would round it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from math import inf
from typing import Protocol


class Look(Protocol):
    """A look, as of `StallWatch`. `is_last`: no timer is left. Returns when to look again."""

    def __call__(self, *, is_last: bool) -> float: ...


class Looks:
    """The looks of a loop, of the innermost world."""

    def __init__(self) -> None:
        self._look: Look | None = None
        self._at = inf

    @property
    def are_wanted(self) -> bool:
        """Somebody looks."""
        return self._look is not None

    def passed(self, now: float) -> None:
        """Time has passed."""
        if now >= self._at and self._look is not None:
            self._at = self._look(is_last=False)

    def rests(self) -> None:
        """Time does not pass: no timer is left."""
        if self._look is not None:
            self._look(is_last=True)

    @contextmanager
    def by(self, look: Look) -> Generator[None]:
        """Have `look` called for the block, first as soon as time passes."""
        before = self._look, self._at
        self._look, self._at = look, 0.0
        try:
            yield
        finally:
            self._look, self._at = before

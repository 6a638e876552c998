"""The progress of a long command on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

FIRST_S, EVERY_S = 1.0, 0.25
CLEAR = "\r\x1b[K"


class Progress:
    """Counts records and bytes; shows them on stderr if that is a terminal and stdout is none, and
    only once it has taken a while."""

    def __init__(self, done: str, *, beside_output: bool = False) -> None:
        self.records = 0
        self.size = 0
        self._done = done
        self._began_at = time.monotonic()
        self._show_at = self._began_at + FIRST_S
        self._is_wanted = sys.stderr.isatty() and (beside_output or not sys.stdout.isatty())
        self._is_shown = False

    def add(self, records: int, size: int) -> None:
        """Add to the count."""
        self.records += records
        self.size += size
        if self._is_wanted and time.monotonic() >= self._show_at:
            self._show()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_shown:
            print(CLEAR, end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        now = time.monotonic()
        self._show_at = now + EVERY_S
        self._is_shown = True
        rate = self.records / (now - self._began_at)
        told = f"{counted_records(self.records)} {self._done}, {self.size / 2**20:.1f} MiB"
        print(f"{CLEAR}{told}, {rate:,.0f}/s", end="", file=sys.stderr, flush=True)


def counted_records(count: int) -> str:
    """The number of records in words."""
    return "1 record" if count == 1 else f"{count:,} records"

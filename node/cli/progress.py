"""The progress of a long command on a terminal: how much is done, how fast, and what is left."""

from __future__ import annotations

import os
import stat
import sys
import time
from types import TracebackType
from typing import Self

from millpond.node.cli.style import DIM, fitted, has_styles, styled

FIRST_S, EVERY_S = 1.0, 0.25
CLEAR = "\r\x1b[K"
COLUMNS = 80


class Progress:
    """Counts things and their bytes; shows them on stderr if that is a terminal and stdout is none,
    and only once it has taken a while.

    `done`: what became of them, such as "appended"; `what`: one of them. The time that is left is
    known where the number of all of them is, as `total`, or where they come from a file, which is
    open as `source`. `beside_output`: the command writes nothing to stdout, so that may be a
    terminal as well.
    """

    def __init__(
        self,
        done: str,
        *,
        what: str = "record",
        total: int | None = None,
        source: int | None = None,
        beside_output: bool = False,
    ) -> None:
        self.records = 0
        self.size = 0
        self.total = total
        self._done = done
        self._what = what
        self._source = source
        self._source_begin, self._source_size = _source_range(source)
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
        text = fitted(self.text(now - self._began_at), _columns() - 1)
        shown = styled(text, DIM, is_wanted=has_styles(sys.stderr))
        print(f"{CLEAR}{shown}", end="", file=sys.stderr, flush=True)

    def text(self, seconds: float) -> str:
        """The line after so many seconds."""
        count = counted_things(self.records, self._what)
        of = "" if self.total is None else f" of {self.total:,}"
        parts = [f"{count}{of} {self._done}"]
        if self.size:
            parts.append(f"{self.size / 2**20:.1f} MiB")
        if seconds > 0:
            parts.append(f"{self.records / seconds:,.0f}/s")
        share = self._share()
        if share is not None:
            parts.append(f"{share:.0%}")
            if 0 < share < 1:
                parts.append(f"{_span(seconds / share - seconds)} left")
        return ", ".join(parts)

    def _share(self) -> float | None:
        """The part that is done, 0 to 1; None: it is not known."""
        if self.total is not None:
            return min(1.0, self.records / self.total) if self.total else 1.0
        if self._source is None or not self._source_size:
            return None
        read = os.lseek(self._source, 0, os.SEEK_CUR) - self._source_begin
        return min(1.0, read / self._source_size)


def counted_records(count: int) -> str:
    """The number of records in words."""
    return counted_things(count, "record")


def counted_things(count: int, what: str) -> str:
    """`1 record`, `2,000 records`."""
    return f"1 {what}" if count == 1 else f"{count:,} {what}s"


def _source_range(source: int | None) -> tuple[int, int]:
    """Where reading of a file begins, and how many bytes there are; (0, 0): it is no file."""
    if source is None:
        return 0, 0
    try:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            return 0, 0
        begin = os.lseek(source, 0, os.SEEK_CUR)
    except OSError:
        return 0, 0
    return begin, max(0, found.st_size - begin)


def _span(seconds: float) -> str:
    whole = max(1, round(seconds))
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole} s"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS

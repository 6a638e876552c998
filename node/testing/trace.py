"""The trace of a world, line by line: a seed gives the same bytes in any process.

3.25 alice > bob: dials
3.3 bob < alice: 74 bytes 9e107d9d
3.3 WARNING millpond.node.outbox.forwarder: gone
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from hashlib import md5

PACKAGE = "millpond"
ADDRESS = re.compile(r"\b0x[0-9a-f]{6,}\b")
DIGEST_CHARS = 8


class Trace(logging.Handler):
    """A trace in `lines`, without line ends. `hide` is a folder that differs between runs."""

    def __init__(self, elapsed: Callable[[], float], hide: str) -> None:
        super().__init__(logging.WARNING)  # what is below depends on how logging is set up
        self.lines: list[str] = []
        self._elapsed = elapsed
        self._hide = hide

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @contextmanager
    def captured(self) -> Generator[None]:
        """Add the log lines of the package, for the block."""
        log = logging.getLogger(PACKAGE)
        log.addHandler(self)
        try:
            yield
        finally:
            log.removeHandler(self)

    def note(self, text: str) -> None:
        """Add a line, behind the time in seconds since the world began."""
        self.lines.append(f"{round(self._elapsed(), 9):.15g} {text}")

    def note_bytes(self, place: str, data: bytes) -> None:
        """Add a line on received bytes."""
        digest = md5(data, usedforsecurity=False).hexdigest()[:DIGEST_CHARS]
        self.note(f"{place}: {len(data)} bytes {digest}")

    def emit(self, record: logging.LogRecord) -> None:
        """Add a log record; of an exception its name and message."""
        text = record.getMessage()
        if record.exc_info and (error := record.exc_info[1]) is not None:
            text = f"{text} ({type(error).__name__}: {error})"
        text = ADDRESS.sub("0x", text.replace(self._hide, "WORLD"))
        self.note(f"{record.levelname} {record.name}: {text}")

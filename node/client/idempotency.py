"""Idempotency keys: a counter of 32 bits, which may outlive the process (PA-08)."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

KEYS = 2**32
BLOCK = 1024


class KeyCounter:
    """Counts up from a random start, or from where the file at `path` says the last run ended.

    The file holds the first key that no run has reserved. Keys are reserved in blocks, so it is
    written once per block and a crash wastes at most one. One process at a time may use a file.
    """

    def __init__(self, rng: Random, path: Path | None = None) -> None:
        self._path = path
        stored = None if path is None else _stored(path)
        self._next = rng.randrange(KEYS) if stored is None else stored
        self._reserved = 0

    def next(self) -> int:
        """The next key; OSError when the file cannot be written."""
        if self._reserved == 0:
            self._reserve()
        self._reserved -= 1
        key = self._next
        self._next = (key + 1) % KEYS
        return key

    def _reserve(self) -> None:
        if self._path is not None:
            _replace(self._path, str((self._next + BLOCK) % KEYS))
        self._reserved = BLOCK


def _stored(path: Path) -> int | None:
    try:
        text = path.read_text("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return int(text) % KEYS if text.isdigit() else None


def _replace(path: Path, text: str) -> None:
    """Write beside, sync, rename: a crash leaves the old file or the new one, never half of one."""
    beside = path.with_name(path.name + ".new")
    with beside.open("w", encoding="ascii") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)

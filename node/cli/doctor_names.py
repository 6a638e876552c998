"""What `doctor` calls a partition, and how its repair is asked for."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from actors.streams.names import TOPICS, stream_of


def named(name: bytes) -> str:
    """A channel or a stream by name, or the catalogue of topics."""
    if name == TOPICS:
        return "the catalogue of topics"
    stream = stream_of(name)
    what, shown = ("channel", name) if stream is None else ("stream", stream)
    return f"{what} {os.fsdecode(shown)!r}"


def plain(name: bytes) -> str:
    """The name alone, as its users know it."""
    stream = stream_of(name)
    return "topics" if name == TOPICS else os.fsdecode(name if stream is None else stream)


def how_to_repair(folder: Path, name: bytes) -> str:
    """The command that does it."""
    stream = stream_of(name)
    if name == TOPICS:
        words = ["--repair-topics"]
    elif stream is None:
        words = ["--repair", os.fsdecode(name)]
    else:
        words = ["--repair-stream", os.fsdecode(stream)]
    return f"millpond doctor {' '.join(map(shlex.quote, ['--data', str(folder), *words]))}"

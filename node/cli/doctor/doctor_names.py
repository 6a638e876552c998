"""What `doctor` calls a partition, and how its repair is asked for."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from millpond.actors.streams.names import (
    BASINS,
    TOKENS,
    TOPICS,
    basin_stream_of,
    qualified_name_of,
    staged_part_of,
    stream_of,
)

CATALOGUES = {TOPICS: "topics", BASINS: "basins", TOKENS: "tokens"}


def named(name: bytes) -> str:
    """A channel or a stream by name, or a catalogue; streams of other basins as `basin:name`."""
    if name in CATALOGUES:
        return f"the catalogue of {CATALOGUES[name]}"
    stream, part = qualified_name_of(name), staged_part_of(name)
    if part is not None:
        whose = f"batch {part.batch} of {os.fsdecode(part.writer)!r} for the stream"
        return f"a part of {whose} {os.fsdecode(stream or b'')!r}"
    what, shown = ("channel", name) if stream is None else ("stream", stream)
    return f"{what} {os.fsdecode(shown)!r}"


def plain(name: bytes) -> str:
    """The name alone, as its users know it."""
    stream = qualified_name_of(name)
    if name in CATALOGUES:
        return CATALOGUES[name]
    return os.fsdecode(name if stream is None else stream)


def how_to_repair(folder: Path, name: bytes) -> str:
    """The command that does it."""
    stream = stream_of(name)
    if name in CATALOGUES:
        words = [f"--repair-{plain(name)}"]
    elif basin_stream_of(name) is not None:
        words = ["--repair-s2-stream", plain(name)]
    elif stream is None:
        words = ["--repair", os.fsdecode(name)]
    else:
        words = ["--repair-stream", os.fsdecode(stream)]
    return f"millpond doctor {' '.join(map(shlex.quote, ['--data', str(folder), *words]))}"

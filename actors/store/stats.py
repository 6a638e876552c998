"""What the store on disk tells of itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class StoreStats:
    """What happened since the start: `groups` were written, the disk was asked for `syncs`,
    partitions were brought to their files (`flushes`) or written again (`carries`). What is there
    now: bytes in the journal's `segments`, partition `files`, and `damaged` partitions."""

    groups: int = 0
    syncs: int = 0
    flushes: int = 0
    carries: int = 0
    segments: int = 0
    journal_bytes: int = 0
    files: int = 0
    damaged: int = 0

"""When a batch is handled: told once, to all parts of a stream."""

from __future__ import annotations


class Moment:
    """The node's time, in seconds and in whole milliseconds."""

    __slots__ = ("now", "now_ms")

    def __init__(self) -> None:
        self.now = 0.0
        self.now_ms = 0

"""What the states of a node take."""

from __future__ import annotations


class StateUsage:
    """What all states of a node take together, in bytes."""

    __slots__ = ("_weights", "bytes")

    def __init__(self) -> None:
        self._weights: dict[bytes, int] = {}
        self.bytes = 0

    def note(self, name: bytes, weight: int) -> None:
        """The state of this stream takes so much now."""
        self.bytes += weight - self._weights.pop(name, 0)
        if weight:
            self._weights[name] = weight

    @property
    def count(self) -> int:
        """How many states hold something."""
        return len(self._weights)

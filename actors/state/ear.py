"""How a state's cell hears what its stream answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.messages import CellMessage, Port, Reply
from millpond.actors.state.messages import StreamReplyReceived


class CellPort(Port):
    """The port by which a state cell asks its stream."""

    __slots__ = ("_cell", "_post", "number", "received_at")

    def __init__(self, cell: bytes, post: Callable[[bytes, CellMessage], None]) -> None:
        self.number = 0
        self.received_at = 0.0
        self._cell = cell
        self._post = post

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._post(self._cell, StreamReplyReceived(0, self, reply))

    def flush(self) -> None:
        """What was heard is in the mail."""

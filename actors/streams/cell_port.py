"""The port of a cell at a stream: the replies come back as messages to the cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.messages import CellMessage, Port, Reply, StreamRequest


class StreamReplyReceived(StreamRequest, frozen=True, gc=False):
    """A reply of the stream to a request of the cell's own `port`."""

    port: object
    reply: object


class CellPort(Port):
    """The port of a cell at its streams."""

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
        """Replies are in the mailbox already."""

"""The other end of a cell, for tests: a port that keeps what it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.messages import Failed, Msg, Reply, Touch


class RecordingPort:
    """`sent` was handed over, `written` was flushed as well. `on_send` runs within the send."""

    def __init__(self, number: int, received_at: float = 0.0) -> None:
        self.number = number
        self.received_at = received_at
        self.writable = True
        self.sent: list[Reply] = []
        self.written: list[Reply] = []
        self.flushes = 0
        self.on_send: Callable[[Sequence[Reply]], None] | None = None

    def send(self, replies: Sequence[Reply]) -> None:
        self.sent += replies
        if self.on_send is not None:
            self.on_send(replies)

    def flush(self) -> None:
        self.flushes += 1
        self.written += self.sent
        self.sent.clear()

    def take(self) -> list[Reply]:
        """Everything written since the last time."""
        assert not self.sent, "everything sent is flushed by the end of a batch"
        taken, self.written = self.written, []
        return taken

    def pushed(self) -> list[Msg]:
        """The pushes since the last time; anything else is a mistake of the test."""
        taken = [each for each in self.take() if not _is_lease_end(each)]
        assert all(isinstance(each, Msg) for each in taken), taken
        return [each for each in taken if isinstance(each, Msg)]


def _is_lease_end(reply: object) -> bool:
    """The node ended the lease of a job that is cancelled, or done elsewhere."""
    return isinstance(reply, Failed) and isinstance(reply.request, Touch) and not reply.request.ms

"""A Fetch that begins where a consumer group is: the stream is asked for that, then for records."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millpond.actors.messages import Batch, CellMessage, Failed, Port, Reply, StreamReply
from millpond.actors.streams.messages import GetGroupOffset, GroupOffset, Read

Submit = Callable[[bytes, Batch, float], bool]


class GroupFetch(Port):
    """The two requests of such a Fetch, one after the other.

    `read` makes the second one, of the group's offset. `finish` is called once, with that offset
    (None: the group has none, or it is not known) and the last reply.
    """

    __slots__ = (
        "_cell",
        "_finish",
        "_offset",
        "_read",
        "_reply",
        "_submit",
        "number",
        "received_at",
    )

    def __init__(
        self,
        number: int,
        cell: bytes,
        submit: Submit,
        read: Callable[[int], Read],
        finish: Callable[[int | None, StreamReply | Failed], None],
    ) -> None:
        self.number = number
        self.received_at = 0.0
        self._cell = cell
        self._submit = submit
        self._read = read
        self._finish = finish
        self._offset: int | None = None
        self._reply: StreamReply | Failed | None = None

    def start(self, group: bytes, now: float) -> None:
        """Send the first request."""
        self.received_at = now
        self._ask(GetGroupOffset(0, group))

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            assert isinstance(reply, StreamReply | Failed), reply
            self._reply = reply

    def flush(self) -> None:
        reply, self._reply = self._reply, None
        if reply is None:
            return
        if type(reply) is GroupOffset and reply.offset is not None:
            self._offset = reply.offset
            self._ask(self._read(reply.offset))
        else:
            self._finish(self._offset, reply)

    def _ask(self, request: CellMessage) -> None:
        self._submit(self._cell, Batch(self, [request]), self.received_at)

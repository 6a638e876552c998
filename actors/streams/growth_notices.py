"""Notices to subscriptions that streams grew, or are gone, delivered once that is stored.

A subscription that is awake, or has a message in its mailbox, has been told that there is something
to do. It gets no further message, but reads what it missed at its next turn: an append costs it one
entry of a dictionary in place of a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from millpond.actors.messages import CellMessage, Port, Reply
from millpond.actors.streams.messages import StreamGone, StreamGrew, TellSubscriptions


class GrowthNotices(Port):
    """The port of a node's subscriptions at its streams, which takes `TellSubscriptions`.

    Of the notices of one stream the last one stands for those before it. So at most one waits for
    a subscription and stream.
    """

    __slots__ = ("_awake", "_post", "_taken", "_unread", "number", "received_at")

    def __init__(self, post: Callable[[bytes, CellMessage], None]) -> None:
        self.number = 0
        self.received_at = 0.0
        self._post = post
        self._taken: dict[bytes, TellSubscriptions] = {}
        """By stream, until the end of the batch under way."""
        self._awake: set[bytes] = set()
        """The cells that are awake, or whose next turn comes by itself."""
        self._unread: dict[bytes, dict[bytes, StreamGrew | StreamGone]] = {}
        """By the cell of a subscription and by stream."""

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if isinstance(reply, TellSubscriptions):  # else its records are not stored
                self._taken[reply.notice.stream] = reply

    def flush(self) -> None:
        taken, self._taken = self._taken, {}
        awake, unread = self._awake, self._unread
        for stream, tell in taken.items():
            for cell in tell.cells:
                if cell not in awake:
                    awake.add(cell)  # until the turn in which it takes the message
                    self._post(cell, tell.notice)
                elif cell in unread:
                    unread[cell][stream] = tell.notice
                else:
                    unread[cell] = {stream: tell.notice}

    # For the subscriptions.

    def take(self, cell: bytes) -> Collection[StreamGrew | StreamGone]:
        """The notices that a subscription missed. They may be newer than one in its mailbox."""
        return self._unread.pop(cell, _NONE).values()

    def unread(self, cell: bytes) -> Collection[StreamGrew | StreamGone]:
        """The notices that a subscription takes at its next turn."""
        return self._unread.get(cell, _NONE).values()

    def set_awake(self, cell: bytes, *, is_awake: bool) -> None:
        """A subscription that is awake looks for what it missed before it is idle again."""
        if is_awake:
            self._awake.add(cell)
        else:
            self._awake.discard(cell)

    def forget(self, cell: bytes) -> None:
        """A subscription is gone, or is built anew and looks at all its streams."""
        self._awake.discard(cell)
        self._unread.pop(cell, None)


_NONE: dict[bytes, StreamGrew | StreamGone] = {}

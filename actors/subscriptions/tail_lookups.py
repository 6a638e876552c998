"""Lookups of the tails of streams: a few at a time, by descriptions, which extend no lifetime."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import Batch, Failed
from millpond.actors.runtime.cell import Effects
from millpond.actors.streams.cell_port import CellPort
from millpond.actors.streams.messages import Describe, StreamDescription, StreamFailed
from millpond.actors.streams.names import stream_cell

AT_ONCE = 64


class StreamTail(msgspec.Struct, frozen=True, gc=False):
    """The tail of a stream, and its incarnation; 0: there is no such stream."""

    tail: int
    incarnation: int


class TailLookups:
    """The lookups of one cell. `found` and `unreadable` are complete once there is nothing more to
    ask."""

    __slots__ = ("_asked", "_number", "_paths", "_port", "found", "is_waiting", "unreadable")

    def __init__(self, port: CellPort) -> None:
        self._port = port
        self._number = 0
        self._paths: deque[bytes] = deque()
        self._asked: dict[int, bytes] = {}
        self.is_waiting = False
        self.found: dict[bytes, StreamTail] = {}
        self.unreadable: set[bytes] = set()
        """Streams that cannot say it now."""

    def begin(self, paths: Iterable[bytes]) -> None:
        """Look up other streams; what was found before is forgotten."""
        self._paths = deque(paths)
        self._asked.clear()
        self.found, self.unreadable = {}, set()
        self.is_waiting = False

    def ask(self, effects: Effects) -> bool:
        """Ask the next streams. False: there are none."""
        while self._paths and len(self._asked) < AT_ONCE:
            path = self._paths.popleft()
            self._number -= 1  # numbers below 0: those of other requests are above
            self._asked[self._number] = path
            batch = Batch(self._port, [Describe(self._number)])
            effects.forwards += ((stream_cell(path), batch),)
        self.is_waiting = bool(self._asked)
        return self.is_waiting

    @property
    def has_more(self) -> bool:
        """True: there are streams to be asked."""
        return bool(self._paths)

    def take(self, reply: object) -> bool:
        """Take a reply that came to the port. False: it answers no lookup."""
        number = (
            reply.request.number
            if isinstance(reply, Failed) and isinstance(reply.request, Describe)
            else getattr(reply, "number", None)
        )
        path = self._asked.pop(number, None) if isinstance(number, int) else None
        if path is None:
            return False
        match reply:
            case StreamDescription():
                self.found[path] = StreamTail(reply.info.tail, reply.incarnation)
            case StreamFailed(code=Code.UNKNOWN_STREAM):
                self.found[path] = StreamTail(0, 0)
            case _:
                self.unreadable.add(path)
        self.is_waiting = bool(self._asked)
        return True

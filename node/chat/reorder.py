"""The reorder buffer: messages of one sender in the order in which they were written.

Messages may overtake one another. An early one is held in memory: it is not acknowledged before it
is shown, so it comes again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from millpond.node.chat.payloads import Text

GAP_WAIT_S = 30.0
"""The time that an early message waits for missing ones, which an offline relay may have."""
HELD_MAX = 48
LINES_MAX = 8


class OrderedMessage(msgspec.Struct, frozen=True):
    """A message to be shown now. `late`: it comes after a gap that was reported."""

    uuid: str
    text: Text
    late: bool = False


class Gap(msgspec.Struct, frozen=True):
    """A gap: the messages `first` to `last` of a line are missing."""

    line: str
    first: int
    last: int


class ReorderBuffer:
    """The reorder buffer of one sender.

    `expected` is the next number of every known line, the current line last. If the history is not
    `is_whole`, the first line starts at the number that it has.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._expected: dict[str, int] = {}
        self._held: dict[int, OrderedMessage] = {}
        self._since = inf

    @property
    def deadline(self) -> float:
        """The time at which held messages are released; infinity if none is held."""
        return self._since + GAP_WAIT_S

    @property
    def held(self) -> set[str]:
        """The uuids of held messages."""
        return {message.uuid for message in self._held.values()}

    def resume(self, line: str, n: int) -> None:
        """A message was shown before the restart."""
        self._begin(line)
        self._expected[line] = max(self._expected[line], n + 1)

    def add(self, uuid: str, text: Text, now: float) -> list[OrderedMessage | Gap]:
        """Add a message; returns what is to be shown now, in order."""
        shown: list[OrderedMessage | Gap] = []
        if text.line not in self._expected:
            shown += self._release_all()
            is_new = self._is_whole or bool(self._expected)
            self._begin(text.line, 1 if is_new else text.n)
        expected = self._expected[text.line]
        if text.line != self._line or text.n < expected or text.n in self._held:
            return [*shown, OrderedMessage(uuid, text, late=True)]
        self._held[text.n] = OrderedMessage(uuid, text)
        shown += self._release_ready()
        if len(self._held) >= HELD_MAX:
            shown += self._skip_gap()
        if not self._held:
            self._since = inf
        elif shown or self._since == inf:
            self._since = now
        return shown

    def release(self, now: float) -> list[OrderedMessage | Gap]:
        """Release messages that were held long enough, after their gap."""
        if now < self.deadline:
            return []
        shown = self._skip_gap()
        self._since = now if self._held else inf
        return shown

    @property
    def _line(self) -> str:
        return next(reversed(self._expected))

    def _begin(self, line: str, n: int = 1) -> None:
        if line not in self._expected:
            self._expected[line] = n
            if len(self._expected) > LINES_MAX:
                del self._expected[next(iter(self._expected))]

    def _release_ready(self) -> Iterator[OrderedMessage]:
        """The messages that follow without a gap."""
        line = self._line
        while (message := self._held.pop(self._expected[line], None)) is not None:
            self._expected[line] += 1
            yield message

    def _skip_gap(self) -> list[OrderedMessage | Gap]:
        """Skip the first gap."""
        first, line = min(self._held), self._line
        gap = Gap(line, self._expected[line], first - 1)
        self._expected[line] = first
        return [gap, *self._release_ready()]

    def _release_all(self) -> list[OrderedMessage | Gap]:
        """Skip all gaps: the sender has started a new line."""
        shown: list[OrderedMessage | Gap] = []
        while self._held:
            shown += self._skip_gap()
        self._since = inf
        return shown

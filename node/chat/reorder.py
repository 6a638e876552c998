"""Puts one sender's messages back into the order in which they were written.

Letters may overtake one another on their ways. What comes too early is held for a while, in memory:
it is not acknowledged before it is shown, so it comes again after a crash.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

import msgspec

from millpond.node.chat.payloads import Text

GAP_WAIT_S = 30.0
"""So long what is early waits for what is missing: a relay that was away may still have it."""
HELD_MAX = 48
LINES_MAX = 8


class OrderedMessage(msgspec.Struct, frozen=True):
    """A message to be shown now. `late`: a gap was told where it belongs."""

    uuid: str
    text: Text
    late: bool = False


class Gap(msgspec.Struct, frozen=True):
    """The messages `first` to `last` of a line did not come."""

    line: str
    first: int
    last: int


class ReorderBuffer:
    """Of one sender. `expected` is what every known line goes on with, the present line last.

    Not `is_whole`: there may be an earlier history that is not recalled, so the line that comes
    first goes on where it is.
    """

    def __init__(self, *, is_whole: bool = True) -> None:
        self._is_whole = is_whole
        self._expected: dict[str, int] = {}
        self._held: dict[int, OrderedMessage] = {}
        self._since = inf

    @property
    def deadline(self) -> float:
        """When the wait for what is missing is over; infinity if nothing waits."""
        return self._since + GAP_WAIT_S

    @property
    def held(self) -> set[str]:
        """The uuids of what is not shown yet."""
        return {heard.uuid for heard in self._held.values()}

    def recall(self, line: str, n: int) -> None:
        """This was shown in an earlier life."""
        self._begin(line)
        self._expected[line] = max(self._expected[line], n + 1)

    def take(self, uuid: str, text: Text, now: float) -> list[OrderedMessage | Gap]:
        """A message came. Gives what is to be shown now, in order."""
        shown: list[OrderedMessage | Gap] = []
        if text.line not in self._expected:
            shown += self._give_up()
            is_new = self._is_whole or bool(self._expected)
            self._begin(text.line, 1 if is_new else text.n)
        expected = self._expected[text.line]
        if text.line != self._line or text.n < expected or text.n in self._held:
            return [*shown, OrderedMessage(uuid, text, late=True)]
        self._held[text.n] = OrderedMessage(uuid, text)
        shown += self._run()
        if len(self._held) >= HELD_MAX:
            shown += self._skip()
        if not self._held:
            self._since = inf
        elif shown or self._since == inf:
            self._since = now
        return shown

    def wake(self, now: float) -> list[OrderedMessage | Gap]:
        """Time has passed: what waited for long enough is shown, behind its gap."""
        if now < self.deadline:
            return []
        shown = self._skip()
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

    def _run(self) -> Iterator[OrderedMessage]:
        """What can be shown without a gap."""
        line = self._line
        while (heard := self._held.pop(self._expected[line], None)) is not None:
            self._expected[line] += 1
            yield heard

    def _skip(self) -> list[OrderedMessage | Gap]:
        """Past the first gap."""
        first, line = min(self._held), self._line
        gap = Gap(line, self._expected[line], first - 1)
        self._expected[line] = first
        return [gap, *self._run()]

    def _give_up(self) -> list[OrderedMessage | Gap]:
        """Past all gaps: the sender began anew."""
        shown: list[OrderedMessage | Gap] = []
        while self._held:
            shown += self._skip()
        self._since = inf
        return shown

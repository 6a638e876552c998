"""Lines: the messages of one sender, counted, so that none is accepted twice.

A line is the sequence of messages that a sender has counted in one run for one recipient. The
recipient keeps, for each sender, a window of counters for each line in which it has accepted
something that could come again; at most `LINES_MAX`. Pure; a line is below 384 bytes encoded.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

import msgspec

from millpond.node.peers.prekeys import CLOCKS_APART_S
from millpond.node.peers.sealed_message import SEEN_LINES_MAX, Content, Seen

LINES_MAX = 64
"""The most lines of one sender that are remembered."""

WINDOW = 1024
"""Counters below the highest one that are told apart; a sender has fewer messages on their way."""
_ALL = (1 << WINDOW) - 1


class ReplayStatus(Enum):
    """NEW: not accepted before. SEEN: accepted before. OLD: too old to tell."""

    NEW = "new"
    SEEN = "seen"
    OLD = "old"


class Line(msgspec.Struct, array_like=True):
    """One line. Bit 0 of `window` and `refused` is the counter `highest`, bit 1 the one before;
    they have no more bytes than their bits need.

    `until`: the latest deadline of its messages here (ms since 1970); an hour later none of them is
    accepted anyway.
    """

    line: bytes
    began: int
    highest: int
    hash: bytes
    window: bytes
    refused: bytes
    until: int = 0


class Lines(msgspec.Struct, array_like=True):
    """The lines of a sender, the newest last. Those that began at `floor` (ms since 1970) or before
    are forgotten, and not accepted any more.

    The newest four stay. An older one is forgotten when none of its messages could come again, or
    when there are too many.
    """

    floor: int = 0
    lines: list[Line] = []

    def replay_status(self, content: Content) -> ReplayStatus:
        """Whether a message was accepted before."""
        line = self._find(content.line)
        if line is None:
            return ReplayStatus.OLD if content.began <= self.floor else ReplayStatus.NEW
        if line.began != content.began or line.highest - content.counter >= WINDOW:
            return ReplayStatus.OLD
        return ReplayStatus.SEEN if _has(line, content.counter) else ReplayStatus.NEW

    def mark(
        self, content: Content, message_hash: bytes, now_ms: int, *, is_refused: bool = False
    ) -> None:
        """Record a new message as accepted, or as refused for good, at `now_ms` (since 1970)."""
        line = self._find(content.line) or self._begin(content, now_ms)
        line.until = max(line.until, content.deadline)
        counter = content.counter
        window, refused = _bits(line.window), _bits(line.refused)
        if counter > line.highest:
            shift = min(counter - line.highest, WINDOW)
            window, refused = (window << shift) & _ALL, (refused << shift) & _ALL
            line.highest, line.hash = counter, message_hash
        if content.settled <= line.highest:
            window |= _ALL & -1 << min(line.highest - content.settled + 1, WINDOW)
        bit = 1 << (line.highest - counter)
        line.window = _bytes(window | bit)
        line.refused = _bytes(refused | bit if is_refused else refused)

    def take_back(self, name: bytes, counter: int) -> None:
        """Count a message that was accepted as missing again."""
        line = self._find(name)
        if line is not None and 0 <= line.highest - counter < WINDOW:
            line.window = _bytes(_bits(line.window) & ~(1 << (line.highest - counter)))

    @property
    def names(self) -> list[bytes]:
        """The names of the lines, the newest last."""
        return [each.line for each in self.lines]

    def seen(
        self, names: Collection[bytes], unfinished: Collection[tuple[bytes, int]], limit: int
    ) -> tuple[Seen, ...]:
        """The account of the lines with these names for the sender, the newest last.

        `unfinished` messages are missing yet. A list has at most `limit` counters.
        """
        return tuple(_account(line, unfinished, limit) for line in self.lines if line.line in names)

    def _find(self, name: bytes) -> Line | None:
        return next((each for each in self.lines if each.line == name), None)

    def _begin(self, content: Content, now_ms: int) -> Line:
        line = Line(content.line, content.began, 0, b"", b"", b"")
        self.lines.append(line)
        self.lines.sort(key=lambda each: each.began)
        over_before = now_ms - int(CLOCKS_APART_S * 1000)
        while len(self.lines) > LINES_MAX or (
            len(self.lines) > SEEN_LINES_MAX
            and self.lines[0] is not line
            and self.lines[0].until < over_before
        ):
            self.floor = max(self.floor, self.lines.pop(0).began)
        if len(self.lines) == LINES_MAX:  # one that began earlier would be the first to go
            self.floor = max(self.floor, self.lines[0].began - 1)
        return line


def _bits(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "big")


def _has(line: Line, counter: int) -> bool:
    return counter <= line.highest and bool(_bits(line.window) >> (line.highest - counter) & 1)


def _account(line: Line, unfinished: Collection[tuple[bytes, int]], limit: int) -> Seen:
    window, refusals = _bits(line.window), _bits(line.refused)
    missing: list[int] = []
    refused: list[int] = []
    upto = line.highest
    if window != _ALL or refusals or unfinished:
        for counter in range(max(1, line.highest - WINDOW + 1), line.highest + 1):
            place = line.highest - counter
            if not window >> place & 1 or (line.line, counter) in unfinished:
                missing.append(counter)
            elif refusals >> place & 1:
                refused.append(counter)
            if max(len(missing), len(refused)) > limit:
                upto = counter - 1
                break
    return Seen(
        line.line,
        line.began,
        line.highest,
        line.hash,
        upto,
        tuple(each for each in missing if each <= upto),
        tuple(each for each in refused if each <= upto),
    )

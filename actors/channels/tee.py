"""A tee: what a channel keeps is appended to a stream as well, in the channel's order, once.

A message is poured when it is kept, so the stream has it in hand before anybody else. What leaves
the channel before the stream has answered is gone for everybody, but the store hears of it only
then: so a node that is killed at any moment finds in the channel what the stream lacks. A channel
that is built anew asks the stream how far it got, and pours the rest. The stream may refuse: then
the channel tries again later, and goes on as if there were no tee.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from itertools import islice
from math import inf

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.settings import ChannelSettings
from millpond.actors.errors import Code
from millpond.actors.messages import TeeAppend, TeeAppended
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Change, KeyExpired, MessageRemoved, StoredMessage
from millpond.actors.streams.names import stream_cell

log = logging.getLogger(__name__)

SLICE_MESSAGES = 512
SLICE_BYTES = 256 * 2**10
WINDOW_BYTES = 2**20
"""What is poured and not answered, about."""
REST_S_MIN, REST_S_MAX = 1.0, 60.0
PATIENCE_S = 30.0
"""What has left waits so long for a stream that may be back soon."""
TOLD_S = 60.0
_PASSING = frozenset(
    {Code.OUTCOME_UNKNOWN, Code.QUARANTINED, Code.SEQUENCE_MISMATCH, Code.STORAGE_FAILED}
)
_RUN_BITS = 63


class Tee:
    """One channel's."""

    __slots__ = (
        "_channel",
        "_floor",
        "_flying",
        "_flying_bytes",
        "_gone",
        "_is_asking",
        "_is_sure",
        "_keys",
        "_lets_go",
        "_refused_at",
        "_rest_s",
        "_rest_until",
        "_rows",
        "_run",
        "_shared",
        "_stream",
        "_waiting",
        "owed_bytes",
    )

    def __init__(
        self,
        channel: bytes,
        stream: bytes,
        run: int,
        rows: Iterable[StoredMessage],
        shared: ChannelContext,
    ) -> None:
        self._channel = channel
        self._stream = stream
        self._run = run
        self._shared = shared
        self._rows: dict[int, StoredMessage] = {}
        """What the stream has not said to have, by id."""
        self._waiting: deque[StoredMessage] = deque()
        """Those of them that are to be poured, in order, and some that nobody waits for."""
        self._flying: deque[list[StoredMessage]] = deque()
        self._flying_bytes = 0
        self._floor = 0
        self._gone: dict[int, list[Change]] = {}
        """What the store is to hear once the stream has a message, by its id."""
        self._keys: dict[int, int] = {}
        self._is_asking = False
        self._rest_s = self._rest_until = 0.0
        self._refused_at: float | None = None
        self._lets_go = False
        self.owed_bytes = 0
        self.add(rows)
        self._is_sure = not self._rows
        """False: the stream has to be asked how far it got."""

    @staticmethod
    def of(
        channel: bytes,
        settings: ChannelSettings,
        rows: Iterable[StoredMessage],
        shared: ChannelContext,
    ) -> Tee | None:
        """The tee of a channel, if it has one; dead letters and the like have none."""
        if not settings.tee or b"!" in channel:
            return None
        tees = shared.tees
        if not settings.is_kept and not tees.run:
            tees.run = shared.rng.getrandbits(_RUN_BITS) | 1
        run = 0 if settings.is_kept else tees.run
        return Tee(channel, stream_cell(settings.tee), run, rows, shared)

    @property
    def owed_messages(self) -> int:
        """Messages that have left, and are kept for the stream's sake."""
        return len(self._gone)

    @property
    def gone(self) -> Iterable[int]:
        """Those messages, in the order in which they left."""
        return self._gone

    def latest_gone(self, count: int) -> tuple[int, ...]:
        """The last of them."""
        return tuple(islice(reversed(self._gone), count))

    @property
    def is_settled(self) -> bool:
        """Nothing would be lost by building it anew."""
        is_under_way = self._is_asking or bool(self._flying)
        return not self._rows or not (is_under_way or self._gone)

    @property
    def deadline(self) -> float:
        """When to go on, if no answer comes before."""
        has_work = not self._is_sure or bool(self._waiting)
        return self._rest_until if has_work and not (self._is_asking or self._flying) else inf

    def add(self, rows: Iterable[StoredMessage]) -> None:
        """Messages are kept. Those that were dead letters have been here before."""
        for row in rows:
            if row.origin is None:
                self._rows[row.id] = row
                self._waiting.append(row)

    def hold(self, changes: list[Change]) -> list[Change]:
        """What of this the store may hear now."""
        now_kept: list[Change] = []
        for change in changes:
            if type(change) is MessageRemoved and change.id in self._rows:
                if self._lets_go and not self._flying:
                    self._miss(change.id)
                    now_kept.append(change)
                    continue
                self._gone[change.id] = [change]
                self._keys[change.key] = change.id
                self.owed_bytes += change.size
            elif type(change) is KeyExpired and change.key in self._keys:
                # The store has to hear first that its message has left.
                self._gone[self._keys[change.key]].append(change)
            else:
                now_kept.append(change)
        return now_kept

    def pump(self, now: float, effects: Effects) -> None:
        """Pour what waits, as far as there is room on the way."""
        if now < self._rest_until:
            return
        if not self._is_sure:
            if not self._is_asking:
                self._is_asking = True
                self._post(TeeAppend(self._channel, self._run), effects)
            return
        is_trying = self._rest_s > 0
        while self._waiting and self._flying_bytes < WINDOW_BYTES:
            if is_trying and self._flying:
                return
            rows = self._take_slice(1 if is_trying else SLICE_MESSAGES)
            if not rows:
                return
            behind = self._flying[-1][-1].id if self._flying else self._floor
            self._flying.append(rows)
            self._post(self._pour(rows, behind), effects)

    def _pour(self, rows: list[StoredMessage], behind: int) -> TeeAppend:
        ids = tuple(row.id for row in rows)
        bodies = tuple(row.data for row in rows)
        until = max(row.expires_at for row in rows)
        return TeeAppend(self._channel, self._run, behind, ids, bodies, until)

    def _post(self, pour: TeeAppend, effects: Effects) -> None:
        effects.posts += ((self._stream, pour),)

    def _take_slice(self, most: int) -> list[StoredMessage]:
        rows: list[StoredMessage] = []
        size = 0
        while self._waiting and len(rows) < most and size < SLICE_BYTES:
            row = self._waiting.popleft()
            if row.id in self._rows:
                rows.append(row)
                size += len(row.data)
        self._flying_bytes += size
        return rows

    # What the stream says.

    def hear(self, poured: TeeAppended, buffer: Buffer, now: float, effects: Effects) -> None:
        """An answer. It may be one to a question from before the channel was built anew."""
        if poured.code is not None:
            self._refused(poured.number, poured.code, now, effects)
            return
        if not poured.number:
            self._is_asking = False
            if not self._is_sure:
                self._is_sure = True
                if poured.floor < self._floor:
                    self._begin_again(poured.floor, buffer)
                self._floor = poured.floor
        elif self._flying and self._flying[0][-1].id <= poured.floor:
            self._rest_s = self._rest_until = 0.0
            self._refused_at = None
            self._lets_go = False
        self._confirm(poured.floor)
        self._release(effects)

    def _confirm(self, floor: int) -> None:
        while self._flying and self._flying[0][-1].id <= floor:
            for row in self._flying.popleft():
                self._flying_bytes -= len(row.data)
                del self._rows[row.id]
                self._shared.counters.teed += 1
        while self._waiting and self._waiting[0].id <= floor:
            self._rows.pop(self._waiting.popleft().id, None)
        self._floor = max(self._floor, floor)

    def _begin_again(self, floor: int, buffer: Buffer) -> None:
        """The stream is not the one that it was: it gets all that is still here."""
        held = buffer.rows.values()
        rows = {row.id: row for row in held if row.id > floor and row.origin is None}
        self._rows = dict(sorted({**rows, **self._rows}.items()))
        self._waiting = deque(self._rows.values())

    def _refused(self, number: int, code: Code, now: float, effects: Effects) -> None:
        is_asked = any(rows[-1].id == number for rows in self._flying)
        if not (is_asked if number else self._is_asking):
            return
        self._flying.clear()
        self._flying_bytes = 0
        self._waiting = deque(self._rows.values())
        self._is_sure = self._is_asking = False
        self._rest_s = min(max(REST_S_MIN, 2 * self._rest_s), REST_S_MAX)
        self._rest_until = now + self._rest_s
        if self._refused_at is None:
            self._refused_at = now
        self._shared.counters.tee_refusals += 1
        self._lets_go = code not in _PASSING or now - self._refused_at >= PATIENCE_S
        if self._lets_go:
            for message_id in self._gone:
                self._miss(message_id)
            self._release(effects)
        told_at = self._shared.tees.told_at
        if now >= told_at.get(self._stream, -inf) + TOLD_S:
            told_at[self._stream] = now
            log.warning(
                "tee refused for now: channel=%r cell=%r code=%s waiting=%d",
                self._channel,
                self._stream,
                code.name,
                len(self._rows),
            )

    def _miss(self, message_id: int) -> None:
        """The message leaves, and the stream will not have it."""
        del self._rows[message_id]
        self._shared.counters.tee_missed += 1
        if len(self._waiting) > 2 * len(self._rows) + SLICE_MESSAGES:
            self._waiting = deque(self._rows.values())

    def _release(self, effects: Effects) -> None:
        """The store hears of what has left and is not owed to the stream any more."""
        for message_id in sorted(each for each in self._gone if each not in self._rows):
            gone, *later = self._gone.pop(message_id)
            assert isinstance(gone, MessageRemoved), (
                "what comes first says that the message has left"
            )
            effects.changes += (gone, *later)
            self.owed_bytes -= gone.size
            if self._keys.get(gone.key) == message_id:
                del self._keys[gone.key]

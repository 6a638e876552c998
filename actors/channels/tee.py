"""A tee: new messages of a channel are appended to a stream as well, in the channel's order, once.

A message is appended when it is put, so the stream has it before any consumer. A message that
leaves the channel before the stream has confirmed it is gone for everybody, but its removal is
withheld from the store until then: so a node that is killed at any moment finds in the channel what
the stream lacks. A channel that is built anew asks the stream how far it got, and appends the rest.
When the stream refuses, the channel tries again later, and goes on as if there were no tee.
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
from millpond.actors.messages import CellMessage, MovesDone, TeeAppend, TeeAppended
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Change, KeyExpired, MessageRemoved, StoredMessage
from millpond.actors.streams.names import stream_cell

log = logging.getLogger(__name__)

SLICE_MESSAGES = 512
SLICE_BYTES = 256 * 2**10
WINDOW_BYTES = 2**20
"""The size in bytes of messages that are sent and not confirmed, about."""
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
GIVE_UP_AFTER_S = 30.0
"""The time in seconds that withheld removals wait for a stream that may be back soon."""
LOG_EVERY_S = 60.0
_TRANSIENT = frozenset(
    {Code.OUTCOME_UNKNOWN, Code.QUARANTINED, Code.SEQUENCE_MISMATCH, Code.STORAGE_FAILED}
)
_NODE_RUN_BITS = 63

Post = tuple[bytes, MovesDone]
"""A message to another cell, with its name."""


class Tee:
    """The tee of one channel.

    `node_run` tells the ids that a memory channel had in one run of the node from those of another;
    0 for a channel whose ids survive a restart.
    """

    __slots__ = (
        "_channel",
        "_confirmed_id",
        "_context",
        "_gives_up",
        "_in_flight",
        "_in_flight_bytes",
        "_is_querying",
        "_is_synced",
        "_keys",
        "_node_run",
        "_posts",
        "_refused_at",
        "_retry_at",
        "_retry_delay_s",
        "_rows",
        "_stream",
        "_unsent",
        "_withheld",
        "withheld_bytes",
    )

    def __init__(
        self,
        channel: bytes,
        stream: bytes,
        node_run: int,
        rows: Iterable[StoredMessage],
        context: ChannelContext,
    ) -> None:
        self._channel = channel
        self._stream = stream
        self._node_run = node_run
        self._context = context
        self._rows: dict[int, StoredMessage] = {}
        """Messages that the stream has not confirmed, by id."""
        self._unsent: deque[StoredMessage] = deque()
        """Those of them that are not sent yet, in order, and some that are dropped already."""
        self._in_flight: deque[list[StoredMessage]] = deque()
        self._in_flight_bytes = 0
        self._confirmed_id = 0
        self._withheld: dict[int, list[Change]] = {}
        """Changes for the store once the stream has a message, by its id."""
        self._keys: dict[int, int] = {}
        self._posts: dict[int, Post] = {}
        """Messages to other cells that leave behind a withheld removal, by its id."""
        self._is_querying = False
        self._retry_delay_s = self._retry_at = 0.0
        self._refused_at: float | None = None
        self._gives_up = False
        self.withheld_bytes = 0
        self.add(rows)
        self._is_synced = not self._rows
        """False: the stream has to be asked how far it got."""

    @staticmethod
    def of(
        channel: bytes,
        settings: ChannelSettings,
        rows: Iterable[StoredMessage],
        context: ChannelContext,
    ) -> Tee | None:
        """The tee of a channel, if it has one; dead-letter channels have none."""
        if not settings.tee or b"!" in channel:
            return None
        tees = context.tees
        if not settings.is_kept and not tees.node_run:
            tees.node_run = context.rng.getrandbits(_NODE_RUN_BITS) | 1
        node_run = 0 if settings.is_kept else tees.node_run
        return Tee(channel, stream_cell(settings.tee), node_run, rows, context)

    @property
    def withheld_messages(self) -> int:
        """The number of removed messages that stay stored for the stream's sake."""
        return len(self._withheld)

    @property
    def withheld(self) -> Iterable[int]:
        """The ids of removed messages that stay stored, in the order of their removal."""
        return self._withheld

    def posts_behind(self, removed: Iterable[int]) -> list[Post]:
        """The messages to other cells that wait for the removals of these."""
        return [self._posts[each] for each in removed if each in self._posts]

    def latest_withheld(self, count: int) -> tuple[int, ...]:
        """The ids of the last `count` removals that are withheld."""
        return tuple(islice(reversed(self._withheld), count))

    @property
    def can_passivate(self) -> bool:
        """Nothing would be lost by building it anew."""
        is_under_way = self._is_querying or bool(self._in_flight)
        return not self._rows or not (is_under_way or self._withheld)

    @property
    def deadline(self) -> float:
        """The time to go on, if no reply comes before."""
        has_work = not self._is_synced or bool(self._unsent)
        return self._retry_at if has_work and not (self._is_querying or self._in_flight) else inf

    def add(self, rows: Iterable[StoredMessage]) -> None:
        """Messages were added. Requeued dead letters have been here before."""
        for row in rows:
            if row.origin is None:
                self._rows[row.id] = row
                self._unsent.append(row)

    def withhold(self, changes: list[Change]) -> list[Change]:
        """Withhold removals of unconfirmed messages. Gives the changes that are left."""
        left: list[Change] = []
        for change in changes:
            if type(change) is MessageRemoved and change.id in self._rows:
                if self._gives_up and not self._in_flight:
                    self._drop(change.id)
                    left.append(change)
                    continue
                self._withheld[change.id] = [change]
                self._keys[change.key] = change.id
                self.withheld_bytes += change.size
            elif type(change) is KeyExpired and change.key in self._keys:
                # The store has to know first that its message is removed.
                self._withheld[self._keys[change.key]].append(change)
            else:
                left.append(change)
        return left

    def withhold_posts(
        self, posts: Iterable[tuple[bytes, CellMessage]]
    ) -> tuple[tuple[bytes, CellMessage], ...]:
        """Withhold the end of moves of messages whose removal is withheld: until the store knows of
        it, they may move again. Gives the messages that are left."""
        left: list[tuple[bytes, CellMessage]] = []
        for cell, message in posts:
            if isinstance(message, MovesDone) and message.origins[0] in self._withheld:
                self._posts[message.origins[0]] = cell, message
            else:
                left.append((cell, message))
        return tuple(left)

    def append(self, now: float, effects: Effects) -> None:
        """Send what waits, as far as the window allows."""
        if now < self._retry_at:
            return
        if not self._is_synced:
            if not self._is_querying:
                self._is_querying = True
                self._post(TeeAppend(self._channel, self._node_run), effects)
            return
        is_trying = self._retry_delay_s > 0
        while self._unsent and self._in_flight_bytes < WINDOW_BYTES:
            if is_trying and self._in_flight:
                return
            rows = self._take_slice(1 if is_trying else SLICE_MESSAGES)
            if not rows:
                return
            behind = self._in_flight[-1][-1].id if self._in_flight else self._confirmed_id
            self._in_flight.append(rows)
            self._post(self._request(rows, behind), effects)

    def _request(self, rows: list[StoredMessage], behind: int) -> TeeAppend:
        ids = tuple(row.id for row in rows)
        bodies = tuple(row.data for row in rows)
        until = max(row.expires_at for row in rows)
        return TeeAppend(self._channel, self._node_run, behind, ids, bodies, until)

    def _post(self, request: TeeAppend, effects: Effects) -> None:
        effects.posts += ((self._stream, request),)

    def _take_slice(self, most: int) -> list[StoredMessage]:
        rows: list[StoredMessage] = []
        size = 0
        while self._unsent and len(rows) < most and size < SLICE_BYTES:
            row = self._unsent.popleft()
            if row.id in self._rows:
                rows.append(row)
                size += len(row.data)
        self._in_flight_bytes += size
        return rows

    # Replies of the stream.

    def appended(self, reply: TeeAppended, buffer: Buffer, now: float, effects: Effects) -> None:
        """A reply of the stream, perhaps to a request from before the channel was built anew."""
        if reply.code is not None:
            self._refused(reply.number, reply.code, now, effects)
            return
        if not reply.number:
            self._is_querying = False
            if not self._is_synced:
                self._is_synced = True
                if reply.confirmed_id < self._confirmed_id:
                    self._restart(reply.confirmed_id, buffer)
                self._confirmed_id = reply.confirmed_id
        elif self._in_flight and self._in_flight[0][-1].id <= reply.confirmed_id:
            self._retry_delay_s = self._retry_at = 0.0
            self._refused_at = None
            self._gives_up = False
        self._confirm(reply.confirmed_id)
        self._release(effects)

    def _confirm(self, confirmed_id: int) -> None:
        while self._in_flight and self._in_flight[0][-1].id <= confirmed_id:
            for row in self._in_flight.popleft():
                self._in_flight_bytes -= len(row.data)
                del self._rows[row.id]
                self._context.counters.teed += 1
        while self._unsent and self._unsent[0].id <= confirmed_id:
            self._rows.pop(self._unsent.popleft().id, None)
        self._confirmed_id = max(self._confirmed_id, confirmed_id)

    def _restart(self, confirmed_id: int, buffer: Buffer) -> None:
        """The stream is not the one that it was: it gets everything that is still here."""
        held = buffer.rows.values()
        rows = {row.id: row for row in held if row.id > confirmed_id and row.origin is None}
        self._rows = dict(sorted({**rows, **self._rows}.items()))
        self._unsent = deque(self._rows.values())

    def _refused(self, number: int, code: Code, now: float, effects: Effects) -> None:
        is_asked = any(rows[-1].id == number for rows in self._in_flight)
        if not (is_asked if number else self._is_querying):
            return
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._unsent = deque(self._rows.values())
        self._is_synced = self._is_querying = False
        self._retry_delay_s = min(max(RETRY_S_MIN, 2 * self._retry_delay_s), RETRY_S_MAX)
        self._retry_at = now + self._retry_delay_s
        if self._refused_at is None:
            self._refused_at = now
        self._context.counters.tee_refusals += 1
        self._gives_up = code not in _TRANSIENT or now - self._refused_at >= GIVE_UP_AFTER_S
        if self._gives_up:
            for message_id in self._withheld:
                self._drop(message_id)
            self._release(effects)
        logged_at = self._context.tees.logged_at
        if now >= logged_at.get(self._stream, -inf) + LOG_EVERY_S:
            logged_at[self._stream] = now
            log.warning(
                "tee refused for now: channel=%r cell=%r code=%s waiting=%d",
                self._channel,
                self._stream,
                code.name,
                len(self._rows),
            )

    def _drop(self, message_id: int) -> None:
        """The message leaves, and the stream will not have it."""
        del self._rows[message_id]
        self._context.counters.tee_missed += 1
        if len(self._unsent) > 2 * len(self._rows) + SLICE_MESSAGES:
            self._unsent = deque(self._rows.values())

    def _release(self, effects: Effects) -> None:
        """Store the removals that need not be withheld any more."""
        for message_id in sorted(each for each in self._withheld if each not in self._rows):
            removal, *later = self._withheld.pop(message_id)
            assert isinstance(removal, MessageRemoved), "the removal comes first"
            effects.changes += (removal, *later)
            if message_id in self._posts:
                effects.posts += (self._posts.pop(message_id),)
            self.withheld_bytes -= removal.size
            if self._keys.get(removal.key) == message_id:
                del self._keys[removal.key]

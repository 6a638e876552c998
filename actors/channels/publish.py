"""New messages of a channel: stored, recognized as a retry, or refused (P2P-06..08, PA-06..11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.idempotency import IdempotencyKeys, is_same
from millpond.actors.channels.quota import Quota
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy
from millpond.actors.errors import Code, IdsExhausted
from millpond.actors.messages import (
    CellMessage,
    Failed,
    FindMove,
    Mode,
    Move,
    Put,
    PutAck,
    Reply,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import (
    WINDOW_S_MAX,
    WINDOW_S_MIN,
    Origin,
    StoredMessage,
    window_s,
)

KEYS_SPARED = 16
"""A channel with so few keys keeps them, whatever the node's limit says."""


class Sweeper(Protocol):
    """The channel, an argument because a cycle of references would keep it in memory for long."""

    def sweep(self, now: float, effects: Effects) -> None:
        """Remove expired messages, to make room."""


class Publisher:
    """The way of a new message into a channel. `added` are the messages that a batch added."""

    __slots__ = (
        "_buffer",
        "_context",
        "_granted",
        "_keys",
        "_settings",
        "_ttl_default",
        "added",
        "quota",
    )

    def __init__(
        self,
        buffer: Buffer,
        keys: IdempotencyKeys,
        settings: ChannelSettings,
        context: ChannelContext,
        mode: Mode,
    ) -> None:
        self._buffer = buffer
        self._keys = keys
        self._settings = settings
        self._context = context
        self.quota = Quota(buffer, settings, context)
        self.added: list[StoredMessage] = []
        self._ttl_default = 0
        self._granted = (-1, 0, 0)
        """The ttl that the latest new message asked for, that which it got, and its window."""
        self.use_mode(mode)

    def use_mode(self, mode: Mode) -> None:
        """The channel has this mode from now on, which decides the ttl of a PUT without one."""
        settings = self._settings
        if mode is Mode.QUEUE:
            self._ttl_default = settings.ttl_queue
        else:
            self._ttl_default = min(settings.ttl_default, settings.ttl_max)
        self._granted = (-1, 0, 0)

    def ttl_of(self, requested: int) -> int:
        """The ttl that applies where a client requests this one, in seconds; 0: the default."""
        return min(requested, self._settings.ttl_max) if requested else self._ttl_default

    def is_known(self, put: Put, now: float) -> bool:
        """True if the idempotency key of a PUT is in use: it adds no message."""
        known = self._keys.rows.get(put.key)
        return known is not None and known.until > now

    def put_run(
        self,
        messages: list[CellMessage],
        start: int,
        source: int,
        now: float,
        effects: Effects,
        sweeper: Sweeper,
    ) -> int:
        """Answer PUTs of `messages` from `start` on; gives the index of the first message that is
        left. One page for new messages of every day, which are counted together; `put` judges the
        first one of another kind, and ends the run."""
        keys, quota, settings, context = self._keys, self.quota, self._settings, self._context
        if not quota.is_measured:
            quota.measure()
        known, size_max, bytes_left = keys.rows, settings.data_bytes_max, quota.bytes
        replies, rows, since = effects.batch_replies, self.added, now + context.jump.seconds
        before = len(rows)
        room = settings.keys_max - len(known)
        if room > quota.messages:
            room = quota.messages
        if not quota.is_writable or settings.ttl_strict:
            room = 0
        elif context.usage.keys >= context.limits.keys_max:
            room = 0
        asked, ttl, expires_at, at, next_id = -1, 0, 0.0, start, context.ids.next
        other: Put | None = None
        for put in messages[start:] if start else messages:
            if type(put) is not Put:
                break
            at += 1
            key, size = put.key, len(put.data)
            if key in known or not 0 < size <= size_max or size > bytes_left or room < 1:
                other = put
                break
            if put.ttl != asked:
                asked = put.ttl
                if asked != self._granted[0]:
                    ttl = self.ttl_of(asked)
                    self._granted = asked, ttl, window_s(ttl)
                _, ttl, window = self._granted
                expires_at = since + ttl
                if since + window < keys.expiry_at:
                    keys.expiry_at = since + window
            try:
                message_id = next_id(now)
            except IdsExhausted:
                replies.append(Failed(put, Code.IDS_EXHAUSTED))
                continue
            row = StoredMessage(message_id, key, ttl, expires_at, put.data, source)
            known[key] = row
            room -= 1
            bytes_left -= size
            rows.append(row)
            replies.append(PutAck(key, ttl, message_id))
        if len(rows) > before:
            fresh = rows[before:] if before else rows
            quota.messages -= len(fresh)
            quota.bytes = bytes_left
            self._buffer.add_all(fresh)
            effects.changes += fresh
        if other is not None:
            reply = self.put(other, source, now, effects, sweeper)
            if reply is not None:
                replies.append(reply)
        return at

    def put(
        self, put: Put, source: int, now: float, effects: Effects, sweeper: Sweeper
    ) -> Reply | None:
        """The answer to a PUT from connection `source`; None for one that is ignored."""
        known = self._keys.rows.get(put.key)
        if known is not None and known.until > now:
            if is_same(known, put.data):
                return PutAck(put.key, known.ttl, known.id)
            return Failed(put, Code.KEY_REUSED)
        if not put.data and self._settings.empty is EmptyPolicy.IGNORE:
            return None
        refusal = self.refusal(put, now, effects, sweeper)
        if refusal is not None:
            return Failed(put, refusal)
        ttl = self.ttl_of(put.ttl)
        message_id = self.add(put.key, ttl, put.data, now, effects, source)
        return PutAck(put.key, ttl, message_id) if message_id else Failed(put, Code.IDS_EXHAUSTED)

    def move(
        self, move: Move, source: int, now: float, effects: Effects, sweeper: Sweeper
    ) -> Reply | None:
        """The answer to a move, as to its PUT. The message and the memory of the move are stored
        together, or neither is. A message that its key stands for already is remembered as well:
        the key may be forgotten before the move is over."""
        put, keys = move.put, self._keys
        if (known := keys.move(move.origin, now)) is not None:
            return PutAck(put.key, known.ttl, known.id)
        reply = self.put(put, source, now, effects, sweeper)
        if isinstance(reply, PutAck):
            change = keys.remember_move(move.origin, keys.rows[put.key], move.until)
            effects.changes.append(change)
        return reply

    def find_move(self, request: FindMove, now: float) -> Reply:
        """The answer to the question whether a message moved here."""
        known = self._keys.move(request.origin, now)
        if known is None:
            return Failed(request, Code.NOT_FOUND)
        return PutAck(0, known.ttl, known.id)

    def add(
        self,
        key: int,
        ttl: int,
        data: bytes,
        now: float,
        effects: Effects,
        source: int = 0,
        origin: Origin | None = None,
        since: float = 0.0,
    ) -> int:
        """Add a message to the buffer. Gives its id, or 0 when there are no ids left for now.

        Its ttl in seconds counts from `since` (0: from now).
        """
        context, keys = self._context, self._keys
        try:
            message_id = context.ids.next(now)
        except IdsExhausted:
            return 0
        start = since or now + context.jump.seconds
        row = StoredMessage(message_id, key, ttl, start + ttl, data, source, origin)
        if len(keys.rows) >= self._settings.keys_max:
            effects.changes += keys.forget_oldest()
        elif context.usage.keys >= context.limits.keys_max and len(keys.rows) > KEYS_SPARED:
            effects.changes += keys.forget_retained()
        quota = self.quota
        quota.messages -= 1
        quota.bytes -= len(data)
        self._buffer.add(row)
        until = start + (ttl if WINDOW_S_MIN <= ttl <= WINDOW_S_MAX else window_s(ttl))
        older = keys.remember(row, until)
        if older is not None:
            effects.changes.append(older)
        self.added.append(row)
        effects.changes.append(row)
        return message_id

    def add_all(
        self,
        key: int,
        ttl: int,
        datas: Sequence[bytes],
        now: float,
        effects: Effects,
        sweeper: Sweeper,
        since: float = 0.0,
    ) -> list[StoredMessage] | Code:
        """Add messages to the buffer, all of them or none: then the reason. `key` is that of the
        first one, the others have the next ones that are free. `since` as in `add`."""
        settings, keys, context, quota = self._settings, self._keys, self._context, self.quota
        size = sum(map(len, datas))
        code = self._refusal_of_all(datas, size, ttl, now, effects, sweeper)
        if code is not None:
            return code
        while keys.rows and len(keys.rows) + len(datas) > settings.keys_max:
            forgotten = keys.forget_oldest()
            if not forgotten:
                break
            effects.changes += forgotten
        if context.usage.keys >= context.limits.keys_max and len(keys.rows) > KEYS_SPARED:
            effects.changes += keys.forget_retained()
        granted, next_id = self.ttl_of(ttl), context.ids.next
        expires_at = (since or now + context.jump.seconds) + granted
        try:
            rows = [
                StoredMessage(next_id(now), each, granted, expires_at, data)
                for each, data in zip(keys.free_from(key, len(datas)), datas, strict=True)
            ]
        except IdsExhausted:
            return Code.IDS_EXHAUSTED
        quota.messages -= len(rows)
        quota.bytes -= size
        self._buffer.add_all(rows)
        keys.remember_all(rows)
        self.added += rows
        effects.changes += rows
        return rows

    def _refusal_of_all(
        self,
        datas: Sequence[bytes],
        size: int,
        ttl: int,
        now: float,
        effects: Effects,
        sweeper: Sweeper,
    ) -> Code | None:
        settings, quota = self._settings, self.quota
        sizes = [len(each) for each in datas]
        if not min(sizes) and settings.empty is not EmptyPolicy.STORE:
            return Code.EMPTY_DATA
        if max(sizes) > settings.data_bytes_max:
            return Code.DATA_TOO_LARGE
        if settings.ttl_strict and not 1 <= ttl <= settings.ttl_max:
            return Code.TTL_REFUSED
        if quota.fits(size, len(sizes)):
            return None
        if not quota.is_writable:
            return Code.STORAGE_FAILED
        sweeper.sweep(now, effects)
        return None if quota.fits(size, len(sizes)) else Code.BUFFER_FULL

    def refusal(self, put: Put, now: float, effects: Effects, sweeper: Sweeper) -> Code | None:
        """The reason why a new message is refused; None: it is not."""
        settings, size = self._settings, len(put.data)
        if size == 0 and settings.empty is EmptyPolicy.REFUSE:
            return Code.EMPTY_DATA
        if size > settings.data_bytes_max:
            return Code.DATA_TOO_LARGE
        if settings.ttl_strict and not 1 <= put.ttl <= settings.ttl_max:
            return Code.TTL_REFUSED
        quota = self.quota
        if quota.fits(size):
            return None
        if not quota.is_writable:
            return Code.STORAGE_FAILED
        sweeper.sweep(now, effects)
        return None if quota.fits(size) else Code.BUFFER_FULL

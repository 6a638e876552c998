"""What becomes of a PUT: kept, recognized as a retry, or refused (P2P-06..08, PA-06..11)."""

from __future__ import annotations

from typing import Protocol

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.context import ChannelContext
from millpond.actors.channels.idempotency import IdempotencyKeys, is_same
from millpond.actors.channels.quota import Quota
from millpond.actors.channels.settings import ChannelSettings, EmptyPolicy
from millpond.actors.channels.subscribers import Subscribers
from millpond.actors.errors import Code, IdsExhausted
from millpond.actors.messages import Failed, Put, PutAck, Reply
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import (
    SENDER_SHIFT,
    WINDOW_S_MIN,
    Origin,
    StoredMessage,
    window_s,
)


class Sweeper(Protocol):
    def sweep(self, now: float, effects: Effects) -> None:
        """Remove what has expired: there is no quota."""


KEYS_SPARED = 16
"""A channel with so few keys keeps them, whatever the node's limit says."""


class Publisher:
    """The way into a channel's buffer. `added` collects what one batch added."""

    __slots__ = ("_buffer", "_keys", "_settings", "_shared", "added", "members", "quota")

    def __init__(
        self,
        buffer: Buffer,
        keys: IdempotencyKeys,
        members: Subscribers,
        settings: ChannelSettings,
        shared: ChannelContext,
    ) -> None:
        self._buffer = buffer
        self._keys = keys
        self.members = members
        self._settings = settings
        self._shared = shared
        self.quota = Quota(buffer, settings, shared)
        self.added: list[StoredMessage] = []

    def put(
        self, put: Put, source: int, now: float, effects: Effects, sweeper: Sweeper
    ) -> Reply | None:
        """The answer to a PUT from connection `source`; None for one that is ignored.

        The channel is `sweeper`, an argument because a cycle would keep it in memory for long.
        """
        kept = self._keys.rows.get(put.key)
        if kept is not None and kept.until > now:
            if is_same(kept, put.data):
                return PutAck(put.key, kept.ttl, kept.id)
            return Failed(put, Code.KEY_REUSED)
        settings, quota, size = self._settings, self.quota, len(put.data)
        if not quota.is_measured:
            quota.measure()
        if (
            not 0 < size <= settings.data_bytes_max
            or quota.messages < 1
            or quota.bytes < size
            or settings.ttl_strict
            or not quota.is_writable
        ):
            if not size and settings.empty is EmptyPolicy.IGNORE:
                return None
            refusal = self._refusal(put, now, effects, sweeper)
            if refusal is not None:
                return Failed(put, refusal)
        ttl = put.ttl or settings.ttl_default
        if ttl > settings.ttl_max:
            ttl = settings.ttl_max
        message_id = self.keep(put.key, ttl, put.data, now, effects, source)
        return PutAck(put.key, ttl, message_id) if message_id else Failed(put, Code.IDS_EXHAUSTED)

    def put_as(
        self,
        identity: bytes,
        put: Put,
        source: int,
        now: float,
        effects: Effects,
        sweeper: Sweeper,
    ) -> Reply | None:
        """The same of somebody who is known: its keys are its own, on all its connections."""
        known = self.members.find(identity)
        number = self.members.next_number() if known is None else known.number
        if not number:
            return Failed(put, Code.BUFFER_FULL)
        before = len(self.added)
        own = Put(number << SENDER_SHIFT | put.key, put.ttl, put.data)
        reply = self.put(own, source, now, effects, sweeper)
        if len(self.added) > before:
            row = self.added[-1]
            self.members.use(identity, max(row.expires_at, row.until), now)
        match reply:
            case PutAck(ttl=honoured, id=message_id):
                return PutAck(put.key, honoured, message_id)
            case Failed(code=code):
                return Failed(put, code)
            case _:
                return reply

    def keep(
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
        """Put a message into the buffer; gives its id, or 0 when there are no ids left for now.

        Its ttl counts from `since`, if that is given.
        """
        shared, keys, quota = self._shared, self._keys, self.quota
        try:
            message_id = shared.ids.next(now)
        except IdsExhausted:
            return 0
        start = since or now
        row = StoredMessage(message_id, key, ttl, start + ttl, data, source, origin)
        if len(keys.rows) >= self._settings.keys_max:
            effects.changes += keys.forget_oldest()
        elif shared.usage.keys >= shared.limits.keys_max and len(keys.rows) > KEYS_SPARED:
            effects.changes += keys.forget_left()
        quota.messages -= 1
        quota.bytes -= len(data)
        self._buffer.add(row)
        until = start + (WINDOW_S_MIN if ttl < WINDOW_S_MIN else window_s(ttl))
        older = keys.remember(row, until)
        if older is not None:
            effects.changes.append(older)
        self.added.append(row)
        effects.changes.append(row)
        return message_id

    def refusal(self, put: Put, now: float, effects: Effects, sweeper: Sweeper) -> Code | None:
        """Why a new message is not taken."""
        if not self.quota.is_measured:
            self.quota.measure()
        return self._refusal(put, now, effects, sweeper)

    def _refusal(self, put: Put, now: float, effects: Effects, sweeper: Sweeper) -> Code | None:
        settings, size = self._settings, len(put.data)
        if size == 0 and settings.empty is EmptyPolicy.REFUSE:
            return Code.EMPTY_DATA
        if size > settings.data_bytes_max:
            return Code.DATA_TOO_LARGE
        if settings.ttl_strict and not 1 <= put.ttl <= settings.ttl_max:
            return Code.TTL_REFUSED
        if not self.quota.is_writable:
            return Code.STORAGE_FAILED
        if not self.quota.fits(size):
            sweeper.sweep(now, effects)
            if not self.quota.fits(size):
                return Code.BUFFER_FULL
        return None

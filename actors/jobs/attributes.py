"""The attributes of a channel's jobs: when they are due, and which job has which unique key.

Most channels have no jobs, and none of these either.
"""

from __future__ import annotations

from typing import Self

from millpond.actors.channels.dead_letters import DEAD_SUFFIX, is_dead_letter_channel
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.idempotency import MOVE_KEYS
from millpond.actors.messages import DeadLettersRequeued, Mode
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Change, Snapshot
from millpond.actors.store.message_attributes import DueAt, MessageAttributes, UniqueKey

DEAD_LETTER_ID_MIN = 2**59
"""A requeued dead letter has the id that it had as its idempotency key; no client's is as high."""


class JobAttributes:
    """Times and unique keys, only of jobs that have any.

    `due` are the ends of delays that the store knows of, in seconds since 1970. `requeued` are dead
    letters that an earlier run put back: it may have crashed before their channel was told.
    """

    __slots__ = ("_by_key", "_keys", "due", "requeued")

    def __init__(self, stored: MessageAttributes | None = None) -> None:
        self.due: dict[int, float] = {} if stored is None else dict(stored.due)
        self.requeued: tuple[int, ...] = ()
        self._keys: dict[int, bytes] = {} if stored is None else dict(stored.names)
        # Of two jobs with one key, which only a repair may leave, the younger has it.
        self._by_key = {self._keys[message_id]: message_id for message_id in sorted(self._keys)}

    @classmethod
    def of(cls, snapshot: Snapshot, delivery: Delivery, name: bytes) -> Self | None:
        """Those of a stored channel, if its jobs have any; jobs that are not due are delayed."""
        is_dead = is_dead_letter_channel(name)
        if delivery.mode is not Mode.QUEUE and not is_dead:
            return None
        requeued: tuple[int, ...] = ()
        if not is_dead:
            requeued = tuple(k for k in snapshot.keys if DEAD_LETTER_ID_MIN <= k < MOVE_KEYS)
        if snapshot.attributes is None and not requeued:
            return None
        attributes = cls(snapshot.attributes)
        attributes.requeued = requeued
        for message_id, due in attributes.due.items():
            delivery.delay((message_id, 0), due)
        return attributes

    def announce_requeued(self, name: bytes, effects: Effects) -> None:
        """Tell the dead-letter channel that requeued messages are stored."""
        if self.requeued:
            effects.posts += ((name + DEAD_SUFFIX, DeadLettersRequeued(self.requeued)),)
            self.requeued = ()

    def delay(self, message_id: int, until: float, changes: list[Change]) -> None:
        """The job is not due before this, also after a restart."""
        self.due[message_id] = until
        changes.append(DueAt(message_id, until))

    def end_delay(self, message_id: int, changes: list[Change]) -> None:
        """The job is due now."""
        if self.due.pop(message_id, None) is not None:
            changes.append(DueAt(message_id, 0.0))

    def passed(self, message_id: int) -> None:
        """The time of the job has come, which a restart sees by itself."""
        self.due.pop(message_id, None)

    def find(self, key: bytes) -> int | None:
        """The job that has the unique key; it may have expired."""
        return self._by_key.get(key)

    def claim(self, message_id: int, key: bytes, changes: list[Change]) -> None:
        """The job has the unique key from now on."""
        self._keys[message_id] = key
        self._by_key[key] = message_id
        changes.append(UniqueKey(message_id, key))

    def attributes_of(self, message_id: int) -> tuple[float, bytes]:
        """The time at which a job is due (0: now), and its unique key (empty: none)."""
        return self.due.get(message_id, 0.0), self._keys.get(message_id, b"")

    def forget(self, message_id: int) -> None:
        """The job left, and its unique key is free."""
        self.due.pop(message_id, None)
        key = self._keys.pop(message_id, None)
        if key is not None and self._by_key.get(key) == message_id:
            del self._by_key[key]

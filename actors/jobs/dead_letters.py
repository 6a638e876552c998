"""What a dead-letter channel does for the channel whose dead_letters it has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.channels.idempotency import IdempotencyKeys
from millpond.actors.errors import Code
from millpond.actors.jobs.listing import (
    DATA_SHOWN,
    dead_letter_row,
    first_page,
    merge_pages,
    with_all_data,
)
from millpond.actors.jobs.messages import DeadLettersDone, JobCounts, JobFound, JobPage
from millpond.actors.jobs.passing import (
    CountDeadLetters,
    DeadLetterRequest,
    DeleteDeadLetters,
    GetDeadLetter,
    ListDeadLetters,
    RequeueDeadLetters,
    TakeDeadLetters,
)
from millpond.actors.jobs.requests import Keeper
from millpond.actors.messages import Batch, Failed, JobReply, Port
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import StoredMessage

LETTERS_MAX = 1000
LETTERS_BYTES_MAX = 4 * 2**20
"""So many are put back or deleted for one request, and one at least."""


class DeadLetterHandler:
    """For one request; `keys` of dead letters are the ids that they had."""

    __slots__ = ("_buffer", "_keys", "_name", "_now")

    def __init__(self, name: bytes, buffer: Buffer, keys: IdempotencyKeys, now: float) -> None:
        self._name = name
        self._buffer = buffer
        self._keys = keys
        self._now = now

    def answer(
        self, request: DeadLetterRequest, keeper: Keeper, port: Port, effects: Effects
    ) -> JobReply | Failed | None:
        """The answer; None: the channel where they came from answers."""
        number = request.number
        match request:
            case ListDeadLetters():
                return self._list(request)
            case GetDeadLetter(asked=asked):
                row = self._find(asked.id)
                if row is None:
                    return Failed(request, Code.NOT_FOUND)
                return JobFound(
                    number, with_all_data(dead_letter_row(row, len(row.data)), asked.bytes_max)
                )
            case CountDeadLetters(counts=c):
                dead = len(self._buffer.rows)
                return JobCounts(number, c.ready, c.delayed, c.leased, c.workers, c.oldest, dead)
            case TakeDeadLetters(ids=ids):
                dead_letters, more = self._some(ids)
                if not dead_letters:
                    return DeadLettersDone(number, 0, more=False)
                revive = RequeueDeadLetters(number, tuple(dead_letters), more)
                home = self._name.removesuffix(DEAD_SUFFIX)
                effects.forwards += ((home, Batch(port, [revive])),)
                return None
            case DeleteDeadLetters(ids=ids):
                dead_letters, more = self._some(ids)
                for dead_letter in dead_letters:
                    keeper.remove(dead_letter.id, effects)
                return DeadLettersDone(number, len(dead_letters), more)
            case _:
                assert_never(request)

    def _list(self, request: ListDeadLetters) -> JobPage:
        asked = request.asked
        found = (
            dead_letter_row(row, DATA_SHOWN) for row in self._buffer.after(asked.after, self._now)
        )
        own = first_page(found, asked.limit, asked.bytes_max)
        page = merge_pages((request.rows, request.more), own, asked.limit, asked.bytes_max)
        return JobPage(request.number, *page)

    def _find(self, message_id: int) -> StoredMessage | None:
        """The dead_letter of this id, or the one that had it."""
        row = self._buffer.get(message_id, self._now)
        if row is None:
            former = self._keys.rows.get(message_id)
            if isinstance(former, StoredMessage):
                row = self._buffer.get(former.id, self._now)
        return row

    def _some(self, ids: tuple[int, ...] | None) -> tuple[list[StoredMessage], bool]:
        """Letters of these ids or all, as many as are moved at once, and whether there are more."""
        rows: Iterable[StoredMessage | None] = self._buffer.after(0, self._now)
        if ids is not None:
            rows = map(self._find, ids)
        found: dict[int, StoredMessage] = {}
        size = 0
        for row in rows:
            if row is None or row.id in found:
                continue
            size += len(row.data)
            if len(found) == LETTERS_MAX or (found and size > LETTERS_BYTES_MAX):
                return list(found.values()), True
            found[row.id] = row
        return list(found.values()), False

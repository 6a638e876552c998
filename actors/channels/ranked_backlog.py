"""The backlog of a queue whose jobs have priorities or limit keys.

The jobs of each priority wait in the order of their ids. The first one of all is that which has
waited longest, where each priority counts as so much time (`ageing_ms`): so high ones go first, and
low ones get there. This order never changes while jobs wait. Jobs whose limit key is at its limit
are parked, out of the way of others, until it is not.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from heapq import heappop, heappush
from math import inf

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer, may_have
from millpond.actors.channels.queue_limits import QueueLimits
from millpond.actors.ids import TIME_SHIFT
from millpond.actors.jobs.options import PRIORITY, JobOptions
from millpond.actors.runtime.timers import DeadlineHeap
from millpond.actors.store.changes import StoredMessage

DelayKey = tuple[int, int]
SLACK = 1024
"""So many entries that stand for nothing may be in a list, or as many as others."""
STRICT = 1 << 80
"""The time that a priority counts for where waiting counts for nothing."""


class _Level:
    """The waiting jobs of one priority, lowest id first; `ids` has some that wait no more."""

    __slots__ = ("ids", "start")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.start = 0

    def add(self, message_id: int) -> None:
        """Add an id; those that are here already may be."""
        ids, start = self.ids, self.start
        if len(ids) == start or message_id > ids[-1]:
            ids.append(message_id)
            return
        at = bisect_left(ids, message_id, start)
        if ids[at] == message_id:
            return
        if start and at - start < len(ids) - at:
            # Jobs that come back are among the oldest: few are in front of one.
            self.start -= 1
            ids[start - 1 : at - 1] = ids[start:at]
            ids[at - 1] = message_id
        else:
            ids.insert(at, message_id)

    def first(self, after: int, waiting: set[int]) -> int:
        """The first id that waits, above `after`; 0: none does."""
        ids = self.ids
        at = start = self.start
        if after and len(ids) > start and ids[start] <= after:
            at = bisect_right(ids, after, start)
        is_first = at == start
        while at < len(ids) and ids[at] not in waiting:
            at += 1
        if is_first:
            self.start = at
            if at > SLACK and 2 * at > len(ids):
                del ids[:at]
                at = self.start = 0
        return ids[at] if at < len(ids) else 0

    def keep(self, waiting: set[int]) -> None:
        """Forget ids that wait no more."""
        self.ids = [each for each in self.ids[self.start :] if each in waiting]
        self.start = 0


class RankedBacklog:
    """The ready jobs that competing consumers share. A job that one may not have stays for the
    others: each consumer has a cursor behind such jobs in each level."""

    __slots__ = (
        "_attempts",
        "_cursors",
        "_delays",
        "_entries",
        "_levels",
        "_limits",
        "_opening",
        "_opening_at",
        "_options",
        "_parked",
        "_parked_entries",
        "_parked_ids",
        "_waiting",
    )

    def __init__(
        self,
        delays: dict[DelayKey, float],
        options: dict[int, JobOptions],
        limits: QueueLimits,
        attempts: dict[int, int],
    ) -> None:
        """`options` are those of the jobs that have any, and so are failed `attempts`."""
        self._attempts = attempts
        self._delays = delays
        self._options = options
        self._limits = limits
        self._levels: dict[int, _Level] = {}
        self._waiting: set[int] = set()
        self._entries = 0
        """The number of ids in all levels, about."""
        self._cursors: dict[Consumer, dict[int, int]] = {}
        self._parked: dict[bytes, list[tuple[int, int]]] = {}
        """Jobs by limit key, as heaps of ranks and ids."""
        self._parked_ids: set[int] = set()
        self._parked_entries = 0
        opening_at: dict[bytes, float] = {}
        self._opening_at = opening_at
        """When the keys of parked jobs are to be looked at again; those that have a time."""
        self._opening: DeadlineHeap[bytes] = DeadlineHeap(
            lambda when, key: opening_at.get(key) == when
        )

    @property
    def parked(self) -> int:
        """The number of jobs whose limit key is at its limit."""
        return len(self._parked_ids)

    @property
    def deadline(self) -> float:
        """`open_keys` has work to do at this time."""
        return self._opening.next_at if self._opening_at else inf

    def add(self, ids: Iterable[int]) -> None:
        """New jobs are ready, except those that are delayed."""
        for message_id in ids:
            if (message_id, 0) not in self._delays:
                self.give_back(message_id)

    def give_back(self, message_id: int) -> None:
        """A job is ready."""
        if message_id in self._waiting or message_id in self._parked_ids:
            return
        priority = self._priority(message_id)
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = _Level()
        level.add(message_id)
        self._waiting.add(message_id)
        self._entries += 1
        for cursors in self._cursors.values():
            if cursors.get(priority, 0) >= message_id:
                cursors[priority] = message_id - 1

    def take(self, message_id: int) -> None:
        """The job is leased already: its delay is over."""
        self.forget(message_id)
        self._delays.pop((message_id, 0), None)

    def forget(self, message_id: int) -> None:
        """The job is not ready any more."""
        self._waiting.discard(message_id)
        self._parked_ids.discard(message_id)
        if self._entries > SLACK + 2 * len(self._waiting):
            for level in self._levels.values():
                level.keep(self._waiting)
            self._entries = len(self._waiting)
        if self._parked_entries > SLACK + 2 * len(self._parked_ids):
            self._rank_parked()

    def detach(self, consumer: Consumer) -> None:
        """The consumer is gone."""
        self._cursors.pop(consumer, None)

    def next(self, consumer: Consumer, buffer: Buffer, now: float) -> StoredMessage | None:
        """Take the first job that the consumer may have; None: there is none."""
        cursors = self._cursors.get(consumer)
        while True:
            priority, message_id = self._first(cursors)
            if not message_id:
                return None
            row, key = buffer.get(message_id, now), self._limit_key(message_id)
            if row is None or (message_id, 0) in self._delays or self.is_late(message_id, now):
                self._waiting.discard(message_id)  # a delay gives it back at its end
                self._pass_over(key, now)
                continue
            if row.id <= consumer.starts_after or not may_have(consumer, row):
                if cursors is None:
                    cursors = self._cursors[consumer] = {}
                cursors[priority] = message_id
                self._pass_over(key, now)
                continue
            if key and (opens_at := self._limits.key_opens_at(key, now)) > now:
                self._park(message_id, key, opens_at)
                continue
            self._waiting.discard(message_id)
            return row

    def is_late(self, message_id: int, now: float) -> bool:
        """Was the job to start by now, and did no attempt of it count?"""
        options = self._options.get(message_id)
        if options is None or not options.start_by_ms or message_id in self._attempts:
            return False
        return options.start_by_ms / 1000 <= now

    def _pass_over(self, key: bytes, now: float) -> None:
        """A job of a key is not taken now: it may be the one that its key let through, and holds up
        none of the others."""
        if self._parked:
            self.open_key(key, now)

    def started(self, message_id: int, now: float) -> None:
        """A job that was taken has started: the next one of its key may follow."""
        key = self._limit_key(message_id)
        if key in self._parked:
            self.open_key(key, now)

    def open_key(self, key: bytes, now: float) -> bool:
        """Have the first parked job of a key wait with the others, if the key is not at its limit.
        True: there is one."""
        heap = self._parked.get(key)
        if heap is None:
            return False
        opens_at = self._limits.key_opens_at(key, now)
        if opens_at > now:
            self._look_again(key, opens_at)
            return False
        self._opening_at.pop(key, None)
        while heap:
            _, message_id = heappop(heap)
            self._parked_entries -= 1
            if message_id in self._parked_ids:
                self._parked_ids.discard(message_id)
                self.give_back(message_id)
                break
        if not heap:
            del self._parked[key]
        return True

    def open_keys(self, now: float) -> bool:
        """The same for all keys whose time has come."""
        found = False
        for key in self._opening.due(now):
            self._opening_at.pop(key, None)
            found |= self.open_key(key, now)
        return found

    def open_all(self, now: float) -> None:
        """The limits are others, and so may ranks be: look at all keys."""
        self._rank_parked()
        for key in list(self._parked):
            self.open_key(key, now)

    def _first(self, cursors: dict[int, int] | None) -> tuple[int, int]:
        """The priority and the id of the first job behind the cursors; 0 and 0: there is none."""
        best, found = 0, (0, 0)
        age = self._age
        for priority, level in self._levels.items():
            after = 0 if cursors is None else cursors.get(priority, 0)
            message_id = level.first(after, self._waiting)
            if message_id:
                rank = message_id - priority * age
                if not found[1] or rank < best:
                    best, found = rank, (priority, message_id)
        return found

    @property
    def _age(self) -> int:
        """The difference of ids that a priority counts for."""
        ageing_ms = self._limits.ageing_ms
        return ageing_ms << TIME_SHIFT if ageing_ms else STRICT

    def _priority(self, message_id: int) -> int:
        options = self._options.get(message_id)
        return PRIORITY if options is None else options.priority

    def _limit_key(self, message_id: int) -> bytes:
        options = self._options.get(message_id)
        return b"" if options is None else options.limit_key

    def _park(self, message_id: int, key: bytes, opens_at: float) -> None:
        self._waiting.discard(message_id)
        self._parked_ids.add(message_id)
        self._parked_entries += 1
        heappush(self._parked.setdefault(key, []), (self._rank(message_id), message_id))
        self._look_again(key, opens_at)

    def _rank(self, message_id: int) -> int:
        return message_id - self._priority(message_id) * self._age

    def _rank_parked(self) -> None:
        """Rank the parked jobs anew, and forget those that are parked no more."""
        for key, heap in list(self._parked.items()):
            ids = [message_id for _, message_id in heap if message_id in self._parked_ids]
            if ids:
                self._parked[key] = sorted((self._rank(each), each) for each in ids)
            else:
                del self._parked[key]
        self._parked_entries = len(self._parked_ids)

    def _look_again(self, key: bytes, opens_at: float) -> None:
        """Look at a key again at a time; infinity: `open_key` is called once a job has ended."""
        if opens_at < inf and self._opening_at.get(key) != opens_at:
            self._opening_at[key] = opens_at
            self._opening.add(opens_at, key)

"""What a channel remembers for its jobs; most channels have none, and no `ChannelJobs` either."""

from __future__ import annotations

from typing import Self

from millpond.actors.channels.dead_letters import DEAD_SUFFIX, is_dead_letter_channel
from millpond.actors.channels.delivery import Delivery
from millpond.actors.jobs.dead_letters import DeadLetterHandler
from millpond.actors.jobs.passing import DEAD_LETTER_REQUESTS
from millpond.actors.jobs.requests import JobHandler, Keeper, Parts
from millpond.actors.jobs.schedule import JobSchedule
from millpond.actors.messages import DeadLettersRequeued, Failed, JobReply, JobRequest, Mode, Port
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import Snapshot
from millpond.actors.store.message_attributes import DueAt, MessageAttributes

LETTER_ID_MIN = 2**59
"""The key of what was put back is the id that it had as a dead letter; no client's is as
high."""


class ChannelJobs:
    """`requeued` are dead letters that were put back in an earlier run: a crash may have come
    before they were let go of, so this is said again."""

    __slots__ = ("requeued", "schedule")

    def __init__(self, terms: MessageAttributes | None = None) -> None:
        self.schedule = JobSchedule(terms)
        self.requeued: tuple[int, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot, delivery: Delivery, name: bytes) -> Self | None:
        """What a channel is built with; jobs that are not due begin to rest."""
        if delivery.mode is not Mode.QUEUE:
            return None
        requeued: tuple[int, ...] = ()
        if not is_dead_letter_channel(name):
            requeued = tuple(key for key in snapshot.keys if key >= LETTER_ID_MIN)
        if snapshot.attributes is None and not requeued:
            return None
        jobs = cls(snapshot.attributes)
        jobs.requeued = requeued
        for message_id, due in jobs.schedule.due.items():
            delivery.delay((message_id, 0), due)
        return jobs

    def announce_requeued(self, name: bytes, effects: Effects) -> None:
        """Those dead letters may be let go of."""
        if self.requeued:
            effects.posts += ((name + DEAD_SUFFIX, DeadLettersRequeued(self.requeued)),)
            self.requeued = ()

    def keep_rest(self, message_id: int, until: float, effects: Effects) -> None:
        """A restart must know for how long the message delays."""
        self.schedule.due[message_id] = until
        effects.changes.append(DueAt(message_id, until))


def answer(
    request: JobRequest, parts: Parts, keeper: Keeper, port: Port, now: float, effects: Effects
) -> JobReply | Failed | None:
    """What the channel, or one that has its dead letters, answers; None: the other one
    does."""
    if isinstance(request, DEAD_LETTER_REQUESTS):
        desk = DeadLetterHandler(parts.name, parts.buffer, parts.keys, now)
        return desk.answer(request, keeper, port, effects)
    return JobHandler(parts, keeper, port, now, effects).answer(request)

"""Requests about jobs: packet 96 (docs/reference/wire-protocol.md, "Jobs")."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Literal

import msgspec

from millpond.actors.errors import NotAllowed, NotNegotiated, RequestError
from millpond.node.client.channel import Channel

PAGE = 100

JobState = Literal["ready", "delayed", "leased", "dead"]


class Operation(IntEnum):
    """Operations on the queue of the connection's channel."""

    PUT = 1
    LIST = 2
    SHOW = 3
    RETRY = 4
    CANCEL = 5
    DEAD_RETRY = 6
    DEAD_PURGE = 7
    COUNTS = 8
    REJECT = 9
    PUT_SCHEDULE = 10
    DELETE_SCHEDULE = 11
    PAUSE_SCHEDULE = 12
    RUN_SCHEDULE = 13
    LIST_SCHEDULES = 14
    SHOW_QUEUE = 20
    SET_QUEUE = 21
    LIST_WORKERS = 22
    TAKE = 23
    PUT_MANY = 32
    FINISH = 33
    PROGRESS = 34
    RESULT = 35
    PUT_FLOW = 36
    SHOW_FLOW = 37
    LIST_FLOWS = 38
    RETRY_FLOW = 39
    CANCEL_FLOW = 40


class JobInfo(msgspec.Struct, frozen=True):
    """A job as the node has it. Times in ms since 1970, 0 where there is none.

    `data` is cut in lists, and None where it does not fit. `origin` and `reason`, of a dead letter
    or a job that was one: its id before, and why its attempts ended. A job of a flow has the id of
    the flow and its `step` there, which counts from 0; `flow` is 0 for other jobs.
    """

    id: int
    state: JobState
    attempt: int = 0
    due: int = 0
    leased_until: int = 0
    expires: int = 0
    size: int = 0
    data: bytes | None = None
    origin: int = 0
    reason: str = ""
    flow: int = 0
    step: int = 0


class QueueCounts(msgspec.Struct, frozen=True):
    """The number of jobs in each state, and of workers; `oldest`: when the oldest became ready.
    `limited` of the ready ones wait for a limit. `paused`: workers get none."""

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    workers: int = 0
    oldest: int = 0
    paused: bool = False
    limited: int = 0


async def ask(channel: Channel, operation: Operation, **body: Any) -> dict[str, Any]:
    """Request an operation. Raises RequestErrors, NotNegotiated where the node has no jobs."""
    return await channel.jobs(operation, body)


async def queue_counts(channel: Channel, *, stop: bool = False) -> QueueCounts:
    """The counts of a queue. `stop`: after the reply the node pushes no more jobs here."""
    asked = {"stop": True} if stop else {}
    return msgspec.convert(await ask(channel, Operation.COUNTS, **asked), QueueCounts)


async def is_empty(channel: Channel) -> bool:
    """Whether no job is ready for workers. True also without the right to ask, False if a request
    fails."""
    try:
        counts = await queue_counts(channel)
        return counts.paused or not counts.ready
    except (NotNegotiated, NotAllowed):
        return True
    except RequestError:
        return False


def job_info(fields: dict[str, Any]) -> JobInfo:
    """A job of a reply."""
    return msgspec.convert(fields, JobInfo)

"""Asks the node about jobs whose results do not come: who waits learns that the node ended them.

A job's time may be over, or the attempts that its queue has; then no worker tells.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf

import anyio

from millpond.actors.errors import NotAllowed, NotAQueue, NotFound, NotNegotiated, RequestError
from millpond.node.client.channel import Channel
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.errors import JobFailed
from millpond.node.jobs.handle import PendingResult
from millpond.node.jobs.requests import Operation, ask, job_info

FIRST_S, MOST_S = 10.0, 300.0
"""A job is asked for so long after it is due, then after rests that double up to the second."""
GRACE_S = 10.0
"""A result is left before the job goes: after this it is here, or it was lost."""


class ResultWatch:
    """`run` it as a task; `waits` are those that somebody still has."""

    def __init__(self, waits: Mapping[int, PendingResult], now: Callable[[], float]) -> None:
        self._waits = waits
        self._now = now
        self._wakes_at = inf
        self._earlier = anyio.Event()

    def watch(self, wait: PendingResult, job: int, due_s: float) -> None:
        """Ask about this job from `FIRST_S` after it is due on, which is in `due_s` seconds."""
        wait.job, wait.look_at = job, self._now() + due_s + FIRST_S
        if wait.look_at < self._wakes_at:
            self._wakes_at = wait.look_at
            self._earlier.set()

    async def run(self, channel: Channel) -> None:
        """For ever; it ends where the node does not tell us about jobs."""
        try:
            while True:
                await self._look_at_all(channel)
                self._wakes_at = min((wait.look_at for wait in self._open()), default=inf)
                self._earlier = anyio.Event()
                with anyio.move_on_after(max(0.0, self._wakes_at - self._now())):
                    await self._earlier.wait()
        except (NotAllowed, NotNegotiated, NotAQueue, ConnectionLost, ChannelClosed):
            return

    def _open(self) -> list[PendingResult]:
        return [wait for wait in self._waits.values() if not wait.answer.done]

    async def _look_at_all(self, channel: Channel) -> None:
        """No wait is held on to for longer than this."""
        now = self._now()
        for wait in self._open():
            if wait.look_at <= now:
                await self._look(channel, wait)

    async def _look(self, channel: Channel, wait: PendingResult) -> None:
        ended = await _ended(channel, wait.job)
        if ended is None:
            wait.rest_s = min(2 * wait.rest_s or FIRST_S, MOST_S)
            wait.look_at = self._now() + wait.rest_s
        elif not wait.is_overdue:
            wait.is_overdue = True
            wait.look_at = self._now() + GRACE_S
        else:
            wait.fail(ended)


async def _ended(channel: Channel, job: int) -> JobFailed | None:
    """What ended a job; None: it is there, or the node did not answer.

    Raises NotAllowed, NotNegotiated, NotAQueue, ConnectionLost, ChannelClosed.
    """
    try:
        row = job_info(await ask(channel, Operation.SHOW, id=job))
    except NotFound:
        return JobFailed("gone", "its time was over, or its result was lost")
    except (NotAllowed, NotNegotiated, NotAQueue):
        raise
    except RequestError:
        return None
    return JobFailed(row.reason or "dead") if row.state == "dead" else None

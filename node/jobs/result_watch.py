"""The watch of results that do not come: it asks the node whether the job has ended.

A job may expire, or use up the attempts of its queue; then no worker sends a result.
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

FIRST_CHECK_S, CHECK_S_MAX = 10.0, 300.0
"""A job is checked so long after it is due, then after delays that double up to the second."""
GRACE_S = 10.0
"""A result is sent before the job goes: after this it is here, or it was lost."""


class ResultWatch:
    """Checks the `pending` results that still have a handle. `run` it as a task."""

    def __init__(self, pending: Mapping[int, PendingResult], now: Callable[[], float]) -> None:
        self._pending = pending
        self._now = now
        self._wakes_at = inf
        self._earlier = anyio.Event()

    def watch(self, pending: PendingResult, job: int, due_s: float) -> None:
        """Check this job from `FIRST_CHECK_S` after it is due, which is in `due_s` seconds."""
        pending.watch(job, self._now() + due_s + FIRST_CHECK_S)
        if pending.check_at < self._wakes_at:
            self._wakes_at = pending.check_at
            self._earlier.set()

    async def run(self, channel: Channel) -> None:
        """Check, for ever; it ends where the node does not answer requests about jobs."""
        try:
            while True:
                await self._check_all(channel)
                self._wakes_at = min((each.check_at for each in self._open()), default=inf)
                self._earlier = anyio.Event()
                with anyio.move_on_after(max(0.0, self._wakes_at - self._now())):
                    await self._earlier.wait()
        except (NotAllowed, NotNegotiated, NotAQueue, ConnectionLost, ChannelClosed):
            return

    def _open(self) -> list[PendingResult]:
        return [each for each in self._pending.values() if not each.future.done]

    async def _check_all(self, channel: Channel) -> None:
        """Check those that are due. No pending result is kept alive for longer than this."""
        now = self._now()
        for pending in self._open():
            if pending.check_at <= now:
                await self._check(channel, pending)

    async def _check(self, channel: Channel, pending: PendingResult) -> None:
        ended = await _ended(channel, pending.job)
        if ended is None:
            pending.check_later(self._now(), FIRST_CHECK_S, CHECK_S_MAX)
        elif not pending.is_overdue:
            pending.overdue(self._now() + GRACE_S)
        else:
            pending.fail(ended)


async def _ended(channel: Channel, job: int) -> JobFailed | None:
    """The end of a job without a result; None: it is there, or the node did not answer.

    Raises NotAllowed, NotNegotiated, NotAQueue, ConnectionLost, ChannelClosed.
    """
    try:
        info = job_info(await ask(channel, Operation.SHOW, id=job))
    except NotFound:
        return JobFailed("gone", "it is not in the queue, and there is no result")
    except (NotAllowed, NotNegotiated, NotAQueue):
        raise
    except RequestError:
        return None
    return JobFailed(info.reason or "dead") if info.state == "dead" else None

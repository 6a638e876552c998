"""Lease renewal for all jobs of a worker, running or waiting for a slot.

A handler in a thread that lost its lease keeps its slot for an unknown time, while the node counts
on the slot again. Jobs that wait for a slot are returned then: another worker may take them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

import anyio

from millpond.actors.errors import LeaseLost, RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.requests import Operation, ask
from millpond.node.jobs.worker.subscription import LeasedJob, QueueSubscription

RETRY_S = 0.2
"""The delay after a renewal that the node refused for now."""
REPLY_S = 2.0
"""The time that the node has for a reply."""


class Leases:
    """The leases of a worker. `run` it as a task; the rest is called beside it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._jobs: dict[LeasedJob, None] = {}
        self._running: dict[LeasedJob, None] = {}
        self._overdue: dict[LeasedJob, None] = {}
        """Jobs whose lease is lost and whose handler still has its slot."""
        self._paused: dict[QueueSubscription, int] = {}
        self._slots_freed = 0
        self._is_ending = False
        self._wakes_at = inf
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, leased: LeasedJob) -> None:
        """Renew its lease from now on."""
        self._jobs[leased] = None
        if leased.renew_at < self._wakes_at:
            self._wakes_at = leased.renew_at
            self._earlier.set()

    def drop(self, leased: LeasedJob) -> None:
        """Renew its lease no more."""
        self._jobs.pop(leased, None)

    def started(self, leased: LeasedJob) -> None:
        """It has a slot."""
        self._running[leased] = None

    def ended(self, leased: LeasedJob) -> None:
        """Its slot is free: the node may push again what was returned."""
        self.drop(leased)
        del self._running[leased]
        self._overdue.pop(leased, None)
        self._slots_freed += 1
        if self._paused:
            self._earlier.set()

    def end(self) -> None:
        """From now on the node pushes no job again that was returned."""
        self._is_ending = True

    async def give_back(self, leased: LeasedJob) -> None:
        """Return a job that was not begun or not ended: it may run elsewhere, at no attempt.

        The node pushes no more jobs here then. It has `REPLY_S` to answer.
        """
        self.drop(leased)
        if leased.is_lost:
            return
        with suppress(RequestError, ConnectionLost, ChannelClosed, TimeoutError):
            with anyio.fail_after(REPLY_S):
                await ask(leased.subscription.channel, Operation.RETRY, id=leased.message.id)

    def lose(self, subscription: QueueSubscription) -> None:
        """The connection ended, and its leases with it."""
        for leased in [each for each in self._jobs if each.subscription is subscription]:
            self._lost(leased)

    def taken(self, subscription: QueueSubscription, message_id: int) -> None:
        """The node ended the lease of a job: it was cancelled, or is done already."""
        for leased in [*self._jobs]:
            if leased.subscription is subscription and leased.message.id == message_id:
                leased.was_refused = True
                self._lost(leased)

    async def run(self) -> None:
        """Renew leases, for ever."""
        async with anyio.create_task_group() as tasks:
            while True:
                now = self._now()
                for subscription, freed in list(self._paused.items()):
                    if freed != self._slots_freed:
                        del self._paused[subscription]
                        tasks.start_soon(self._resume, subscription)
                for leased in list(self._jobs):
                    if now >= leased.ends_at:
                        self._lost(leased)
                    elif now >= leased.renew_at and not leased.is_renewing:
                        leased.begin_renewal()
                        tasks.start_soon(self._keep, leased)
                self._wakes_at = min((each.next_check_at for each in self._jobs), default=inf)
                self._earlier = anyio.Event()
                with anyio.move_on_after(max(0.0, self._wakes_at - now)):
                    await self._earlier.wait()

    async def renew(self, leased: LeasedJob) -> None:
        """Extend one lease now, or learn that it is lost."""
        leased.begin_renewal()
        try:
            seconds = await leased.message.touch(leased.task.lease_s)
        except (LeaseLost, ConnectionLost, ChannelClosed) as exc:
            if isinstance(exc, LeaseLost) and leased in self._jobs:
                leased.refused(self._now())
            self._lost(leased)
        except RequestError:
            leased.not_renewed(self._now() + RETRY_S)
        else:
            leased.granted(self._now(), seconds)
        finally:
            leased.end_renewal()
            if leased in self._jobs:
                self.add(leased)

    async def _keep(self, leased: LeasedJob) -> None:
        """Renew a lease; while slots are blocked, return a job that waits for one."""
        subscription = leased.subscription
        if not self._overdue or not subscription.withdraw(leased):
            await self.renew(leased)
            return
        freed = self._slots_freed
        await self.give_back(leased)
        self._paused[subscription] = freed
        self._earlier.set()

    async def _resume(self, subscription: QueueSubscription) -> None:
        if not self._is_ending:
            with suppress(RequestError, ConnectionLost, ChannelClosed):
                await subscription.channel.credit(0)

    def _lost(self, leased: LeasedJob) -> None:
        self.drop(leased)
        leased.lose()
        if leased in self._running:
            self._overdue[leased] = None
        else:
            leased.subscription.withdraw(leased)

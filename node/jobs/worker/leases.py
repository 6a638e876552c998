"""Renews the leases of all jobs that a worker has, whether they run or wait for their turn.

A handler in a thread that lost its lease keeps its slot, for nobody knows how long, while the node
counts on the slot again. What waits for a slot then is given back instead: others may have one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import inf

import anyio

from millpond.actors.errors import LeaseLost, RequestError
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.jobs.requests import Operation, ask
from millpond.node.jobs.worker.leased_job import LeasedJob
from millpond.node.jobs.worker.subscription import QueueSubscription

AGAIN_S = 0.2
"""After a renewal that the node refused for now."""
LOOK_S = 2.0
"""So long the node has for an answer."""


class Leases:
    """`run` it as a task; the rest is called beside it. What is lost is told `lose`."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._held: dict[LeasedJob, None] = {}
        self._begun: dict[LeasedJob, None] = {}
        self._strays: dict[LeasedJob, None] = {}
        self._paused: dict[QueueSubscription, int] = {}
        self._slots_freed = 0
        self._is_ending = False
        self._wakes_at = inf
        self._earlier = anyio.Event()

    def __len__(self) -> int:
        return len(self._held)

    def add(self, held: LeasedJob) -> None:
        """Keep its lease from now on."""
        self._held[held] = None
        if held.renew_at < self._wakes_at:
            self._wakes_at = held.renew_at
            self._earlier.set()

    def drop(self, held: LeasedJob) -> None:
        """It is settled: its lease may end."""
        self._held.pop(held, None)

    def began(self, held: LeasedJob) -> None:
        """It has a slot."""
        self._begun[held] = None

    def ended(self, held: LeasedJob) -> None:
        """Its slot is free: what was given back may come."""
        self.drop(held)
        del self._begun[held]
        self._strays.pop(held, None)
        self._slots_freed += 1
        if self._paused:
            self._earlier.set()

    def end(self) -> None:
        """From now on what is given back stays away."""
        self._is_ending = True

    async def give_back(self, held: LeasedJob) -> None:
        """It was not begun, or not ended: others may have it at once, and no attempt is counted.

        The node pushes nothing more here then. It has 2 s to hear of it.
        """
        self.drop(held)
        if held.is_lost:
            return
        with suppress(RequestError, ConnectionLost, ChannelClosed, TimeoutError):
            with anyio.fail_after(LOOK_S):
                await ask(held.feed.channel, Operation.RETRY, id=held.message.id)

    def lose(self, feed: QueueSubscription) -> None:
        """The connection ended, and the leases with it."""
        for held in [held for held in self._held if held.feed is feed]:
            self._lost(held)

    async def run(self) -> None:
        """Renew, for ever."""
        async with anyio.create_task_group() as tasks:
            while True:
                now = self._now()
                for feed, freed in list(self._paused.items()):
                    if freed != self._slots_freed:
                        del self._paused[feed]
                        tasks.start_soon(self._resume, feed)
                for held in list(self._held):
                    if now >= held.ends_at:
                        self._lost(held)
                    elif now >= held.renew_at and not held.is_renewing:
                        held.is_renewing = True
                        tasks.start_soon(self._keep, held)
                self._wakes_at = min(map(self._next_look, self._held), default=inf)
                self._earlier = anyio.Event()
                with anyio.move_on_after(max(0.0, self._wakes_at - now)):
                    await self._earlier.wait()

    async def _keep(self, held: LeasedJob) -> None:
        if not self._strays or held not in held.feed.waiting:
            await self.renew(held)
            return
        held.feed.waiting.remove(held)
        freed = self._slots_freed
        await self.give_back(held)
        self._paused[held.feed] = freed
        self._earlier.set()

    async def _resume(self, feed: QueueSubscription) -> None:
        if not self._is_ending:
            with suppress(RequestError, ConnectionLost, ChannelClosed):
                await feed.channel.credit(0)

    async def renew(self, held: LeasedJob) -> None:
        """Prolong one lease now, or learn that it is lost."""
        held.is_renewing = True
        asked_at = self._now()
        try:
            seconds = await held.message.touch(held.task.lease_s)
        except (LeaseLost, ConnectionLost, ChannelClosed) as exc:
            # A push may have been long on its way: only what was granted here is known.
            is_early = held in self._held and held.was_granted and self._now() < held.until
            held.was_refused = isinstance(exc, LeaseLost) and is_early
            self._lost(held)
        except RequestError:
            held.renew_at = self._now() + AGAIN_S
        else:
            held.granted(asked_at, seconds)
        finally:
            held.is_renewing = False
            if held in self._held:
                self.add(held)

    def _lost(self, held: LeasedJob) -> None:
        self.drop(held)
        held.lose()
        if held in self._begun:
            self._strays[held] = None
        elif held in held.feed.waiting:
            held.feed.waiting.remove(held)

    @staticmethod
    def _next_look(held: LeasedJob) -> float:
        if not held.is_renewing:
            return held.renew_at
        return held.ends_at

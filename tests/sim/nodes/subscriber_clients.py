"""Workers of a subscription with a wake stream: they claim what its events tell of.

They speak to the cell of the subscription, as the HTTP API does: the nodes of a world have none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from millpond.actors.errors import SequenceMismatch, StorageFailed, UnknownStream
from millpond.actors.messages import (
    Batch,
    Failed,
    Port,
    Reply,
    StreamFailed,
    StreamRequest,
)
from millpond.actors.streams.durable.messages import CreateSpec, DurableCreate
from millpond.actors.streams.names import stream_cell, subscription_cell
from millpond.actors.subscriptions import messages as s
from millpond.node.testing.inline_threads import running_as_node
from tests.sim.nodes.client_events import Claimed, Settled, Settling, Subscribed
from tests.sim.nodes.events import Trouble
from tests.sim.nodes.plan import StreamPlan
from tests.sim.nodes.simulation import Simulation
from tests.sim.nodes.stream_clients import AGAIN_S, streams_of

ANSWER_S = 5.0
"""A reply that has not come by then has an unknown outcome: the node may have died."""
MAKER = s.Maker("http://world", None)


class _ReplyPort(Port):
    """Takes the reply to one request."""

    def __init__(self, received_at: float) -> None:
        self.number = 0
        self.received_at = received_at
        self.reply: Reply | None = None
        self.replied = anyio.Event()

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        self.reply = replies[-1]
        self.replied.set()

    def flush(self) -> None:
        pass


async def ask(sim: Simulation, node: str, cell: bytes, request: StreamRequest) -> Reply | None:
    """The reply of a cell; None: the node does not run, or its reply did not come."""
    if not sim.node(node).is_running:
        return None
    running = sim.node(node).node
    port = _ReplyPort(running.clock.now())
    with running_as_node():
        running.scheduler.submit(cell, Batch(port, [request]), port.received_at)
    with anyio.move_on_after(ANSWER_S):
        await port.replied.wait()
    return None if isinstance(port.reply, Failed | StreamFailed) else port.reply


@dataclass(frozen=True)
class _Names:
    """The names of a subscription."""

    stream: bytes
    wake: bytes
    cell: bytes


def names_of(plan: StreamPlan) -> _Names:
    """The names of the plan's subscription."""
    name = plan.name.encode()
    return _Names(name, b"wake-" + name, subscription_cell(b"sub-" + name))


class Subscriber:
    """A worker. It claims after an event, works for a while, acknowledges, or dies."""

    def __init__(self, sim: Simulation, plan: StreamPlan, number: int) -> None:
        self._sim = sim
        self._plan = plan
        self._who = f"w-{plan.name}-{number}"
        self._rng = sim.rng(self._who)
        self._names = names_of(plan)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._subscribe()
        position = 0
        async with streams_of(self._sim, self._plan.node, self._who) as streams:
            wake_stream = streams.stream(self._names.wake.decode())
            while True:
                try:
                    async for page in wake_stream.follow_pages(position):
                        position = page[-1].sequence + 1 if page else position
                        if page:
                            await self._claim()
                except UnknownStream:
                    await anyio.sleep(AGAIN_S)
                except (SequenceMismatch, StorageFailed):
                    if not any(isinstance(e, Trouble) for e in self._sim.seen):
                        raise
                    await anyio.sleep(AGAIN_S)

    async def _subscribe(self) -> None:
        plan, sim, names = self._plan, self._sim, self._names
        create = DurableCreate(0, CreateSpec(b"application/json", None, False, []))
        spec = s.SubscriptionSpec(
            s.SubscriptionKind.PULL_WAKE,
            names.stream if plan.is_pattern else None,
            () if plan.is_pattern else (names.stream,),
            None,
            names.wake,
            int(plan.lease_s * 1000),
            None,
        )
        while True:
            if await ask(sim, plan.node, stream_cell(names.wake), create) is not None:
                break
            await anyio.sleep(AGAIN_S)
        while True:
            asked_at = sim.now
            reply = await ask(sim, plan.node, names.cell, s.PutSubscription(0, spec, MAKER))
            if isinstance(reply, s.SubscriptionDescribed):
                acked = {each.path: each.acked for each in reply.links}.get(names.stream, 0)
                sim.record(Subscribed(sim.now, self._who, plan.name, asked_at, acked))
                return
            assert reply is None, f"{reply} refuses a subscription that everybody wants"
            await anyio.sleep(AGAIN_S)

    async def _claim(self) -> None:
        """Take the lease, and do the work; or learn that there is none, or that it is another's."""
        plan, sim, names = self._plan, self._sim, self._names
        while True:
            asked_at = sim.now
            claim = s.ClaimWake(0, worker=self._who)
            reply = await ask(sim, plan.node, names.cell, claim)
            if isinstance(reply, s.SubscriptionRefused):
                return
            if isinstance(reply, s.WakeClaimed):
                break
            # The lease may be this worker's without its knowing: it ends by itself.
            await anyio.sleep(AGAIN_S)
        link = {each.path: each for each in reply.links}.get(names.stream)
        acked, tail = (max(link.acked, 0), link.tail) if link is not None else (0, 0)
        place = plan.name, reply.generation
        sim.record(Claimed(sim.now, self._who, *place, asked_at, acked, tail))
        await self._work(reply, tail)

    async def _work(self, wake: s.WakeClaimed, tail: int) -> None:
        plan, sim, rng = self._plan, self._sim, self._rng
        is_good = sim.is_calm or rng.random() < 0.7
        await anyio.sleep(rng.uniform(0.0, plan.lease_s * (0.5 if is_good else 2.0)))
        if not is_good and rng.random() < 0.3:
            return  # it dies: its lease runs out
        position = tail if is_good else rng.randint(0, tail)
        acks = (s.StreamAck(self._names.stream, position),) if tail else ()
        action = s.WakeAction.ACK if is_good or rng.random() < 0.7 else s.WakeAction.RELEASE
        is_done = action is s.WakeAction.ACK and (is_good or rng.random() < 0.5)
        settle = s.SettleWake(0, action, wake.token, wake.wake_id, wake.generation, acks, is_done)
        told = plan.name, wake.generation, position if action is s.WakeAction.ACK else 0
        sim.record(Settling(sim.now, self._who, *told, is_done or action is s.WakeAction.RELEASE))
        while True:
            reply = await ask(sim, plan.node, self._names.cell, settle)
            if isinstance(reply, s.WakeSettled):
                sim.record(Settled(sim.now, self._who, *told))
            if reply is not None:
                return
            await anyio.sleep(AGAIN_S)


async def is_settled(sim: Simulation, plan: StreamPlan) -> bool:
    """True: the subscription has nothing that is not acknowledged."""
    reply = await ask(sim, plan.node, names_of(plan).cell, s.DescribeSubscription(0))
    if not isinstance(reply, s.SubscriptionDescribed):
        return False
    return not any(each.has_pending for each in reply.links)

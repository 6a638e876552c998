"""Producers and consumers of channels, with their habits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import anyio
import anyio.lowlevel

from millpond.actors.errors import LeaseLost, NotFound, RequestError
from millpond.actors.messages import Mode
from millpond.node.client.channel import Channel, Message
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.events import Disconnected, Event, Retrying
from millpond.node.client.retry import RETRYABLE
from millpond.node.client.settings import ConnectSettings
from tests.sim.nodes import client_events as ce
from tests.sim.nodes.client_events import Acked, Got, Putting, Receipt
from tests.sim.nodes.plan import ChannelPlan, ConsumerPlan, ProducerPlan
from tests.sim.nodes.simulation import Simulation

FOREVER_S = 1e6
AGAIN_S = 0.5
BATCH_S = 0.5
STABLE_S = 10.0
"""A connection that stood longer than this forgets the failures before it."""
TOUCH_S = 200.0
"""A touch is answered, or refused, or its connection ends: long before this."""


@asynccontextmanager
async def joined(
    sim: Simulation, node: str, channel: str, who: str, known: bool = False, **options: Any
) -> AsyncIterator[Channel]:
    """A channel of a node that is there sooner or later."""
    failures = 0

    def tell(event: Event) -> None:
        nonlocal failures
        match event:
            case Disconnected(lived_s=lived_s) if lived_s > STABLE_S:
                failures = 0
            case Retrying(delay_s=delay_s):
                sim.record(ce.Retrying(sim.now, who, node, channel, delay_s, failures))
                failures += 1
            case _:
                pass

    if known:
        options["identity"] = sim.identity(who)
        options["on_peer"] = lambda peer: None
    async with sim.node(node).connect(
        channel,
        who=who,
        wait_s=FOREVER_S,
        settings=ConnectSettings(keep_alive_s=20.0),
        on_event=tell,
        **options,
    ) as found:
        yield found


class Producer:
    """A producer: it puts each message until it is kept."""

    def __init__(self, sim: Simulation, channel: ChannelPlan, plan: ProducerPlan) -> None:
        self._sim = sim
        self._address = channel.node, channel.name
        self._plan = plan
        self._rng = sim.rng(plan.who)
        self._sent: list[tuple[bytes, int, int]] = []

    async def run(self) -> None:
        """Put all messages of the plan."""
        plan, sim = self._plan, self._sim
        async with sim.finishing(plan.who):
            way = joined(sim, *self._address, plan.who, plan.known, role="producer")
            async with way as channel:
                number = 0
                while number < plan.count:
                    burst = range(number, min(number + plan.burst, plan.count))
                    await self._put(channel, [self._message(each) for each in burst])
                    number = burst.stop
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))

    async def put_one(self, channel: Channel, number: int) -> None:
        """One more, over a channel that somebody else has joined."""
        async with self._sim.finishing(f"{self._plan.who} {number}"):
            await self._put(channel, [self._message(number)])

    def _message(self, number: int) -> tuple[bytes, int, int]:
        size = self._rng.choice(self._plan.sizes)
        data = f"{self._address[1]}/{self._plan.who}/{number}/".encode() + b"x" * size
        return data, self._rng.choice(self._plan.ttls), self._rng.getrandbits(32)

    async def _put(self, channel: Channel, messages: list[tuple[bytes, int, int]]) -> None:
        for data, _, key in messages:
            self._sim.record(Putting(self._sim.now, self._plan.who, *self._address, data, key))
        answers = [channel.put_nowait(data, ttl=ttl, key=key) for data, ttl, key in messages]
        for answer, message in zip(answers, messages, strict=True):
            try:
                self._told(message, (await answer).id)
            except RETRYABLE:
                await self._until_kept(channel, message)
        self._sent += messages
        if self._rng.random() < self._plan.again:
            # Perhaps one of long ago: its key is known longer than any world lasts.
            await self._until_kept(channel, self._rng.choice(self._sent))

    async def _until_kept(self, channel: Channel, message: tuple[bytes, int, int]) -> None:
        data, ttl, key = message
        while True:
            try:
                receipt = await channel.put(data, ttl=ttl, key=key)
            except RETRYABLE:
                await anyio.sleep(AGAIN_S)
            else:
                self._told(message, receipt.id)
                return

    def _told(self, message: tuple[bytes, int, int], id: int) -> None:
        data, _, key = message
        sim = self._sim
        sim.record(Receipt(sim.now, self._plan.who, *self._address, data, key, id))


class Consumer:
    """A consumer with habits; once the simulation is calm, a good one."""

    def __init__(self, sim: Simulation, channel: ChannelPlan, plan: ConsumerPlan) -> None:
        self._sim = sim
        self._is_queue = channel.mode is Mode.QUEUE
        self._address = channel.node, channel.name
        self._plan = plan
        self._habits = plan.habits
        self._rng: Random = sim.rng(plan.who)
        own = ProducerPlan(plan.who, 0, 0.0, 1, (0,), 0.0, plan.known)
        self._producer = Producer(sim, channel, own) if plan.habits.puts else None
        self._puts = 0

    async def run(self) -> None:
        """Until cancelled."""
        plan = self._plan
        window = 0 if plan.credits else plan.window
        role = "worker" if self._is_queue and plan.window == 1 else "consumer"
        if self._producer is not None:
            role = "both"
        while True:
            way = joined(self._sim, *self._address, plan.who, plan.known, role=role, window=window)
            async with way as channel:
                if plan.credits:
                    await self._begin(channel)
                while await self._take(channel):
                    pass
            await anyio.sleep(self._rng.choice((0.0, 1.0)))

    async def _begin(self, channel: Channel) -> None:
        await channel.credit(self._plan.window)

    async def _take(self, channel: Channel) -> bool:
        """One batch; false: leave now."""
        messages = await self._batch(channel)
        think_s = 0.0 if self._sim.is_calm else self._habits.think_s
        if think_s:
            await anyio.sleep(self._rng.uniform(0.0, think_s))
        self._rng.shuffle(messages)
        for message in messages:
            if not await self._treat(channel, message):
                return False
        return True

    async def _batch(self, channel: Channel) -> list[Message]:
        messages = [await self._next(channel)]
        with anyio.move_on_after(BATCH_S):
            while len(messages) < self._habits.batch:
                messages.append(await self._next(channel))
        return messages

    async def _next(self, channel: Channel) -> Message:
        message = await channel.receive()
        sim = self._sim
        seen = (sim.now, self._plan.who, *self._address)
        sim.record(Got(*seen, message.id, message.attempt, message.data))
        return message

    async def _treat(self, channel: Channel, message: Message) -> bool:
        habits, rng = self._habits, self._rng
        if self._sim.is_calm:
            await self._ack(message)
            return True
        if self._producer is not None and rng.random() < habits.puts:
            for _ in range(rng.choice((1, 1, 4))):
                self._puts += 1
                await self._producer.put_one(channel, self._puts)
        if rng.random() < habits.touches:
            await self._touch(message)
        chance = rng.random()
        for share, what in (
            (habits.nacks, "nack"),
            (habits.rejects, "reject"),
            (habits.sleeps, "sleep"),
            (habits.hangs_up, "leave"),
            (habits.dies, "die"),
        ):
            chance -= share
            if chance < 0:
                return await self._misbehave(message, what)
        await self._ack(message)
        return True

    async def _misbehave(self, message: Message, what: str) -> bool:
        match what:
            case "nack":
                await message.nack(self._habits.delay_s or None)
            case "reject" if self._is_queue:
                await message.nack(reject=True)
            case "leave":
                return False
            case "die":
                await self._die(message)
                return False
            case _:
                pass
        return True

    async def _ack(self, message: Message) -> None:
        sim = self._sim
        await message.ack()
        sim.record(Acked(sim.now, self._plan.who, *self._address, message.id))
        await sim.oversleep(self._rng)

    async def _die(self, message: Message) -> None:
        """Lose the connection during a TOUCH: the caller must get an error."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._extend, message, 1.0)
            await anyio.lowlevel.checkpoint()
            self._sim.world.reset(self._plan.who)

    async def _extend(self, message: Message, seconds: float) -> bool:
        with anyio.fail_after(TOUCH_S):
            try:
                await message.touch(seconds)
            except (LeaseLost, ConnectionLost, RequestError):
                return False
        return True

    async def _touch(self, message: Message) -> None:
        seconds = self._rng.choice((0.5, 3.0, 12.0))
        if not await self._extend(message, seconds):
            return
        await anyio.sleep(self._rng.uniform(0.0, seconds))


async def drain(sim: Simulation, node: str, channel: str, who: str) -> None:
    """Take everything that is there and comes, until cancelled."""
    async with joined(sim, node, channel, who, role="consumer") as found:
        async for message in found:
            seen = (message.id, message.attempt, message.data)
            sim.record(Got(sim.now, who, node, channel, *seen))
            await message.ack()
            sim.record(Acked(sim.now, who, node, channel, message.id))


async def inspect_once(found: Channel, rng: Random) -> None:
    """List the channel and get one of its messages."""
    with suppress(*RETRYABLE, NotFound):
        ids = await found.list()
        if ids:
            await found.get(rng.choice(ids))


async def inspect(sim: Simulation, channel: ChannelPlan) -> None:
    """LIST now and then, and GET one of the messages, until cancelled."""
    who = f"watcher-{channel.name}"
    rng = sim.rng(who)
    way = joined(sim, channel.node, channel.name, who, role="consumer", window=0)
    async with way as found:
        while True:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(inspect_once, found, rng)
                await sim.oversleep(rng)
            await anyio.sleep(rng.uniform(0.3, 3.0))

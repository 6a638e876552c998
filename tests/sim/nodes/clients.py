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
from tests.sim.nodes import notes as n
from tests.sim.nodes.notes import Acked, Got, Putting, Receipt
from tests.sim.nodes.plan import ChannelPlan, ConsumerPlan, ProducerPlan
from tests.sim.nodes.stage import Stage

FOREVER_S = 1e6
AGAIN_S = 0.5
BATCH_S = 0.5
STABLE_S = 10.0
"""A connection that stood longer than this forgets the failures before it."""
TOUCH_S = 200.0
"""A touch is answered, or refused, or its connection ends: long before this."""


@asynccontextmanager
async def joined(
    stage: Stage, node: str, channel: str, who: str, known: bool = False, **options: Any
) -> AsyncIterator[Channel]:
    """A channel of a node that is there sooner or later."""
    failures = 0

    def tell(event: Event) -> None:
        nonlocal failures
        match event:
            case Disconnected(lived_s=lived_s) if lived_s > STABLE_S:
                failures = 0
            case Retrying(delay_s=delay_s):
                stage.note(n.Retrying(stage.now, who, node, channel, delay_s, failures))
                failures += 1
            case _:
                pass

    if known:
        options["identity"] = stage.identity(who)
        options["on_peer"] = lambda peer: None
    async with stage.node(node).connect(
        channel, who=who, wait_s=FOREVER_S, keep_alive_s=20.0, on_event=tell, **options
    ) as found:
        yield found


class Producer:
    """Puts messages, each until it is kept."""

    def __init__(self, stage: Stage, channel: ChannelPlan, plan: ProducerPlan) -> None:
        self._stage = stage
        self._place = channel.node, channel.name
        self._plan = plan
        self._rng = stage.rng(plan.who)
        self._sent: list[tuple[bytes, int, int]] = []

    async def run(self) -> None:
        """All of them."""
        plan, stage = self._plan, self._stage
        async with stage.finishing(plan.who):
            way = joined(stage, *self._place, plan.who, plan.known, role="producer")
            async with way as channel:
                number = 0
                while number < plan.count:
                    burst = range(number, min(number + plan.burst, plan.count))
                    await self._put(channel, [self._message(each) for each in burst])
                    number = burst.stop
                    await anyio.sleep(self._rng.uniform(0.0, plan.gap_s))

    async def put_one(self, channel: Channel, number: int) -> None:
        """One more, over a channel that somebody else has joined."""
        async with self._stage.finishing(f"{self._plan.who} {number}"):
            await self._put(channel, [self._message(number)])

    def _message(self, number: int) -> tuple[bytes, int, int]:
        size = self._rng.choice(self._plan.sizes)
        data = f"{self._place[1]}/{self._plan.who}/{number}/".encode() + b"x" * size
        return data, self._rng.choice(self._plan.ttls), self._rng.getrandbits(32)

    async def _put(self, channel: Channel, messages: list[tuple[bytes, int, int]]) -> None:
        for data, _, key in messages:
            self._stage.note(Putting(self._stage.now, self._plan.who, *self._place, data, key))
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
        stage = self._stage
        stage.note(Receipt(stage.now, self._plan.who, *self._place, data, key, id))


class Consumer:
    """Takes messages as its habits are; once the stage is calm, as it should."""

    def __init__(self, stage: Stage, channel: ChannelPlan, plan: ConsumerPlan) -> None:
        self._stage = stage
        self._is_queue = channel.mode is Mode.QUEUE
        self._place = channel.node, channel.name
        self._plan = plan
        self._habits = plan.habits
        self._rng: Random = stage.rng(plan.who)
        own = ProducerPlan(plan.who, 0, 0.0, 1, (0,), 0.0, plan.known)
        self._producer = Producer(stage, channel, own) if plan.habits.puts else None
        self._puts = 0

    async def run(self) -> None:
        """Until cancelled."""
        plan = self._plan
        window = 0 if plan.credits else plan.window
        role = "worker" if self._is_queue and plan.window == 1 else "consumer"
        if self._producer is not None:
            role = "both"
        while True:
            way = joined(self._stage, *self._place, plan.who, plan.known, role=role, window=window)
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
        think_s = 0.0 if self._stage.is_calm else self._habits.think_s
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
        stage = self._stage
        place = (stage.now, self._plan.who, *self._place)
        stage.note(Got(*place, message.id, message.attempt, message.data))
        return message

    async def _treat(self, channel: Channel, message: Message) -> bool:
        habits, rng = self._habits, self._rng
        if self._stage.is_calm:
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
        stage = self._stage
        await message.ack()
        stage.note(Acked(stage.now, self._plan.who, *self._place, message.id))
        await stage.doze(self._rng)

    async def _die(self, message: Message) -> None:
        """In the middle of asking for more time: who asks must be told so, on whatever is left."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask, message, 1.0)
            await anyio.lowlevel.checkpoint()
            self._stage.world.reset(self._plan.who)

    async def _ask(self, message: Message, seconds: float) -> bool:
        with anyio.fail_after(TOUCH_S):
            try:
                await message.touch(seconds)
            except (LeaseLost, ConnectionLost, RequestError):
                return False
        return True

    async def _touch(self, message: Message) -> None:
        seconds = self._rng.choice((0.5, 3.0, 12.0))
        if not await self._ask(message, seconds):
            return
        await anyio.sleep(self._rng.uniform(0.0, seconds))


async def drain(stage: Stage, node: str, channel: str, who: str) -> None:
    """Take everything that is there and comes, until cancelled."""
    async with joined(stage, node, channel, who, role="consumer") as found:
        async for message in found:
            seen = (message.id, message.attempt, message.data)
            stage.note(Got(stage.now, who, node, channel, *seen))
            await message.ack()
            stage.note(Acked(stage.now, who, node, channel, message.id))


async def look(found: Channel, rng: Random) -> None:
    """Once."""
    with suppress(*RETRYABLE, NotFound):
        ids = await found.list()
        if ids:
            await found.get(rng.choice(ids))


async def watch(stage: Stage, channel: ChannelPlan) -> None:
    """Look now and then what there is, and at some of it, until cancelled."""
    who = f"watcher-{channel.name}"
    rng = stage.rng(who)
    way = joined(stage, channel.node, channel.name, who, role="consumer", window=0)
    async with way as found:
        while True:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(look, found, rng)
                await stage.doze(rng)
            await anyio.sleep(rng.uniform(0.3, 3.0))

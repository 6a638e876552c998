"""Worlds in which two nodes reach one another by way of a hostile relay alone.

The relay (`hostile_relay`) does what it likes with their messages and prekeys, and sends messages
of its own, also as strangers, while the two stop and crash, for minutes or for days. A message is
read at most once, by whom it was sent to, in a channel that its sender may use; so is a text of
their chat (`hostile_chats`). A stranger is read in the chat alone, and once it was accepted. When
the relay has become honest, each message is read, or refused or expired at its sender; nothing is
kept for ever. Before a long absence a node may be killed when it has accepted a message that is in
no channel yet, and whose deadline is later than the node's own limit for messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import anyio

from millpond.actors.errors import RequestError
from millpond.actors.messages import Durability, Put
from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.chat.reorder import GAP_WAIT_S
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.inbound import INSERT_RECORD
from millpond.node.outbox.key_exchange import note_version
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.peers.one_time_prekeys import HELD_MAX
from millpond.node.peers.peer_store import CHANNELS_MAX, Statement
from millpond.node.testing.sealed_messages import SealedMessage
from millpond.testing import NotRunning, SimNode, World
from tests.sim.nodes import hostile_chats
from tests.sim.nodes.hostile_chats import Chats
from tests.sim.nodes.hostile_relay import (
    LATE_S,
    NAME,
    STRANGE,
    TEXTS_MAX,
    WEEK_S,
    HostileRelay,
)
from tests.sim.nodes.livelock import CountingLoop

LETTERBOX = "letterbox"
PERSONS = ("alice", "bob")
ALLOWED = "notes"
DENIED = "jobs-pay"
CHANNELS = (ALLOWED, DENIED)
MANY = tuple(f"room-{number}" for number in range(CHANNELS_MAX + 6))
"""More channels than one sender may use at a time."""
HALTS = ("stop", "crash", "power")
SEND_S = 30.0
READ_S = 30.0
AGAIN_S = 1.0
DOWN_S = (0.0, 5.0, 60.0, 1000.0)
"""How long a node is down. Idempotency keys do not outlive the last one."""
NIGHTS_S = (26 * 3600.0, 10 * 86_400.0)
"""How long all nodes are down: a prekey is replaced meanwhile, or destroyed."""
TTLS = (0, 0, 0, 30, 120)
MONTH_S = 30 * 86_400
"""The longest life of the messages of a patient sender; those of others live for a week."""
CALM_S = 14 * 3600.0
"""Everything has come to its end so long after the relay has become honest."""


@dataclass
class Sent:
    """A message that a node has accepted, or may have (`is_sure` is False)."""

    source: str
    target: str
    channel: str
    deadline: float
    is_sure: bool = False
    uuid: bytes = b""
    read: set[int] = field(default_factory=set)
    """Its ids in the channel in which it was read."""


@dataclass
class Messages:
    """The messages of a world by their clear text, and the reports of their senders by uuid."""

    sent: dict[bytes, Sent] = field(default_factory=dict)
    reports: dict[bytes, list[DeliveryStatus]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    morning: anyio.Event = field(default_factory=anyio.Event)
    """Set while nodes run or are down for a short time."""

    def status(self, message: Sent) -> DeliveryStatus | None:
        """The last status that its sender was told."""
        found = self.reports.get(message.uuid)
        return found[-1] if found else None


def live(seed: int, folder: Path) -> Counter[str]:
    """A world of a seed, from beginning to end, and what happened in it. Raises AssertionError for
    a broken promise."""
    counts: Counter[str] = Counter()
    anyio.run(_live, seed, folder, counts, backend_options={"loop_factory": CountingLoop})
    return counts


@dataclass(frozen=True)
class Plan:
    """The properties of a world. `fetchers` fetch messages as well; `night_s`: how long all nodes
    are down between two parts of it, 0: not at all. `is_interrupted`: before that the second person
    is killed while a message of the first, who is patient, is on its way into its channel.
    `has_many_channels`: each has used all the channels that one sender may have, and uses more."""

    is_open: bool
    repeats_all: bool
    fetchers: frozenset[str]
    are_chatting: bool
    has_requests: bool
    night_s: float
    is_interrupted: bool
    has_many_channels: bool

    @classmethod
    def of(cls, world: World) -> Plan:
        """The plan of a seed."""
        rng, seed = world.rng("plan"), world.seed
        plan = cls(
            is_open=seed % 4 == 0,
            repeats_all=seed % 4 == 1,
            fetchers=frozenset(each for each in PERSONS if rng.random() < 0.4),
            are_chatting=rng.random() < 0.5,
            has_requests=rng.random() < 0.5,
            night_s=rng.choice(NIGHTS_S) if rng.random() < 0.15 else 0.0,
            is_interrupted=rng.random() < 0.75,
            has_many_channels=rng.random() < 0.1,
        )
        return replace(plan, is_interrupted=plan.is_interrupted and plan.night_s > 0)


async def _live(seed: int, folder: Path, counts: Counter[str]) -> None:
    messages, chats = Messages(counts=counts), Chats(counts)
    messages.morning.set()
    async with World(seed, folder=folder, threads=False, timeout_s=240) as world:
        plan = Plan.of(world)
        relay = await world.node(NAME, relay=True, durability=Durability.OS)
        letterbox = None
        if plan.fetchers:
            letterbox = await world.node(LETTERBOX, relay=True, durability=Durability.OS)
        persons = [await _person(world, folder, name, plan) for name in PERSONS]
        await _introduce(persons, relay, letterbox, plan)
        fetchers = {each.public for each in persons if each.name in plan.fetchers}
        hostile = HostileRelay(world, relay, letterbox, persons, fetchers, counts)
        async with anyio.create_task_group() as tasks:
            for each in persons:
                _listen(each, messages)
                for channel in CHANNELS:
                    tasks.start_soon(_read, each, channel, messages, plan.is_open)
                if plan.has_many_channels:
                    tasks.start_soon(_read_many, each, messages)
                if plan.has_requests:
                    rng = world.rng(f"operator of {each.name}")
                    tasks.start_soon(hostile_chats.operate, each, rng, chats)
            if plan.has_many_channels:
                for one, other in (persons, persons[::-1]):
                    await _use_many(world, one, other, messages)
            await _day(world, hostile, persons, plan, messages, chats, "first")
            if plan.night_s:
                await world.clock.sleep(LATE_S)
                messages.morning = anyio.Event()
                if plan.is_interrupted:
                    await _interrupt(world, *persons, messages)
                nodes = [*persons, relay, *([letterbox] if letterbox else [])]
                await _sleep(world, nodes, plan, messages)
                await _day(world, hostile, persons, plan, messages, chats, "second")
            async with anyio.create_task_group() as others:
                await others.start(hostile.run)
                hostile.become_honest()
                chats.is_over = True
                await _wait_for_the_end(world, persons)
                others.cancel_scope.cancel()
            tasks.cancel_scope.cancel()
        now = world.clock.now()
        _count_one_time(persons, counts)
        for problem in _problems(messages, plan.is_open, now):
            raise AssertionError(problem)
        strangers = [each.identity.public for each in hostile.strangers]
        for problem in await hostile_chats.problems(persons, strangers, chats, now):
            raise AssertionError(problem)


async def _day(
    world: World,
    hostile: HostileRelay,
    persons: list[SimNode],
    plan: Plan,
    messages: Messages,
    chats: Chats,
    day: str,
) -> None:
    """The two send and stop, while the relay is hostile."""
    async with anyio.create_task_group() as others:
        await others.start(hostile.run)
        async with anyio.create_task_group() as lives:
            for one, other in (persons, reversed(persons)):
                lives.start_soon(_write, world, one, other, plan, messages, day)
                if plan.are_chatting:
                    lives.start_soon(_chat, world, one, other, chats, day)
        if plan.repeats_all:
            await hostile.repeat_all()
        others.cancel_scope.cancel()


async def _sleep(world: World, nodes: list[SimNode], plan: Plan, messages: Messages) -> None:
    """All nodes are down for long. Time costs little then."""
    for each in nodes:
        await each.stop()
    await world.clock.sleep(plan.night_s)
    for each in reversed(nodes):
        await each.start()
        if each.name in PERSONS:
            _listen(each, messages)
    messages.morning.set()


async def _interrupt(world: World, one: SimNode, other: SimNode, messages: Messages) -> None:
    """A message of the first node reaches the other one at once. It is killed when it has accepted
    the message, and before that is in its channel."""
    rng = world.rng("interrupted")
    is_killed = anyio.Event()
    store = other.node.outbox.context.store
    commit = store._commit

    def commit_and_die(statements: Iterable[Statement]) -> None:
        if is_killed.is_set():
            return  # its process is gone
        commit(statements)
        if any(text == INSERT_RECORD for text, _ in statements):
            other.node.kill()
            is_killed.set()

    store._commit = commit_and_die
    await _hand_over(world, one, other, ALLOWED, "interrupted", messages)
    await is_killed.wait()
    await other.crash(power=rng.random() < 0.5)
    messages.counts["interrupted"] += 1


async def _hand_over(
    world: World, one: SimNode, other: SimNode, channel: str, text: str, messages: Messages
) -> None:
    """Send a message, and put it into the mailbox of the other node at once."""
    mailbox, key = mailbox_of(other.public), world.rng(text).getrandbits(32)
    data = f"{one.name}/{text}".encode()
    queued = await one.send(other, channel, data)
    deadline = world.clock.now() + one.config.peer_ttl_s
    messages.sent[data] = Sent(one.name, other.name, channel, deadline, True, queued.uuid)
    relayed = await one.node.outbox.context.local.get(mailbox, queued.id)
    other.node.outbox.context.local.put_nowait(mailbox, Put(key, WEEK_S, relayed))


async def _use_many(world: World, one: SimNode, other: SimNode, messages: Messages) -> None:
    """Send a message to each of so many channels as one sender may use, and wait until all are
    read."""
    first = MANY[:CHANNELS_MAX]
    for channel in first:
        await _hand_over(world, one, other, channel, channel, messages)
    with anyio.fail_after(CALM_S):
        while not all(messages.sent[f"{one.name}/{each}".encode()].read for each in first):
            await world.clock.sleep(AGAIN_S)
    messages.counts["used all channels"] += 1


async def _introduce(
    persons: list[SimNode], relay: SimNode, letterbox: SimNode | None, plan: Plan
) -> None:
    for one, other in (persons, reversed(persons)):
        one.add_peer(relay)
        relay.add_peer(one, dials=False)
        one.add_peer(other, dials=False, relays=[relay])
        key = other.node.peer_services.keyring.prekeys.current()
        await note_version(one.node.outbox.context, other.public, key)  # its card shows that
        if letterbox is not None and one.name in plan.fetchers:
            one.add_peer(letterbox)
            letterbox.add_peer(one, dials=False)


async def _person(world: World, folder: Path, name: str, plan: Plan) -> SimNode:
    """A node of which a peer may write to one channel and the rooms, if it is not open for all. The
    first one may be patient."""
    (other,) = (each for each in PERSONS if each != name)
    rules = folder / name / ACCESS_FILE
    rules.parent.mkdir()
    rules.write_text(f"key:{other} put {ALLOWED}\nkey:{other} put room-*\n")
    rules.chmod(0o600)
    ttl_s = MONTH_S if plan.is_interrupted and name == PERSONS[0] else WEEK_S
    return await world.node(
        name,
        ttl_max_s=ttl_s,
        peer_ttl_s=ttl_s,
        peer_channels=("*",) if plan.is_open else (),
        via=(LETTERBOX,) if name in plan.fetchers else (),
        message_requests=plan.has_requests,
        durability=Durability.DISK,
    )


def _listen(person: SimNode, messages: Messages) -> None:
    """Record what the running node says of its messages."""

    async def record(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        for uuid in uuids:
            messages.reports.setdefault(uuid, []).append(status)

    person.node.outbox.on_status(record)


async def _chat(world: World, person: SimNode, other: SimNode, chats: Chats, day: str) -> None:
    rng = world.rng(f"chat of {person.name}")
    for number in range(rng.randint(1, 6)):
        text = f"{person.name} says {number} on the {day} day"
        await hostile_chats.say(person, other, text, world.clock.now(), chats)
        await anyio.sleep(rng.choice((0.0, 1.0, 30.0)))


async def _write(
    world: World, person: SimNode, other: SimNode, plan: Plan, messages: Messages, day: str
) -> None:
    """Send messages, and stop or crash now and then."""
    rng = world.rng(f"life of {person.name}")
    for number in range(rng.randint(2, 8)):
        data = f"{person.name}/{day}/{number}".encode()
        channel = DENIED if rng.random() < 0.15 else ALLOWED
        if plan.has_many_channels and rng.random() < 0.75:
            channel = rng.choice(MANY)
        await _send(world, person, other, channel, data, messages, rng)
        if rng.random() < 0.5:
            await anyio.sleep(rng.choice((0.0, 1.0, 5.0, 30.0)))
        if rng.random() < 0.25:
            await _halt(person, rng, messages)


async def _send(
    world: World,
    person: SimNode,
    other: SimNode,
    channel: str,
    data: bytes,
    messages: Messages,
    rng: Random,
) -> None:
    ttl = rng.choice(TTLS)
    deadline = world.clock.now() + (ttl or person.config.peer_ttl_s)
    message = messages.sent[data] = Sent(person.name, other.name, channel, deadline)
    try:
        with anyio.move_on_after(SEND_S):
            queued = await person.send(other, channel, data, ttl=ttl)
            message.uuid, message.is_sure = queued.uuid, True
    except (NotRunning, RequestError) as error:
        messages.counts[f"not sent: {type(error).__name__}"] += 1


async def _halt(person: SimNode, rng: Random, messages: Messages) -> None:
    how = rng.choice(HALTS)
    messages.counts[how] += 1
    if how == "stop":
        await person.stop()
    else:
        await person.crash(power=how == "power")
    down_s = rng.choice(DOWN_S)
    messages.counts[f"down for {down_s:g} s"] += 1
    await anyio.sleep(down_s)
    await person.start()
    _listen(person, messages)


async def _read(person: SimNode, channel: str, messages: Messages, is_open: bool) -> None:
    """Read all messages of a channel until cancelled, and check that each may be there."""
    while True:
        try:
            found = await person.read(channel, timeout_s=READ_S)
        except (NotRunning, RequestError):
            await messages.morning.wait()
            await anyio.sleep(AGAIN_S)
        except TimeoutError:
            continue
        else:
            if found.data == STRANGE and is_open:  # of one that was accepted
                assert found.sender.startswith("stranger"), f"{found.sender} is in {channel!r}"
                continue
            assert is_open or channel != DENIED, f"{found.data!r} is in {channel!r}"
            _note_read(person, channel, found, messages)


async def _read_many(person: SimNode, messages: Messages) -> None:
    """Read the rooms in turn, where there is something to read."""
    while True:
        try:
            local = person.node.outbox.context.local
            for channel in MANY:
                while local.count(channel.encode()):
                    found = await person.read(channel, timeout_s=READ_S)
                    if found.data != STRANGE:
                        _note_read(person, channel, found, messages)
        except (NotRunning, RequestError, TimeoutError):
            await messages.morning.wait()
        await anyio.sleep(READ_S)


def _note_read(person: SimNode, channel: str, found: SealedMessage, messages: Messages) -> None:
    message = messages.sent.get(found.data)
    assert message is not None, f"{found.data!r} was never sent"
    source, target = message.source, message.target
    assert (source, target, message.channel) == (found.sender, person.name, channel)
    message.read.add(found.id)


async def _wait_for_the_end(world: World, persons: list[SimNode]) -> None:
    """Wait until no node keeps a message without a receipt or a key, and all is read."""
    with anyio.fail_after(CALM_S):
        while True:
            pairs = (persons, persons[::-1])
            waits = [one.node.outbox.unconfirmed(other.public) > 0 for one, other in pairs]
            waits += [await hostile_chats.has_waiting(one, other) for one, other in pairs]
            if not any(waits):
                break
            await world.clock.sleep(10.0)
    await world.clock.sleep(LATE_S + READ_S + TEXTS_MAX * GAP_WAIT_S)


def _count_one_time(persons: list[SimNode], counts: Counter[str]) -> None:
    """Count the nodes that have destroyed private halves of one-time prekeys. None is left of a
    message that is in its channel."""
    for each in persons:
        one_time = each.node.outbox.context.one_time
        used = [slot.mailbox_id for _, slot in one_time._slots.values() if slot.mailbox_id]
        assert not used, f"{each.name} has the keys of {used}"
        relays = Counter(slot.relay for _, slot in one_time._slots.values())
        counts["destroyed a one-time key"] += len(one_time._free) > 0
        assert all(found <= HELD_MAX for found in relays.values()), relays


def _problems(messages: Messages, is_open: bool, now: float) -> Iterator[str]:
    for name in PERSONS:
        used = {
            each.channel for each in messages.sent.values() if each.source == name and each.read
        }
        messages.counts["used a 65th channel"] += len(used) > CHANNELS_MAX
    for data, message in messages.sent.items():
        status = messages.status(message)
        messages.counts["read" if message.read else "not read"] += 1
        if len(message.read) > 1:
            yield f"{data!r} is read {len(message.read)} times: {message}"
        if not message.is_sure:
            continue
        messages.counts[str(status)] += 1
        is_allowed = is_open or message.channel != DENIED
        match status:
            case DeliveryStatus.DELIVERED if message.read or message.deadline < now:
                pass  # else it has expired in its channel, while its reader was down
            case DeliveryStatus.REFUSED if not is_allowed:
                pass
            case DeliveryStatus.EXPIRED:
                pass
            case _:
                yield f"{data!r} is {status} in the end: {message}"

"""Worlds in which three members of a group reach one another by way of a hostile relay alone.

The relay (`hostile_relay`) is honest until all three take part. Then it drops, delays, reorders,
repeats, alters and misdirects what they send, while they write, stop and crash, and in half of the
worlds the founder removes a member. No member is shown a text twice, out of its author's order, or
of somebody who has not written it. A removed member is shown nothing that was written where its
removal was known, and nothing that it writes later is shown there. When the relay has become
honest, each text is shown to all members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from random import Random
from typing import Any

import anyio

from millpond.actors.errors import UnknownStream
from millpond.actors.messages import Durability
from millpond.node.chat.groups.group_task import group_stream
from millpond.node.chat.records import Kind, Record, decode_record
from millpond.node.chat.reorder import GAP_WAIT_S
from millpond.node.outbox.key_exchange import note_version
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.identity import peer_id, public_key_of
from millpond.testing import SimNode, World
from tests.sim.nodes.hostile_chats import FAILED, ask
from tests.sim.nodes.hostile_relay import LATE_S, NAME, WEEK_S, HostileRelay
from tests.sim.nodes.livelock import CountingLoop

MEMBERS = ("alice", "bob", "carol")
REMOVED = "carol"
TEXTS_MAX = 6
HALTS = ("stop", "crash", "power")
DOWN_S = (0.0, 5.0, 60.0, 1000.0)
AGAIN_S = 1.0
LOOK_S = 10.0
CALM_S = 14 * 3600.0
"""Everything has come to its end so long after the relay has become honest."""


@dataclass
class GroupText:
    """A text that a node has accepted, or may have (`is_sure` is False). `without`: its author knew
    that the third member is removed."""

    author: str
    at: float
    is_sure: bool = False
    without: bool = False


@dataclass
class Group:
    """The group of a world. `removed_at`: its founder has begun to remove a member; `is_removed`:
    the founder's node has said that it is done."""

    counts: Counter[str]
    id: str = ""
    removed: str = ""
    """The id of the member that may be removed."""
    texts: dict[str, GroupText] = field(default_factory=dict)
    removed_at: float | None = None
    is_removed: bool = False


def live(seed: int, folder: Path) -> Counter[str]:
    """A world of a seed, from beginning to end, and what happened in it. Raises AssertionError for
    a broken promise."""
    counts: Counter[str] = Counter()
    anyio.run(_live, seed, folder, counts, backend_options={"loop_factory": CountingLoop})
    return counts


async def _live(seed: int, folder: Path, counts: Counter[str]) -> None:
    group = Group(counts)
    async with World(seed, folder=folder, threads=False, timeout_s=240) as world:
        relay = await world.node(NAME, relay=True, durability=Durability.OS)
        members = [await _member(world, name) for name in MEMBERS]
        await _introduce(members, relay)
        hostile = HostileRelay(world, relay, None, members, set(), counts)
        async with _relaying(hostile):
            hostile.become_honest()
            await _found(world, members, group)
        hostile.is_honest = False
        is_removed = seed % 2 == 1
        async with _relaying(hostile), anyio.create_task_group() as lives:
            for each in members:
                lives.start_soon(_write, world, each, group)
            if is_removed:
                lives.start_soon(_remove, world, members[0], group)
        async with _relaying(hostile):
            hostile.become_honest()
            await _wait_for_the_end(world, members, group)
        for problem in await _problems(members, group):
            raise AssertionError(problem)


@asynccontextmanager
async def _relaying(hostile: HostileRelay) -> AsyncIterator[None]:
    async with anyio.create_task_group() as tasks:
        await tasks.start(hostile.run)
        yield
        tasks.cancel_scope.cancel()


async def _member(world: World, name: str) -> SimNode:
    return await world.node(name, ttl_max_s=WEEK_S, peer_ttl_s=WEEK_S, durability=Durability.DISK)


async def _introduce(members: list[SimNode], relay: SimNode) -> None:
    for each in members:
        each.add_peer(relay)
        relay.add_peer(each, dials=False)
    for one, other in permutations(members, 2):
        one.add_peer(other, dials=False, relays=[relay])
        key = other.node.peer_services.keyring.prekeys.current()
        await note_version(one.node.outbox.context, other.public, key)  # its card shows that


async def _found(world: World, members: list[SimNode], group: Group) -> None:
    """The first member founds the group, and the others join."""
    founder, *others = members
    names = [each.name for each in others]
    answer = await ask(founder, PeerOperation.GROUP_CREATE, name="pond", members=names)
    group.id, group.removed = answer["id"], peer_id(members[-1].public)
    with anyio.fail_after(CALM_S):
        for each in others:
            while (await _summary(each, group)).get("status") != "invited":
                await world.clock.sleep(AGAIN_S)
            answer = await ask(each, PeerOperation.GROUP_ANSWER, group=group.id, accept=True)
            assert answer["error"] is None, answer
        for each in members:
            while (await _summary(each, group)).get("members") != len(members):
                await world.clock.sleep(AGAIN_S)


async def _chat(member: SimNode, group: Group) -> dict[str, Any]:
    """The conversation as the node tells of it; nothing while it is down."""
    try:
        chats = (await ask(member, PeerOperation.CHATS))["chats"]
    except (*FAILED, TimeoutError):
        return {}
    return next((each for each in chats if each["id"] == group.id), {})


async def _summary(member: SimNode, group: Group) -> dict[str, Any]:
    found: dict[str, Any] = (await _chat(member, group)).get("group", {})
    return found


async def _write(world: World, member: SimNode, group: Group) -> None:
    """Say something now and then, and stop or crash."""
    rng = world.rng(f"life of {member.name}")
    for number in range(rng.randint(2, TEXTS_MAX)):
        await _say(world, member, f"{member.name} says {number}", group)
        await anyio.sleep(rng.choice((0.0, 1.0, 30.0)))
        if rng.random() < 0.2:
            await _halt(member, rng, group)


async def _say(world: World, member: SimNode, text: str, group: Group) -> None:
    """Say something, and repeat it under its uuid if the node fails, a few times."""
    uuid = Random(text).randbytes(16)
    said = group.texts[text] = GroupText(member.name, world.clock.now())
    for _ in range(3):
        without = await _knows_removal(member, group)
        try:
            await ask(member, PeerOperation.CHAT_SEND, peer=group.id, text=text, uuid=uuid)
        except (*FAILED, TimeoutError) as error:
            group.counts[f"not said: {type(error).__name__}"] += 1
            await anyio.sleep(AGAIN_S)
        else:
            said.is_sure, said.without = True, without
            return


async def _knows_removal(member: SimNode, group: Group) -> bool:
    try:
        info = await ask(member, PeerOperation.GROUP_INFO, group=group.id)
    except (*FAILED, TimeoutError):
        return False
    return group.removed not in [each["id"] for each in info["members"]]


async def _remove(world: World, founder: SimNode, group: Group) -> None:
    await anyio.sleep(world.rng("removal").uniform(0.0, 90.0))
    while not group.is_removed:
        group.removed_at = world.clock.now()
        fields = {"group": group.id, "change": "remove", "members": [REMOVED]}
        try:
            answer = await ask(founder, PeerOperation.GROUP_CHANGE, **fields)
            group.is_removed = answer["error"] is None or "no member" in answer["error"]
        except (*FAILED, TimeoutError):
            pass
        await anyio.sleep(AGAIN_S)
    group.counts["removed"] += 1


async def _halt(member: SimNode, rng: Random, group: Group) -> None:
    how = rng.choice(HALTS)
    group.counts[how] += 1
    if how == "stop":
        await member.stop()
    else:
        await member.crash(power=how == "power")
    await anyio.sleep(rng.choice(DOWN_S))
    await member.start()


async def _wait_for_the_end(world: World, members: list[SimNode], group: Group) -> None:
    """Wait until no text is on its way any more."""
    with anyio.fail_after(CALM_S):
        while True:
            pairs = permutations(members, 2)
            waits = [one.node.outbox.unconfirmed(other.public) > 0 for one, other in pairs]
            waits += [bool((await _chat(each, group)).get("waiting", 1)) for each in members]
            if not any(waits):
                break
            await world.clock.sleep(LOOK_S)
    await world.clock.sleep(LATE_S + TEXTS_MAX * GAP_WAIT_S)


async def _history(member: SimNode, group: Group) -> list[Record]:
    stream = member.node.peer_services._local_stream(group_stream(public_key_of(group.id)))
    try:
        tail = (await stream.describe()).info.tail
    except UnknownStream:
        return []
    return [decode_record(body) async for _, body in stream.read(0, tail)]


async def _problems(members: list[SimNode], group: Group) -> list[str]:
    """The faults of the histories in the end."""
    names = {peer_id(each.public): each.name for each in members}
    found: list[str] = []
    for member in members:
        records = await _history(member, group)
        found += _of_history(records, member.name, names, group)
        if group.removed_at is not None and member.name != REMOVED:
            found += _of_removal(records, member.name, names, group.removed_at)
    return found


def _of_history(
    records: list[Record], reader: str, names: dict[str, str], group: Group
) -> Iterator[str]:
    shown = Counter(each.text for each in records if each.kind is Kind.IN)
    group.counts["shown"] += sum(shown.values())
    last: dict[tuple[str, str], int] = {}
    for each in records:
        if each.kind is not Kind.IN:
            continue
        said = group.texts.get(each.text)
        if said is None or said.author != names.get(each.by):
            yield f"{each.text!r} was not said by {each.by}"
            continue
        if reader == REMOVED and said.without:
            yield f"{each.text!r} is shown to {reader}, who was removed"
        place = each.by, each.line
        if not each.late:
            if each.n <= last.get(place, 0):
                yield f"{each.text!r} is shown out of order to {reader}"
            last[place] = each.n
    for text, said in group.texts.items():
        if shown[text] > 1:
            yield f"{text!r} is shown {shown[text]} times to {reader}"
        is_about_removed = REMOVED in (reader, said.author) and group.removed_at is not None
        if said.is_sure and said.author != reader and not is_about_removed and not shown[text]:
            yield f"{text!r} is not shown to {reader} in the end"


def _of_removal(
    records: list[Record], reader: str, names: dict[str, str], removed_at: float
) -> Iterator[str]:
    """After the note of the removal nothing is shown that the removed member has written later."""
    is_known = False
    for each in records:
        if each.kind is Kind.NOTE and each.text == f"removed {REMOVED}":
            is_known = True
        is_of_removed = each.kind is Kind.IN and names.get(each.by) == REMOVED
        if is_known and is_of_removed and (each.sent_at or 0) > (removed_at + AGAIN_S) * 1000:
            yield f"{each.text!r} of a removed member is shown to {reader}"
    if not is_known:
        yield f"{reader} does not know of the removal in the end"

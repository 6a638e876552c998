"""Messages of a node whose clock jumped ahead: its machine was off for long, or its clock is wrong.

Until a jump is confirmed, the time of the node is that of before (docs/internals/architecture.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millpond.node.chat.records import Kind
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.messages import PeerOperation
from millpond.testing import SimNode, World
from tests.sim.nodes.hostile_chats import ask, history

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("looks_rarely")]

NIGHT_S = 9 * 3600
LONG_S = 10 * 86_400
"""Longer than a message lives, and a prekey."""
YEAR_S = 365 * 86_400
TTL_S = 600
CHANNEL = "notes"


async def off(seconds: float, world: World, alice: SimNode, bob: SimNode) -> None:
    """The machine of Alice loses its power, and both nodes start again later."""
    await bob.stop()
    await alice.crash(power=True)
    await world.clock.sleep(seconds)
    await bob.start()
    await alice.start()
    assert alice.node.clock_status().jump_s > seconds - 60


async def test_a_message_with_little_time_is_read(world: World) -> None:
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    await off(NIGHT_S, world, alice, bob)
    sent = await alice.send("bob", CHANNEL, b"good morning", ttl=TTL_S)
    assert TTL_S <= sent.ttl <= TTL_S + 1
    assert (await bob.read(CHANNEL, timeout_s=TTL_S)).data == b"good morning"


async def test_a_message_waits_for_its_reader(world: World) -> None:
    """The jump is confirmed meanwhile, and the message lives for a week from then on."""
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    await off(LONG_S, world, alice, bob)
    await bob.stop()
    await alice.send("bob", CHANNEL, b"back again")
    await world.clock.sleep(1000)
    assert not alice.node.clock_status().jump_s
    await bob.start()
    assert (await bob.read(CHANNEL, timeout_s=TTL_S)).data == b"back again"


async def test_what_is_said_has_the_time_of_the_wall_clock(world: World) -> None:
    alice, bob = await world.node("alice"), await world.node("bob")
    world.link(alice, bob)
    await off(LONG_S, world, alice, bob)
    said_at = world.clock.now()
    await ask(alice, PeerOperation.CHAT_SEND, peer="bob", text="back again", uuid=bytes(16))
    await world.clock.sleep(1000)
    (said,) = [each for each in await history(alice, bob.public) if each.kind is Kind.OUT]
    (heard,) = [each for each in await history(bob, alice.public) if each.kind is Kind.IN]
    assert said.text == heard.text == "back again"
    for at in (said.at, heard.sent_at):
        assert at is not None and abs(at / 1000 - said_at) <= 1


async def test_a_message_with_the_time_of_a_wrong_clock_expires(world: World) -> None:
    """The clock was a year ahead, and the jump is withdrawn."""
    alice, bob = await world.node("alice", peer_ttl_s=TTL_S), await world.node("bob")
    world.link(alice, bob)
    public = bob.public
    await bob.stop()
    world.clock.skew("alice", YEAR_S)
    await alice.restart(power=True)
    reports: list[DeliveryStatus] = []

    async def record(peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        reports.append(status)

    alice.node.outbox.on_status(record)
    await alice.send("bob", CHANNEL, b"of next year")
    world.clock.skew("alice", 0.0)
    await world.clock.sleep(2 * 3600)
    assert reports == [DeliveryStatus.EXPIRED]
    assert alice.node.outbox.unconfirmed(public) == 0

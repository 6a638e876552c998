"""Settings of links hold for these links, until the same words end it."""

from __future__ import annotations

import pytest

from millpond import Channel, ConnectionLost
from millpond.node.testing.trace import Trace
from millpond.testing import SimNode, World

Pair = tuple[SimNode, SimNode]


async def test_a_latency_of_one_name_is_that_of_all_its_links(node: SimNode, world: World) -> None:
    """Also of links that come later; and of no other's."""
    async with node.connect("chat", who="near") as near:
        world.latency(1.0, "far")
        async with node.connect("chat", who="far") as far:
            assert await near.ping() < 0.1
            assert 2.0 <= await far.ping() < 2.1
            world.latency(0.25)
            assert 0.5 <= await far.ping() < 0.6, "what was said last counts"
            world.latency(0.5, "pond")
            world.latency(0.0, "pond", "near")
            assert await near.ping() < 0.1
            assert 1.0 <= await far.ping() < 1.1
    with pytest.raises(ValueError, match="without a first"):
        world.latency(1.0, None, "pond")


async def test_healing_ends_only_what_the_same_words_began(node: SimNode, world: World) -> None:
    async with node.connect("chat", who="alice") as alice, node.connect("chat", who="bob") as bob:
        world.partition("alice", "pond")
        world.partition("pond")
        world.heal("pond")
        assert await bob.ping() < 1
        put = alice.put_nowait(b"late")
        await world.clock.sleep(1)
        assert not put.done, "that between the two is still there"
        world.partition("pond")
        world.heal("alice", "pond")
        await world.clock.sleep(1)
        assert not put.done, "and so is that from all others"
        world.heal("pond")
        assert (await put).id > 0


async def test_who_dials_across_a_partition_waits(node: SimNode, world: World) -> None:
    world.partition("alice", "pond")
    began = world.clock.elapsed()
    with pytest.raises(ConnectionLost):
        async with node.connect("chat", who="alice"):
            pass
    assert world.clock.elapsed() - began >= 1, "as long as its own limit"

    async def heal() -> None:
        await world.clock.sleep(0.5)
        world.heal("alice", "pond")

    world.start(heal)
    began = world.clock.elapsed()
    async with node.connect("chat", who="alice") as alice:
        assert await alice.ping() >= 0
    assert 0.5 <= world.clock.elapsed() - began < 1


async def test_a_partition_that_comes_while_somebody_dials_delays_it(
    node: SimNode, world: World
) -> None:
    world.latency(0.5)

    async def part() -> None:
        await world.clock.sleep(0.25)
        world.partition("alice", "pond")
        await world.clock.sleep(1)
        world.heal("alice", "pond")

    world.start(part)
    async with node.connect("chat", who="alice") as alice:
        assert await alice.ping() >= 0


async def test_a_refusal_is_told_at_once(node: SimNode, channel: Channel, world: World) -> None:
    """And does nothing to the connections that there are."""
    world.refuse("pond", "alice")
    with pytest.raises(ConnectionLost):
        async with node.connect("chat", who="alice"):
            pass
    assert world.clock.elapsed() < 0.1
    async with node.connect("chat", who="bob"):
        world.refuse("pond")
        with pytest.raises(ConnectionLost):
            async with node.connect("chat", who="carol"):
                pass
        assert await channel.ping() >= 0
    world.refuse("pond", "alice", on=False)
    world.refuse("pond", on=False)
    async with node.connect("chat", who="alice"):
        pass


async def test_settled_lets_time_pass_only_for_what_is_under_way(
    node: SimNode, channel: Channel, world: World
) -> None:
    world.latency(5.0)
    await world.settled()
    assert world.clock.elapsed() == 0.0, "nothing is under way"
    put = channel.put_nowait(b"slow")
    await world.idle()
    world.latency(0.1)
    await world.settled()
    assert put.done and 5.0 <= world.clock.elapsed() < 6.0, "sent when the line was slow"


async def test_settled_does_not_wait_for_what_a_partition_holds(
    node: SimNode, channel: Channel, world: World
) -> None:
    world.latency(2.0)
    put = channel.put_nowait(b"held")
    world.partition("client", "pond")
    await world.settled()
    assert not put.done and world.clock.elapsed() < 2.0
    world.heal("client", "pond")
    await world.settled()
    assert put.done


async def test_a_peer_that_cannot_keep_messages_is_dialled_again_later(
    world: World,
) -> None:
    """It is there, and says so each time: that is no reason to come again at once."""
    alice, bob = await world.node("alice"), await world.node("bob")
    alice.add_peer(bob)
    bob.add_peer(alice, dials=False)
    await alice.send("bob", "letters", b"one")
    assert (await bob.read("letters", timeout_s=60)).data == b"one"
    assert bob.disk is not None
    bob.disk.fail()
    world.links.trace = trace = Trace(world.clock.elapsed, hide="")
    await alice.send("bob", "letters", b"two")
    await world.clock.sleep(60)
    dials = [line for line in trace.lines if "alice > bob" in line and line.endswith("dials")]
    assert 1 < len(dials) < 60
    bob.disk.heal()
    assert (await bob.read("letters", timeout_s=400)).data == b"two"

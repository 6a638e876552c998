"""Nodes of a world: over crashes, partitions and broken connections."""

from __future__ import annotations

import errno

import anyio
import pytest

from millpond import Channel, ConnectionLost
from millpond.actors.errors import StorageFailed
from millpond.node.client.streams.stream import Stream
from millpond.node.config import ChannelRule, ConfigError
from millpond.testing import DiskFault, NotRunning, SimNode, World, virtual

Pair = tuple[SimNode, SimNode]


async def test_a_message_waits_for_a_node_that_is_away(two_nodes: Pair, world: World) -> None:
    """Both nodes crash, an hour apart: what was acknowledged arrives (docs/internals/peers.md)."""
    alice, bob = two_nodes
    await bob.crash()
    await alice.send(bob, "notes", b"are you there?")
    await alice.restart()
    await world.clock.sleep(3600)
    await bob.start()
    relayed = await bob.read("notes")
    assert (relayed.sender, relayed.data) == ("alice", b"are you there?")
    await bob.restart()
    with pytest.raises(TimeoutError):
        await bob.read("notes", timeout_s=60)


async def test_a_relay_keeps_the_mail_of_who_cannot_be_dialled(world: World) -> None:
    relay = await world.node("relay", relay=True)
    alice = await world.node("alice")
    bob = await world.node("bob", via=(relay.url,))
    world.link(relay, alice)
    world.link(relay, bob)
    world.link(alice, bob, dials=False, relays=[relay])
    await bob.stop()
    await alice.send("bob", "notes", b"by way of the relay")
    await world.settled()
    await alice.crash()
    await bob.start()
    assert (await bob.read("notes")).data == b"by way of the relay"


async def test_what_is_not_linked_cannot_be_sent_to(world: World) -> None:
    alice, bob = await world.node("alice"), await world.node("bob")
    with pytest.raises(LookupError, match="link the two first"):
        await alice.send(bob, "notes", b"hello")


async def test_a_crash_is_seen_by_clients_and_mended_by_a_restart(
    node: SimNode, channel: Channel
) -> None:
    """PA-38: the client comes back by itself, and finds what it was told is kept."""
    receipt = await channel.put(b"kept")
    await node.crash()
    assert not node.is_running
    with pytest.raises(NotRunning, match="start"):
        _ = node.node
    with pytest.raises(ConnectionLost):
        async with node.connect("test"):
            pass
    await node.start()
    assert await channel.get(receipt.id) == b"kept"


async def test_a_node_in_memory_forgets_and_stays_who_it_is(world: World) -> None:
    node = await world.node("pond", storage="memory")
    public = node.public
    async with node.connect("notes") as notes:
        await notes.put(b"gone")
        await node.restart()
        assert await notes.list() == []
    assert node.public == public


async def test_a_node_may_have_a_real_disk(world: World) -> None:
    node = await world.node("pond", storage="real")
    async with node.connect("notes") as notes:
        receipt = await notes.put(b"kept")
        await world.settled()
        await node.restart()
        assert await notes.get(receipt.id) == b"kept"
    assert (node.folder / "journal").is_dir()
    with pytest.raises(LookupError):
        world.disk("pond")


async def test_settings_and_names_are_checked(world: World) -> None:
    queue = (ChannelRule.parse("jobs/*=queue"),)
    node = await world.node("pond", channels=queue)
    async with node.connect("jobs/1", role="worker") as worker:
        assert worker.mode is not None and worker.mode.name == "QUEUE"
    for name in ("pond", "Pond", "a/b"):
        with pytest.raises(ValueError, match="taken, or is no host name"):
            await world.node(name)
    with pytest.raises(ConfigError):
        await world.node("other", packet_bytes_max=1)


async def test_a_partition_delays_and_does_not_lose(node: SimNode, world: World) -> None:
    async with node.connect("chat", who="alice") as alice, node.connect("chat", who="bob") as bob:
        world.partition("alice", "pond")
        put = alice.put_nowait(b"late")
        with pytest.raises(TimeoutError):
            await bob.receive(timeout_s=10)
        world.heal("alice", "pond")
        assert (await bob.receive(timeout_s=60)).data == b"late" and (await put).id > 0


async def test_who_is_cut_off_is_so_for_those_who_come_later(node: SimNode, world: World) -> None:
    world.partition("pond")
    with pytest.raises(ConnectionLost):
        async with node.connect("chat", who="late"):
            pass
    world.heal("pond")
    async with node.connect("chat", who="late") as late:
        assert await late.ping() >= 0


async def test_a_consumer_that_vanishes_before_its_ack_loses_nothing(
    node: SimNode, world: World
) -> None:
    """P2P-07: pushed again on the next connection."""
    async with node.connect("chat", who="alice") as alice, node.connect("chat", who="bob") as bob:
        await alice.put(b"hello")
        message = await bob.receive()
        world.reset("bob")
        again = await bob.receive(timeout_s=60)
        assert (again.id, again.data) == (message.id, b"hello")


async def test_latency_and_cut_writes_change_when_and_not_what(node: SimNode, world: World) -> None:
    world.latency(0.5)
    world.split()
    async with node.connect("chat") as chat:
        began = world.clock.elapsed()
        receipt = await chat.put(bytes(range(256)) * 40)
        assert 1.0 <= world.clock.elapsed() - began < 1.1
        assert await chat.get(receipt.id) == bytes(range(256)) * 40


async def test_latency_may_be_that_of_one_link(node: SimNode, world: World) -> None:
    world.latency(1.0, "far", "pond")
    async with node.connect("chat", who="far") as far, node.connect("chat", who="near") as near:
        assert await near.ping() < 0.1
        assert 2.0 <= await far.ping() < 2.1


async def test_a_reader_that_stalls_holds_up_nobody_else(world: World) -> None:
    """Backpressure: its connection is closed after a while; others are served all the time."""
    node = await world.node("pond", window_bytes=2**22)
    async with node.connect("bulk", who="slow", window=512, role="consumer") as slow:
        world.stall("slow")
        async with node.connect("bulk", who="fast", role="producer") as fast:
            for _ in range(40):
                await fast.put(bytes(2**16))
            await world.clock.sleep(60)
            assert await fast.ping() < 1
        world.unstall("slow")
        await world.clock.sleep(60)
        assert slow.counts.connections >= 2
        assert len((await slow.receive(timeout_s=60)).data) == 2**16


async def test_a_clock_that_is_set_forward_is_followed(node: SimNode, world: World) -> None:
    async with node.connect("chat") as chat:
        receipt = await chat.put(b"until the clocks change", ttl=200)
        world.clock.skew("pond", 290)
        await world.clock.sleep(61)
        assert await chat.list() == [], receipt
        world.clock.skew("pond", -3600)
        await world.clock.sleep(61)
        assert await chat.put(b"and never steps back")


async def test_settled_waits_for_what_is_under_way_and_for_no_timer(
    two_nodes: Pair, world: World
) -> None:
    alice, bob = two_nodes
    world.latency(0.2)
    await alice.send(bob, "notes", b"hello")
    await world.settled()
    assert 0.2 <= world.clock.elapsed() < 10
    began = world.clock.elapsed()
    assert (await bob.read("notes")).data == b"hello"
    assert world.clock.elapsed() == began, "it was there already"


async def test_the_same_stream_by_all_protocols(stream: Stream, node: SimNode) -> None:
    await stream.append([b"tea"])
    async with node.s3p() as s3p, node.rustlog() as rustlog:
        await s3p.append("test", [b"milk"])
        assert [each.data for each in await s3p.read("test")] == [b"tea", b"milk"]
        fetched = await rustlog.fetch("test", 0)
        assert [each.data for each in fetched.records] == [b"tea", b"milk"]


BOTH = [virtual("asyncio"), virtual("trio")]


@pytest.mark.parametrize("anyio_backend", BOTH, ids=["asyncio", "trio"])
async def test_the_same_seed_gives_the_same_ids_and_cuts() -> None:
    async def lives(seed: int) -> list[int]:
        async with World(seed) as world:
            node = await world.node("pond")
            world.split()
            async with node.connect("chat") as chat:
                ids = [(await chat.put(b"%d" % n * 100)).id for n in range(5)]
                await node.restart()
                return [*ids, (await chat.put(b"again")).id]

    assert await lives(3) == await lives(3) != await lives(4)


async def test_a_full_disk_refuses_and_keeps_what_it_has(
    node: SimNode, channel: Channel, world: World
) -> None:
    receipt = await channel.put(b"before")
    disk = world.disk("pond")
    disk.fill()
    with pytest.raises(StorageFailed):
        await channel.put(b"no room")
    assert await channel.get(receipt.id) == b"before"
    disk.heal()
    await world.clock.sleep(10)
    assert (await channel.put(b"room again")).id > receipt.id


async def test_a_sync_that_fails_is_told_to_who_waits_for_it(
    channel: Channel, world: World
) -> None:
    disk = world.disk("pond")
    disk.fail_next("fdatasync")
    with pytest.raises(StorageFailed):
        await channel.put(b"not kept")
    await world.clock.sleep(10)
    await channel.put(b"kept")
    assert len(await channel.list()) == 1
    with pytest.raises(ValueError, match="no such"):
        disk.fail_next("no such call")


async def test_a_node_that_does_not_start_says_why_and_may_start_later(
    node: SimNode, world: World
) -> None:
    await node.stop()
    world.disk("pond").fail_next("list", number=errno.EACCES)
    with pytest.raises(DiskFault) as caught:
        await node.start()
    assert caught.value.errno == errno.EACCES
    assert not node.is_running
    await node.start()
    assert node.is_running


async def test_a_disk_that_hangs_holds_up_answers_and_nothing_else(
    node: SimNode, channel: Channel, world: World
) -> None:
    disk = world.disk("pond")
    disk.hang()
    put = channel.put_nowait(b"slow")
    await world.clock.sleep(5)
    assert not put.done and await channel.ping() < 1
    disk.resume()
    with anyio.fail_after(5):
        assert (await put).id > 0


@pytest.mark.parametrize("world_seed", range(8))
async def test_a_power_failure_takes_nothing_that_was_acknowledged(
    node: SimNode, channel: Channel
) -> None:
    """Durability `disk` (tag 81): an answer means that the sync is done."""
    kept = [(await channel.put(b"%d" % n)).id for n in range(10)]
    pending = [channel.put_nowait(b"in hand") for _ in range(5)]
    await node.restart(power=True)
    found = await channel.list()
    assert found[: len(kept)] == kept
    await channel.flush()
    assert {(await each).id for each in pending} <= set(await channel.list())

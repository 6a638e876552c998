"""Threads in a world: nodes have none, and time does not pass those of others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

import millpond.node.outbox.deliveries as sealing
from millpond import connect
from millpond.jobs import Job, Queue, Worker
from millpond.node.client.settings import SimulatedSettings
from millpond.node.outbox.messages import PeerOperation
from millpond.testing import SimNode, World

Pair = tuple[SimNode, SimNode]


async def work(node: SimNode, handler: Callable[..., object]) -> None:
    async with Worker(
        node.url, handler, queues=["q"], settings=SimulatedSettings(dialer=node.dialer("worker"))
    ) as worker:
        await worker.run()


@pytest.fixture
def sealed_in(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """The threads in which messages are sealed."""
    threads: list[threading.Thread] = []
    seal = sealing.seal_message

    def told(*args: object, **options: object) -> bytes:
        threads.append(threading.current_thread())
        return seal(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sealing, "seal_message", told)
    return threads


async def test_what_a_test_has_a_node_seal_has_no_thread(
    two_nodes: Pair, sealed_in: list[threading.Thread]
) -> None:
    alice, bob = two_nodes
    await alice.send(bob, "notes", b"hello")
    assert (await bob.read("notes")).data == b"hello"
    assert set(sealed_in) == {threading.main_thread()}


async def test_what_a_client_asks_of_a_node_has_no_thread(
    two_nodes: Pair, sealed_in: list[threading.Thread]
) -> None:
    """The connection is the node's own, whoever dialled."""
    alice, bob = two_nodes
    async with connect(
        alice.url, "desk", settings=SimulatedSettings(dialer=alice.dialer("me"))
    ) as channel:
        request = {"peer": "bob", "channel": b"notes", "data": b"hello"}
        await channel.peers(PeerOperation.SEND, request)
    assert (await bob.read("notes")).data == b"hello"
    assert set(sealed_in) == {threading.main_thread()}


async def test_time_does_not_pass_a_thread_of_any_limiter(world: World) -> None:
    await world.node("pond")
    await anyio.to_thread.run_sync(time.sleep, 0.1, limiter=anyio.CapacityLimiter(1))
    assert world.clock.elapsed() < 1


async def test_no_lease_is_over_while_a_sync_handler_works(node: SimNode, world: World) -> None:
    """A worker's threads have a limiter of its own."""
    ran_in: list[threading.Thread] = []

    def handler(payload: int) -> float:
        ran_in.append(threading.current_thread())
        time.sleep(0.1)
        return world.clock.elapsed()

    world.start(work, node, handler)
    async with Queue(
        node.url, "q", settings=SimulatedSettings(dialer=node.dialer("clerk"))
    ) as queue:
        began = world.clock.elapsed()
        handle = await queue.put(1, wait=True)
        assert await handle.result(60) - began < 1
    assert ran_in != [threading.main_thread()]


async def test_a_world_without_threads_does_everything_at_once() -> None:
    def work() -> threading.Thread:
        anyio.from_thread.check_cancelled()
        return anyio.from_thread.run_sync(threading.current_thread)

    async with World(threads=False):
        found = await anyio.to_thread.run_sync(work, limiter=anyio.CapacityLimiter(1))
        assert found is threading.main_thread()
    assert await anyio.to_thread.run_sync(threading.current_thread) is not found


async def test_a_sync_handler_without_threads_tells_its_progress() -> None:
    def handler(payload: int, job: Job) -> int:
        job.progress("half")
        return payload * 2

    async with World(threads=False) as world:
        node = await world.node("pond")
        world.start(work, node, handler)
        async with Queue(
            node.url, "q", settings=SimulatedSettings(dialer=node.dialer("clerk"))
        ) as queue:
            handle = await queue.put(21, wait=True)
            assert [value async for value in handle.progress()] == ["half"]
            assert await handle.result(60) == 42


async def test_worlds_may_end_in_any_order() -> None:
    ordinary = anyio.to_thread.run_sync, anyio.from_thread.run_sync
    first, second = World(), World(2, threads=False)
    ends = anyio.Event()

    async def live(world: World, *, until: anyio.Event) -> None:
        async with world:
            began.set()
            await until.wait()

    async with anyio.create_task_group() as tasks:
        for world in (first, second):
            began = anyio.Event()
            tasks.start_soon(lambda world=world: live(world, until=ends))
            await began.wait()
        assert await anyio.to_thread.run_sync(threading.current_thread) is threading.main_thread()
        assert anyio.to_thread.run_sync is not ordinary[0]
        ends.set()
    assert (anyio.to_thread.run_sync, anyio.from_thread.run_sync) == ordinary

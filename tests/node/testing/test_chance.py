"""Keys, nonces, clocks and names in a world are the world's: its seed decides them all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import anyio
import pytest

from millpond import connect
from millpond.jobs import Queue, Worker
from millpond.node.client.settings import SimulatedSettings
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.environment import current_environment
from millpond.node.jobs.payload import decode_job
from millpond.node.node import Node
from millpond.node.peers.prekeys import ROTATED_S
from millpond.node.testing.time.world_clock import START_S
from millpond.testing import SimNode, World, virtual

DAY_S = 86_400
T = TypeVar("T")


def told(story: Callable[[World], Awaitable[T]], seed: int = 1) -> T:
    """The outcome of a story in a world of its own, without pytest's fixtures."""

    async def run() -> T:
        async with World(seed) as world:
            return await story(world)

    library, options = virtual("asyncio")
    return anyio.run(run, backend=library, backend_options=options)


async def keys_of_a_node(world: World) -> tuple[bytes, bytes, bytes]:
    node = await world.node("pond")
    before = node.public
    prekey = node.node.peer_services.keyring.prekeys.current().public
    await node.restart(power=True)
    assert node.public == before
    other = await world.node("other")
    assert other.public != before
    return before, prekey, node.node.peer_services.keyring.prekeys.current().public


def test_the_seed_decides_the_keys_of_a_node() -> None:
    assert told(keys_of_a_node) == told(keys_of_a_node)
    assert told(keys_of_a_node) != told(keys_of_a_node, seed=2)


async def test_prekeys_live_in_the_time_of_the_world(node: SimNode, world: World) -> None:
    """sec 3d: a new one each day; the day is the world's."""
    prekeys = node.node.peer_services.keyring.prekeys
    first = prekeys.current()
    assert abs(first.made_at - START_S) < 60
    assert 7 * DAY_S < first.good_until - world.clock.now() < 10 * DAY_S
    world.clock.skew("pond", ROTATED_S + 60)
    second = prekeys.current()
    assert second.kid != first.kid
    assert second.made_at - world.clock.now() == pytest.approx(ROTATED_S + 60, abs=1)


async def work(worker: Worker) -> None:
    async with worker:
        await worker.run()


async def what_a_program_draws(world: World) -> list[object]:
    """It only says where to: chance, clocks and names come from around it."""
    node = await world.node("pond")
    found: list[object] = []

    async def handler(payload: object) -> None: ...

    async with connect(
        node.url, "notes", settings=SimulatedSettings(dialer=node.dialer("me"))
    ) as notes:
        receipt = await notes.put(b"hello")
        found += [
            receipt.id,
            current_environment().entropy(8),
            current_environment().wall(),
            current_environment().name(),
        ]
    worker = Worker(
        node.url,
        handler,
        queues=["q"],
        settings=SimulatedSettings(dialer=node.dialer("worker")),
        log_done=True,
    )
    async with Queue(
        node.url, "q", settings=SimulatedSettings(dialer=node.dialer("clerk"))
    ) as queue:
        handle = await queue.put({"n": 1}, wait=True)
        found.append(decode_job((await queue.show(handle.id)).data or b""))
        world.start(work, worker)
        await handle.result(60)
        await world.clock.sleep(5)
        found += [entry async for entry in queue.history(handle.id)]
    assert len(found) > 5
    return found


def test_the_seed_decides_what_a_program_draws() -> None:
    once, again = told(what_a_program_draws), told(what_a_program_draws)
    assert once == again
    assert told(what_a_program_draws, seed=2) != once


def test_without_a_world_chance_is_the_systems() -> None:
    assert current_environment().entropy(16) != current_environment().entropy(16)
    assert (
        isinstance(current_environment().rng(), Random)
        and current_environment().wall() > START_S / 2
    )


async def test_a_node_given_its_entropy_is_the_same_node() -> None:
    closed = dict.fromkeys(("p2p", "ws", "s3p", "rustlog", "http"), OFF)

    async def key() -> bytes:
        clock = Clock(anyio.current_time, lambda: START_S)
        async with Node(Config(**closed), clock=clock, entropy=Random(5).randbytes) as node:
            return node.peer_services.keyring.identity.public

    assert await key() == await key()


def test_what_a_callback_raises_is_heard_without_pytest() -> None:
    async def story(world: World) -> None:
        with world.guard():
            asyncio.get_running_loop().call_soon(lambda: 1 / 0)
            await world.clock.sleep(1)

    with pytest.raises(ZeroDivisionError):
        told(story)


def test_what_a_callback_raises_may_be_expected() -> None:
    async def story(world: World) -> float:
        world.expect(ZeroDivisionError)
        asyncio.get_running_loop().call_soon(lambda: 1 / 0)
        await world.clock.sleep(1)
        return world.clock.elapsed()

    assert told(story) == 1

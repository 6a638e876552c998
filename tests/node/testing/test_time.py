"""Time in a world: it passes when everybody waits, and only then."""

from __future__ import annotations

import socket
import time

import anyio
import pytest

from node import NotFound
from node.testing import SimNode, TookTooLong, World
from node.testing.pace import virtual


def spent(began: float) -> float:
    return time.monotonic() - began


async def test_an_hour_is_over_at_once(world: World) -> None:
    began = time.monotonic()
    await world.clock.sleep(3600)
    assert world.clock.elapsed() == 3600 and spent(began) < 0.5


async def test_a_message_lives_as_long_as_it_was_told(node: SimNode, world: World) -> None:
    """P2P-09: an hour of a node is no hour of the test."""
    async with node.connect("notes") as notes:
        kept = await notes.put(b"gone by then", ttl=3600)
        await world.clock.sleep(3590)
        assert await notes.get(kept.id) == b"gone by then"
        await world.clock.sleep(20)
        with pytest.raises(NotFound):
            await notes.get(kept.id)


async def test_no_timeout_strikes_while_a_thread_works(world: World) -> None:
    with anyio.fail_after(0.01):
        await anyio.to_thread.run_sync(time.sleep, 0.1)
    assert world.clock.elapsed() == 0.0


async def test_a_thread_that_wants_time_to_pass_gets_it(world: World) -> None:
    def sleep_in_the_loop() -> None:
        anyio.from_thread.run(anyio.sleep, 0.5)

    await anyio.to_thread.run_sync(sleep_in_the_loop)
    assert world.clock.elapsed() == 0.5


async def test_time_is_real_while_a_socket_is_open(world: World) -> None:
    async def hold(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await anyio.sleep(60)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
        with socket.create_connection(("127.0.0.1", port)):
            began = time.monotonic()
            with anyio.move_on_after(0.1):
                await listener.serve(hold)
            assert spent(began) >= 0.09


async def test_idle_takes_no_time(world: World) -> None:
    done: list[str] = []

    async def work() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        done.append("work")
        await anyio.sleep(5)
        done.append("later")

    world.start(work)
    await world.idle()
    assert (done, world.clock.elapsed()) == (["work"], 0.0)
    await world.clock.sleep(5.1)
    assert done == ["work", "later"]


async def test_a_test_that_waits_for_nothing_is_ended() -> None:
    async with World(patience_s=0.2) as world:
        with pytest.raises(TookTooLong, match=r"0\.2 s"), world.guard():
            await anyio.Event().wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_world_can_live_in_real_time() -> None:
    async with World() as world:
        pond = await world.node("pond")
        assert not world.clock.is_virtual
        async with pond.connect("notes") as notes:
            receipt = await notes.put(b"hello")
            await world.settled()
            assert await notes.get(receipt.id) == b"hello"


def test_other_libraries_are_refused() -> None:
    with pytest.raises(ValueError, match="none of asyncio, trio"):
        virtual("curio")

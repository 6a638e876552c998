"""Time in a world: it passes when everybody waits, and only then."""

from __future__ import annotations

import asyncio
import socket
import time

import anyio
import pytest

from millpond import NotFound
from millpond.node.testing.time.asyncio_loop import VirtualLoop
from millpond.node.testing.time.virtual_time import virtual
from millpond.testing import SimNode, TookTooLong, World


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


async def test_settled_returns_while_a_socket_is_open(world: World) -> None:
    """A wait until nothing happens lasts until no input has come from outside for a moment."""
    node = await world.node("pond")
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0)
    port: int = listener.extra(anyio.abc.SocketAttribute.local_port)
    accepted = anyio.Event()

    async def accept(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            accepted.set()
            await anyio.sleep_forever()

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, accept)
        with socket.create_connection(("127.0.0.1", port)):
            await world.settled()
            assert accepted.is_set()
            async with node.connect("chat") as chat:
                put = chat.put_nowait(b"hello")
                await world.settled()
                assert put.done
        tasks.cancel_scope.cancel()


async def test_a_slow_thread_gets_real_time(world: World) -> None:
    """A timeout of five seconds does not strike because a thread takes half of one."""
    with anyio.fail_after(5):
        await anyio.to_thread.run_sync(time.sleep, 0.6)
    assert world.clock.elapsed() < 1


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


@pytest.mark.parametrize("anyio_backend", [virtual("asyncio")], ids=["asyncio"])
async def test_timers_of_equal_time_fire_in_the_order_they_were_made() -> None:
    """asyncio's heap alone gives them in the order in which it happens to lie."""
    loop, fired = asyncio.get_running_loop(), list[int]()
    due = loop.time() + 5.0
    timers = [loop.call_at(due, fired.append, n) for n in range(200)]
    for timer in timers[1::3]:
        timer.cancel()
    loop.call_at(due - 1.0, fired.append, -1)
    await anyio.sleep(6)
    assert fired == [-1, *(n for n in range(200) if n % 3 != 1)]


async def test_a_test_that_waits_for_nothing_is_ended() -> None:
    async with World(timeout_s=0.2) as world:
        with pytest.raises(TookTooLong, match=r"0\.2 s"), world.guard():
            await anyio.Event().wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_a_world_can_live_in_real_time() -> None:
    async with World() as world:
        node = await world.node("pond")
        assert not world.clock.is_virtual
        async with node.connect("notes") as notes:
            receipt = await notes.put(b"hello")
            await world.settled()
            assert await notes.get(receipt.id) == b"hello"


def test_other_libraries_are_refused() -> None:
    with pytest.raises(ValueError, match="none of asyncio, trio"):
        virtual("curio")


def test_the_end_of_a_loop_waits_for_its_threads() -> None:
    """Runners of Python 3.12 and later give them 300 s, which pass at once in virtual time."""
    done: list[int] = []

    def work() -> None:
        time.sleep(0.4)
        done.append(1)

    async def leave_a_thread() -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, work)
        loop.call_later(1, done.append, 0)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(leave_a_thread())
    assert done[-1] == 1

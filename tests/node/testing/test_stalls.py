"""A test that waits for what never comes is told at once, and says who waits for what."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from millpond.errors import NoListener
from millpond.testing import SimNode, TookTooLong, World
from tests.node.testing.test_plugin import run

STALL_S = 600.0
LOOK_S = STALL_S / 4

Pair = tuple[SimNode, SimNode]


async def work(node: SimNode) -> None:
    async with node.connect("jobs", mode="queue", who="worker") as jobs:
        async for job in jobs:
            await job.ack()


async def wait_for_ever() -> None:
    await anyio.Event().wait()


async def test_a_wait_for_a_message_says_who_waits_for_what(world: World, node: SimNode) -> None:
    async with node.connect("orders", mode="queue") as orders:
        await orders.put(b"for others: a connection gets none of its own")
        world.start(work, node)
        with pytest.raises(TookTooLong) as caught, world.guard():
            await orders.receive()
    assert STALL_S <= world.clock.elapsed() <= STALL_S + 2 * LOOK_S + 1
    head, wait, handler, row, other, hint = str(caught.value).splitlines()
    assert "nothing moved it" in head and "time limit" in hint
    assert " waits in Channel.receive, " in wait and wait.endswith(": await orders.receive()")
    assert "work waits in Channel.__anext__" in handler and "async for job in jobs" in handler
    assert "pond has 1 messages in 'orders' (queue), 0 of them leased" in row
    assert "pond has 0 messages in 'jobs' (queue)" in other


async def test_ten_lines_at_most_are_reported(world: World, node: SimNode) -> None:
    async def hold(name: str) -> None:
        async with node.connect(name, who=name):
            await wait_for_ever()

    async def one() -> None:
        await anyio.Event().wait()

    async def two() -> None:
        await anyio.Event().wait()

    async def three() -> None:
        await anyio.Event().wait()

    for n in range(5):
        world.start(hold, f"c{n}")
    for each in (one, two, two, three):
        world.start(each)
    with pytest.raises(TookTooLong) as caught, world.guard():
        await wait_for_ever()
    text = str(caught.value)
    assert len(text.splitlines()) <= 10
    assert "and 2 more" in text and "tasks)" in text


async def test_a_world_without_timers_is_told_as_well(world: World) -> None:
    with pytest.raises(TookTooLong, match="wait_for_ever waits"), world.guard():
        await wait_for_ever()
    assert world.clock.elapsed() == 0


async def test_a_shield_does_not_hide_a_stall(world: World, node: SimNode) -> None:
    with pytest.raises(TookTooLong, match="wait_for_ever waits"), world.guard():
        with anyio.CancelScope(shield=True):
            await wait_for_ever()


async def test_a_sleep_is_no_stall(world: World, node: SimNode) -> None:
    await world.clock.sleep(2 * STALL_S)
    await anyio.sleep(2 * STALL_S)
    assert world.clock.elapsed() >= 4 * STALL_S


async def test_a_time_limit_of_the_test_is_no_stall(world: World, node: SimNode) -> None:
    with anyio.move_on_after(3 * STALL_S) as scope:
        await wait_for_ever()
    assert scope.cancelled_caught


async def test_time_limits_of_asyncio_are_no_stalls(
    world: World, node: SimNode, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        return
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2 * STALL_S):
            await wait_for_ever()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(wait_for_ever(), 2 * STALL_S)
    assert world.clock.elapsed() >= 4 * STALL_S


async def test_a_limit_of_a_handler_holds_for_the_test(world: World, node: SimNode) -> None:
    """The test may wait for the end of a handler."""
    done = anyio.Event()

    async def later() -> None:
        with anyio.move_on_after(2 * STALL_S):
            await wait_for_ever()
        done.set()

    world.start(later)
    await done.wait()


async def test_a_loop_of_short_sleeps_is_no_stall(world: World, node: SimNode) -> None:
    for _ in range(200):
        await anyio.sleep(STALL_S / 100)


async def test_what_a_node_does_within_the_span_is_waited_for(node: SimNode) -> None:
    async with (
        node.connect("jobs", mode="queue", who="boss") as boss,
        node.connect("jobs", mode="queue", who="worker") as worker,
    ):
        await boss.put(b"later")
        await (await worker.receive()).nack(delay=STALL_S - 10)
        assert (await worker.receive()).data == b"later"


@pytest.mark.usefixtures("world")
async def test_another_span_may_be_chosen() -> None:
    async with World(stall_s=60) as other:
        await other.node("pond")
        with pytest.raises(TookTooLong, match="for 60 s"), other.guard():
            await wait_for_ever()
    assert 60 <= other.clock.elapsed() <= 120


async def test_a_thread_of_the_test_may_still_call(
    world: World, node: SimNode, anyio_backend_name: str
) -> None:
    if anyio_backend_name != "asyncio":
        return
    called = asyncio.Event()
    loop = asyncio.get_running_loop()

    def call() -> None:
        time.sleep(0.5)
        loop.call_soon_threadsafe(called.set)

    threading.Thread(target=call, name="the test's").start()
    await called.wait()


async def test_a_client_that_repeats_its_requests_moves_nothing(
    world: World, node: SimNode
) -> None:
    """Time limits that a client sets for each of its tries are not the test's."""

    async def ask_again() -> None:
        async with node.connect("questions", who="asker") as asker:
            while True:
                try:
                    await asker.ask(b"?", timeout_s=60)
                except (TimeoutError, NoListener):
                    return

    world.start(ask_again)
    with pytest.raises(TookTooLong, match="wait_for_ever waits"), world.guard():
        await wait_for_ever()


def test_pytest_shows_the_report_alone(tmp_path: Path) -> None:
    text = """\
async def test_mine(node):
    async with node.connect("orders") as orders:
        await orders.receive()
"""
    told = run(tmp_path, text)
    shown = told.stdout.partition("= FAILURES =")[2].partition("short test summary")[0]
    assert "test_mine waits in Channel.receive, test_mine.py:3: await orders.receive()" in shown
    assert "Traceback" not in shown and len(shown.strip().splitlines()) <= 10, told.stdout


async def test_tasks_below_a_shield_end_soon_after_the_report(world: World, node: SimNode) -> None:
    """Others move when they are interrupted; nothing is reported twice."""

    async def wait_below_a_shield() -> None:
        with anyio.CancelScope(shield=True):
            await wait_for_ever()

    with pytest.raises(TookTooLong) as caught, world.guard():
        async with node.connect("orders", mode="queue") as orders, anyio.create_task_group() as all:
            all.start_soon(wait_below_a_shield)
            await orders.receive()
    assert "wait_for_ever waits" in str(caught.value)
    assert world.clock.elapsed() <= STALL_S + LOOK_S + 60


OF_AN_EARLIER_LOOP = """\
import gc
import anyio, pytest
from millpond.testing import TookTooLong

left = []

@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_one(anyio_backend):
    with anyio.CancelScope() as outer, anyio.CancelScope(shield=True) as scope:
        left.append(scope)
    outer.cancel()

async def test_two(node, world):
    assert left
    with pytest.raises(TookTooLong, match="test_two waits"), world.guard():
        async with node.connect("orders", mode="queue"):
            with anyio.CancelScope(shield=True):
                await anyio.Event().wait()

async def test_three(node):
    async with node.connect("orders") as orders:
        await orders.put(b"1")
"""


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_shields_of_an_earlier_loop_are_left_alone(tmp_path: Path, library: str) -> None:
    told = run(tmp_path, OF_AN_EARLIER_LOOP, f"--millpond-backends={library}", "-p", "anyio")
    assert "3 passed" in told.stdout, told.stdout + told.stderr


@pytest.fixture
def over_soon(world: World) -> Iterator[None]:
    """A test that reads a clock itself is not said to poll."""
    yield
    assert world.clock.elapsed() <= STALL_S + 2 * LOOK_S


@pytest.mark.usefixtures("over_soon")
async def test_a_loop_that_polls_for_what_does_not_come_is_a_stall(
    world: World, node: SimNode
) -> None:
    done: list[bytes] = []

    async def poll_until(is_done: Callable[[], object]) -> None:
        while not is_done():  # noqa: ASYNC110
            await anyio.sleep(0.1)

    with pytest.raises(TookTooLong, match="poll_until waits"), world.guard():
        await poll_until(lambda: done)


class Steps:
    def __init__(self) -> None:
        self.count = 0


async def test_a_poll_that_sees_a_change_is_no_stall(world: World, node: SimNode) -> None:
    steps, done = Steps(), list[int]()

    async def step() -> None:
        while True:
            await anyio.sleep(STALL_S / 2)
            steps.count += 1
            done.append(1)

    world.start(step)
    while steps.count < 3:  # noqa: ASYNC110
        await anyio.sleep(0.5)
    while len(done) < 5:  # noqa: ASYNC110
        await anyio.sleep(0.5)


async def test_a_poll_for_a_time_is_no_stall(world: World, node: SimNode) -> None:
    while world.clock.elapsed() < 1.5 * STALL_S:  # noqa: ASYNC110
        await anyio.sleep(0.6)
    for _ in range(round(2.5 * STALL_S)):
        await anyio.sleep(0.6)

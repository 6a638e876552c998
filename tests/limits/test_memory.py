"""The memory of connections (docs/reference/limits.md) at each listener, over real sockets and with
small budgets: what half requests, and many of them, may hold."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from tests.limits.listeners import KIB, MIB, NAMES, Client, Running, running

pytestmark = pytest.mark.wire
BUDGET, MESSAGE = 8 * MIB, MIB
PART = 700 * KIB
"""The part of a request of 1 MiB that comes first."""
OVERRUN = BUDGET // 4
SMALL = 64 * KIB
"""More than what is not counted, and than what a connection moves between two looks at it."""
READ = 256 * KIB

Run = Callable[..., AbstractAsyncContextManager[Running]]


@pytest.fixture
def anyio_backend() -> str:
    """Wires of both libraries are tested elsewhere; what connections hold is the same on both."""
    return "asyncio"


@pytest.fixture(params=NAMES)
def run(request: pytest.FixtureRequest) -> Run:
    """Runs a node, for clients of one listener."""
    column: str = request.param

    @asynccontextmanager
    async def served(budget: int = BUDGET, longest: int = MESSAGE) -> AsyncIterator[Running]:
        async with running(column, budget, longest) as node:
            yield node

    return served


async def _begin_all(node: Running, clients: list[Client], size: int, part: int) -> None:
    """Send parts one after the other: what many connections read in one pass is measured late."""
    for each in clients:
        await each.begin(size, part)
        await node.settle()


async def test_half_requests_of_all_connections_stay_within_the_budget(run: Run) -> None:
    """Twice as many as fit. Others are served meanwhile, and each one gets an answer."""
    async with run() as node, anyio.create_task_group() as tasks:
        clients = await node.clients(20)
        await _begin_all(node, clients, MESSAGE - 10 * KIB, PART)
        assert node.waiting_connections
        assert await node.accepts()
        for each in clients:
            tasks.start_soon(each.finish)
        await node.pass_time(10.0)
        outcomes = [await node.outcome(each) for each in clients]
        assert node.memory.used_bytes == node.memory.waiting == 0
        assert await node.accepts(MESSAGE - 10 * KIB)
    assert "accepted" in outcomes and "" not in outcomes, outcomes
    assert BUDGET // 2 < node.peak_bytes <= BUDGET + OVERRUN


async def test_the_next_reads_of_others_are_kept_free(run: Run) -> None:
    """256 KiB for each connection that was let in, and no more than a quarter of the budget."""
    for others, kept in ((3, 3 * READ), (12, OVERRUN)):
        async with run() as node:
            clients = await node.clients(others + 1)
            await _begin_all(node, clients, MESSAGE // 2, SMALL)
            assert len(node.memory._accounts) == others + 1
            client = clients[0]
            set_apart = node.leave_free(kept + READ + 2 * SMALL)
            await client.send_on(SMALL)
            await node.settle()
            assert node.waiting_connections == 0
            node.memory.keep_promise(set_apart)
            node.leave_free(kept + READ - SMALL)
            await client.send_on(SMALL)
            await node.settle()
            assert node.waiting_connections == 1
            for each in clients[1:]:
                await each.aclose()
            await node.until(lambda: not node.memory.waiting)


async def test_a_connection_has_a_sixteenth_or_two_messages(run: Run) -> None:
    """A message beyond its share waits, though the node has nothing else to do."""
    longest = 200 * KIB
    async with run(16 * 2 * longest, longest) as node:
        within, above = await node.clients(2)
        await _begin_all(node, [within], longest - 5 * KIB, 2 * longest - READ - 60 * KIB)
        assert len(node.memory._accounts) == 1 and node.waiting_connections == 0
        await _begin_all(node, [above], longest - 5 * KIB, longest - 10 * KIB)
        assert node.waiting_connections == 1
        await above.finish()
        assert await node.outcome(above) == "accepted", "it has its turn"
        await within.finish()
        assert await node.outcome(within) == "accepted"


async def test_the_largest_connection_whose_client_does_nothing_is_reset_after_2_s(
    run: Run,
) -> None:
    async with run() as node:
        largest, *others = await node.clients(12)
        await _begin_all(node, [largest], MESSAGE - 10 * KIB, MESSAGE - 20 * KIB)
        await node.pass_time(0.25)  # all of it is measured, as that of the others
        await _begin_all(node, others, MESSAGE - 10 * KIB, PART)
        assert node.waiting_connections
        await node.pass_time(1.5)
        assert node.memory.stats.closed == 0
        await node.pass_time(0.75)
        assert node.memory.stats.closed >= 1
        await largest.ends()
        assert await node.accepts()


async def test_requests_that_hold_all_memory_finish_one_at_a_time_beyond_it(run: Run) -> None:
    async with run() as node, anyio.create_task_group() as tasks:
        clients = await node.clients(8)
        await _begin_all(node, clients, MESSAGE - 10 * KIB, PART - 100 * KIB)
        assert node.waiting_connections == 0
        set_apart = node.leave_free(0)
        for each in clients:
            await each.send_on(SMALL)
            await node.settle()
        assert node.waiting_connections == len(clients)
        for each in clients:
            tasks.start_soon(each.finish)
        await node.settle()
        assert node.waiting_connections == len(clients)
        await node.pass_time(2.0)
        assert {await node.outcome(each) for each in clients} == {"accepted"}
    assert node.memory.stats.closed == node.memory.stats.refused == 0
    free = BUDGET - 8 * 16 * KIB
    assert free < node.peak_bytes + set_apart <= free + OVERRUN


async def test_an_open_connection_counts_16_kib_and_all_of_them_half_of_the_budget(
    run: Run,
) -> None:
    async with run(MIB, 128 * KIB) as node:
        clients = await node.clients(10)
        await node.until(lambda: node.memory.connections_bytes == 160 * KIB)
        clients += await node.clients(30)
        await node.until(lambda: len(node.node.registry.connections) in (0, 40))
        assert node.memory.connections_bytes == 512 * KIB
        assert not node.memory.promise(512 * KIB + 1)
        assert await node.accepts(100 * KIB)
        for each in clients:
            await each.aclose()
        await node.pass_time(0.5)  # one that waits for memory is read on before its end is seen
        await node.until(lambda: node.memory.connections_bytes == 0)


async def test_work_that_needs_more_than_half_of_the_budget_waits_for_half_of_it(
    run: Run,
) -> None:
    """To read on needs 256 KiB; this budget has no more than that."""
    longest = 60 * KIB
    async with run(4 * longest, longest) as node:
        client = await node.client()
        set_apart = node.leave_free(10 * KIB)
        await _begin_all(node, [client], longest - 5 * KIB, longest - 10 * KIB)
        assert node.waiting_connections == 1
        await client.finish()
        node.memory.keep_promise(set_apart)
        assert await node.outcome(client) == "accepted"

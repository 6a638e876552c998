"""A publication of a batch on a simulated disk. The node dies at each step, before or after it, and
loses what was not synced.

Then a client drops the parts, as Spark's abort does, stages the batch anew and publishes it, as
Spark's retry does: each row is there once, in its place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

import anyio
import pytest

from millpond.node.http.app import HttpServices
from millpond.node.testing.inline_threads import running_as_node
from millpond.testing import SimNode, World
from millpond.transports.http.transactions import publish as publishing
from tests.node.http.test_transaction_metrics import Asking
from tests.transports.http.client import Client

STEPS = ("writer_status", "_check_whole", "_hold", "_add", "_drop", "_rows")
ROWS = [b"row %d" % number for number in range(10)]
Step = Callable[..., Awaitable[object]]


class Killed:
    """The step at which a publication stays: `number` of all calls, before it or after it."""

    def __init__(self, number: int, *, is_before: bool) -> None:
        self._number = number
        self._is_before = is_before
        self._numbers = count()
        self.reached = anyio.Event()

    def counted(self, step: Step) -> Step:
        """The step as the publisher calls it."""

        async def run(*args: object) -> object:
            is_last = next(self._numbers) == self._number
            if is_last and self._is_before:
                await self._stay()
            result = await step(*args)
            if is_last:
                await self._stay()
            return result

        return run

    async def _stay(self) -> None:
        self.reached.set()
        await anyio.sleep_forever()


def asking(node: SimNode) -> Asking:
    """A client of a running node."""
    running = node.node
    http = HttpServices(
        running.config,
        running.services,
        running._sources,
        running._streams.counters,
        running.browser_policy,
    )
    return Asking(Client(http.application()))


async def died_at(number: int, *, is_before: bool) -> bool:
    """Let a node die at a step, and check what is left; False: a publication has no such step."""
    killed = Killed(number, is_before=is_before)
    async with World(number + 1) as world:
        node = await world.node("pond")
        with running_as_node(), pytest.MonkeyPatch.context() as patch:
            for name in STEPS:
                patch.setattr(
                    publishing.Publisher, name, killed.counted(getattr(publishing.Publisher, name))
                )
            client = asking(node)
            await client.create("s")
            await client.stage(0, "a", *ROWS[:5])
            await client.stage(0, "b", *ROWS[5:])
            is_done = False
            async with anyio.create_task_group() as tasks:

                async def publish() -> None:
                    nonlocal is_done
                    assert await client.publish(0, a=5, b=5) == "published"
                    is_done = True
                    killed.reached.set()

                tasks.start_soon(publish)
                await killed.reached.wait()
                await node.crash()
                tasks.cancel_scope.cancel()
        await node.start()
        with running_as_node():
            client = asking(node)
            there = await client.rows("s")
            assert there == ROWS[: len(there)], "a batch becomes visible in its order"
            dropped = [await client.drop(0, part) for part in ("a", "b")]
            assert len(set(dropped)) == 1 or not there
            await client.stage(0, "c", *ROWS[:5])
            await client.stage(0, "d", *ROWS[5:])
            outcome = await client.publish(0, c=5, d=5)
            assert outcome == ("duplicate" if there else outcome)
            assert outcome in ("published", "duplicate")
            assert await client.rows("s") == ROWS
            assert await client.publish(0, c=5, d=5) == "duplicate"
            assert await client.rows("s") == ROWS
    return not is_done


@pytest.mark.parametrize("is_before", [True, False])
async def test_a_node_that_dies_at_any_step_of_a_publication(
    is_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "SLICE_ROWS", 3)
    monkeypatch.setattr(publishing, "READ_ROWS", 3)
    steps = 0
    while await died_at(steps, is_before=is_before):
        steps += 1
    assert steps > 12

"""The benchmark of materialized state: events through our classes, a node, and a follower."""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import anyio
import msgspec

from millpond.actors.state.events import ChangeEvent, decode
from millpond.actors.state.fold import Fold
from millpond.actors.state.materialized import MaterializedState
from millpond.actors.state.schema import Collection, StreamState
from millpond.actors.state.table import StateTable
from millpond.node.bench.own_node import OwnNode
from millpond.node.bench.removal import removed_at_the_end
from millpond.node.client.state.follower import FollowSettings, follow_state
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.stream import Stream
from millpond.node.environment import rss_bytes
from millpond.node.jobs.connector import ConnectionOptions

BATCH = 1000
NAME = b"bench"
DELETED_EVERY = 20


class Customer(msgspec.Struct):
    """A value of the benchmark."""

    name: str
    age: int
    tags: list[str]


class StateResult(msgspec.Struct, frozen=True):
    """The result of a row.

    `bytes_each`: growth of the process's memory for each final value (None: not measured).
    `faults`: values that differ from what they have to be.
    """

    row: str
    events: int
    keys: int
    seconds: float
    rate: float
    bytes_each: float | None
    faults: int

    @property
    def ok(self) -> bool:
        """All values are right."""
        return not self.faults


Clock = Callable[[], float]
Batches = list[list[bytes]]


def event(number: int, keys: int) -> bytes:
    """Event `number`: a value of about 70 bytes, or a deletion."""
    # The order of keys defeats caches.
    key = number * 7919 % keys
    if number % DELETED_EVERY == DELETED_EVERY - 1:
        return b'{"type":"customer","key":"c%d","headers":{"operation":"delete"}}' % key
    return (
        b'{"type":"customer","key":"c%d","value":{"name":"customer %d","age":%d,'
        b'"tags":["a","b"]},"headers":{"operation":"update"}}' % (key, key, number)
    )


def events(count: int, keys: int) -> Iterator[list[bytes]]:
    """All events in batches, the same in each run."""
    for start in range(0, count, BATCH):
        yield [event(number, keys) for number in range(start, min(start + BATCH, count))]


def expected(count: int, keys: int) -> dict[str, int | None]:
    """The final age of each key; None where it is deleted."""
    found: dict[str, int | None] = {}
    for number in range(count):
        is_gone = number % DELETED_EVERY == DELETED_EVERY - 1
        found[f"c{number * 7919 % keys}"] = None if is_gone else number
    return found


def in_process(count: int, keys: int) -> Iterator[StateResult]:
    """The rows of our classes alone, on events in memory.

    Each runs in a process of its own, because one would use the memory that another has freed.
    """
    for row in ROWS:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield process.submit(_measure, row, count, keys).result()


def _measure(row: str, count: int, keys: int) -> StateResult:
    batches = list(events(count, keys))
    gc.collect()
    before, began = rss_bytes(), time.perf_counter()
    found = ROWS[row](batches)
    seconds = time.perf_counter() - began
    grown = rss_bytes() - before
    values = dict(found.get_type("customer"))
    faults = _faults(values, expected(count, keys))
    return StateResult(row, count, keys, seconds, count / seconds, grown / len(values), faults)


def _as_state(batches: Batches) -> MaterializedState:
    state = MaterializedState()
    for batch in batches:
        state.apply_batch(each for each in map(decode, batch) if isinstance(each, ChangeEvent))
    return state


def _as_fold(batches: Batches, definition: StreamState | None = None) -> MaterializedState:
    fold = Fold(definition)
    sequence = 0
    for batch in batches:
        for body in batch:
            fold.take(sequence, body)
            sequence += 1
    return fold.state


def _as_typed(batches: Batches) -> MaterializedState:
    return _as_fold(batches, StreamState(customers=Collection("customer", Customer)))


def _as_held(batches: Batches) -> MaterializedState:
    holding = StateTable()
    for batch in batches:
        for body in batch:
            holding.take(body)
    return holding.state


ROWS: dict[str, Callable[[Batches], MaterializedState]] = {
    "state": _as_state,
    "fold": _as_fold,
    "fold, schema": _as_typed,
    "node's form": _as_held,
}


def _faults(values: dict[str, Any], ages: dict[str, int | None]) -> int:
    faults = 0
    for key, age in ages.items():
        value = values.get(key)
        if isinstance(value, bytes):
            value = msgspec.json.decode(value)
        faults += (None if value is None else value["age"]) != age
    return faults


async def through_node(
    node: OwnNode,
    count: int,
    keys: int,
    clock: Clock,
    name: bytes = NAME,
    options: ConnectionOptions | None = None,
) -> list[StateResult]:
    """A stream of a node: materialized there, and by a client that follows it."""
    ages = expected(count, keys)
    async with connect_streams(node.url, **(options or {})) as streams:
        stream = streams.stream(name)
        await stream.create()
        async with removed_at_the_end(stream.delete):
            for batch in events(count, keys):
                await stream.append(batch)
            return [
                await _materialized(node, stream, count, keys, ages, clock),
                await _followed(stream, count, keys, ages, clock),
            ]


async def _materialized(
    node: OwnNode, stream: Stream, count: int, keys: int, ages: dict[str, int | None], clock: Clock
) -> StateResult:
    await anyio.sleep(1.0)  # what the appends left to be done is done
    before, began = _memory_of(node) if node.pid else 0, clock()
    info = await stream.state.info()
    seconds = clock() - began
    grown = _memory_of(node) - before if node.pid else 0
    values = {row.key: row.value async for row in stream.state.rows()}
    faults = _faults(values, ages) + (info.changes != count)
    each = grown / len(values) if node.pid else None
    return StateResult("node", count, keys, seconds, count / seconds, each, faults)


async def _followed(
    stream: Stream, count: int, keys: int, ages: dict[str, int | None], clock: Clock
) -> StateResult:
    began = clock()
    async with follow_state(stream, None, FollowSettings()) as view:
        await view.caught_up()
        seconds = clock() - began
        faults = _faults(dict(view.get_type("customer")), ages)
    return StateResult("follower", count, keys, seconds, count / seconds, None, faults)


def _memory_of(node: OwnNode) -> int:
    pages = int(Path(f"/proc/{node.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()

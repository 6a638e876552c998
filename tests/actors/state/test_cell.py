"""The cell of a state, beside a stream whose store is slow, fails, or whose behaviour crashes."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from millpond.actors.errors import Code
from millpond.actors.messages import Attach, Batch, Detach, Failed, Port, Reply, StreamRequest
from millpond.actors.runtime.cell import Behaviour, CellSnapshot
from millpond.actors.state.cell import StateCell, StateContext
from millpond.actors.state.checkpoint_store import CheckpointStore
from millpond.actors.state.fold import Fold
from millpond.actors.state.messages import (
    DescribeState,
    GetValue,
    ListValues,
    StateDescribed,
    StateLimits,
    Value,
    Values,
)
from millpond.actors.state.stats import StateUsage
from millpond.actors.store.changes import Chunk
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Deferred, Fault, Seek
from millpond.actors.store.memory import MemoryStore
from millpond.actors.streams import messages as m
from millpond.actors.streams.names import state_cell, state_of
from tests.actors.recording_port import RecordingPort
from tests.actors.streams.harness import NAME, SlowMemory, StreamHarness, rows_of

LIMITS = StateLimits(waiting_max=3, save_every=3)


class Pool(StreamHarness):
    """The streams harness with states; in a folder they are written down."""

    checkpoints: CheckpointStore | None = None

    def __init__(
        self, folder: Path | None = None, limits: StateLimits = LIMITS, **options: Any
    ) -> None:
        self.usage = StateUsage()
        self.state_shared = StateContext(self.post, limits, self.usage)
        super().__init__(folder, **options)

    def open(self) -> None:
        super().open()
        if self.folder is not None and self.loop is not None:
            most = self.state_shared.limits.disk_bytes_max
            self.checkpoints = CheckpointStore(self.folder, OsDisk(), self.loop, most)
            self.directory.on_deleted = self.checkpoints.forget

    def _spawn(self, cell: bytes, kept: CellSnapshot, consumers: dict[Port, Attach]) -> Behaviour:
        name = state_of(cell)
        if name is not None:
            return StateCell(name, self.state_shared, self.checkpoints)
        return super()._spawn(cell, kept, consumers)

    def question(self, query: StreamRequest) -> RecordingPort:
        """A connection that asked about the state."""
        port = self.port()
        self.scheduler.submit(state_cell(NAME), Batch(port, [query]), self.now)
        return port

    def answer(self, query: StreamRequest) -> Reply:
        port = self.question(query)
        self.settle()
        (reply,) = port.take()
        return reply

    def values(self) -> dict[str, Any] | Code:
        """All values of a state of one type, or why there are none."""
        told = self.answer(ListValues(0, count=1000))
        if isinstance(told, Failed):
            return told.code
        assert isinstance(told, Values) and not told.more
        return {key: json.loads(value) for _, key, value in told.rows}


def put(key: str, value: Any) -> bytes:
    event = {"type": "t", "key": key, "value": value, "headers": {"operation": "insert"}}
    return json.dumps(event).encode()


def test_nothing_is_shown_before_it_is_kept() -> None:
    store = SlowMemory()
    pool = Pool(store=store)
    pool.create()
    pool.append(put("a", 1))
    assert pool.values() == {"a": 1}
    store.is_slow = True
    writer = pool.port()
    pool.say(writer, m.Append(0, [put("a", 2)]))
    pool.settle()
    assert pool.values() == {"a": 1} and not writer.take()
    store.finish()
    pool.settle()
    assert [type(each) for each in writer.take()] == [m.Appended]
    assert pool.values() == {"a": 2}


def test_changes_that_were_not_stored_are_undone() -> None:
    store = SlowMemory()
    pool = Pool(store=store)
    pool.create()
    pool.append(put("a", 1))
    assert pool.values() == {"a": 1}
    store.is_slow = store.is_doomed = True
    writer = pool.port()
    pool.say(writer, m.Append(0, [put("a", 2)]))
    pool.settle()
    store.finish(Fault.NOT_STORED)
    store.is_slow = store.is_doomed = False
    pool.advance(10)
    pool.append(put("b", 3))
    assert pool.values() == {"a": 1, "b": 3}


def test_a_stream_that_crashes_has_its_state_again() -> None:
    pool = Pool()
    pool.create()
    pool.append(put("a", 1))
    assert pool.values() == {"a": 1}
    pool.crash_on.add(m.Trim)
    pool.ask(m.Trim(0, 0))
    pool.crash_on.clear()
    pool.advance(10)
    pool.append(put("b", 2))
    assert pool.values() == {"a": 1, "b": 2}


class Silent(MemoryStore):
    """Gives no answer to reads until the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[tuple[Deferred[list[Chunk] | Fault], bytes, Seek]] | None = None
        self.answered = 0
        """So many are answered all the same."""

    def read(self, name: bytes, seek: Seek) -> Any:
        if self.reads is None or self.answered > 0:
            self.answered -= 1
            return super().read(name, seek)
        pending: Deferred[list[Chunk] | Fault] = Deferred()
        self.reads.append((pending, name, seek))
        return pending

    def finish(self, fault: Fault | None = None) -> None:
        for pending, name, seek in self.reads or ():
            pending.finish(fault or super().read(name, seek))
        self.reads = None


def silent() -> tuple[Silent, Pool]:
    store = Silent()
    pool = Pool(store=store)
    pool.create()
    pool.append(put("a", 1))
    store.reads = []
    return store, pool


def test_a_query_is_answered_once_the_state_is_current() -> None:
    store, pool = silent()
    ports = [pool.question(GetValue(number, "t", "a")) for number in range(3)]
    gone = ports.pop()
    pool.scheduler.detach(state_cell(NAME), gone)
    pool.settle()
    assert [port.take() for port in ports] == [[], []]
    store.finish()
    pool.settle()
    assert [port.take() for port in ports] == [[Value(0, 1, b"1")], [Value(1, 1, b"1")]]
    assert gone.take() == []


def test_too_many_and_too_long_waiting_queries_are_refused() -> None:
    store, pool = silent()
    ports = [pool.question(GetValue(0, "t", "a")) for _ in range(4)]
    pool.settle()
    (refused,) = ports.pop().take()
    assert isinstance(refused, Failed) and refused.code is Code.BUFFER_FULL
    pool.advance(LIMITS.wait_s + 1)
    for port in ports:
        (late,) = port.take()
        assert isinstance(late, Failed) and (late.code, late.delay_ms) == (Code.SLOW_DOWN, 1000)
    store.finish()
    assert pool.values() == {"a": 1}


def test_a_stream_that_cannot_be_read_is_reported_and_read_again() -> None:
    store, pool = silent()
    port = pool.question(GetValue(0, "t", "a"))
    pool.settle()
    store.finish(Fault.UNREADABLE)
    pool.settle()
    (refused,) = port.take()
    assert isinstance(refused, Failed) and refused.code is Code.STORAGE_FAILED
    assert pool.values() == {"a": 1}


def test_a_stream_that_is_made_anew_while_it_is_read_has_a_state_of_its_own() -> None:
    store = Silent()
    pool = Pool(store=store)
    pool.create()
    for start in range(0, 1500, 500):
        pool.append(*[put(f"old {number}", 1) for number in range(start, start + 500)])
    store.reads, store.answered = [], 1
    port = pool.question(DescribeState(0))
    pool.settle()
    assert len(store.reads) == 1 and not port.take()
    anew = [put(f"{number % 5}", number) for number in range(2000)]
    pool.ask(m.Delete(0), m.Create(1), m.Append(2, anew))
    store.finish()
    pool.settle()
    assert pool.values() == {f"{number}": 1995 + number for number in range(5)}


def test_a_stopping_node_refuses_waiting_queries() -> None:
    _, pool = silent()
    port = pool.question(GetValue(0, "t", "a"))
    pool.settle()
    pool.scheduler.drain()
    pool.settle()
    (refused,) = port.take()
    assert isinstance(refused, Failed)
    assert isinstance(pool.answer(DescribeState(0)), Failed)


def test_a_node_that_stops_reads_no_more() -> None:
    pool = Pool()
    pool.create()
    pool.append(put("a", 1))
    assert pool.values() == {"a": 1}
    pool.scheduler.drain()
    assert pool.values() is Code.BUFFER_FULL
    pool.advance(3600)


def test_an_idle_state_takes_no_memory() -> None:
    pool = Pool()
    pool.create()
    pool.append(put("a", 1))
    assert pool.values() == {"a": 1} and pool.usage.bytes > 0 and pool.usage.count == 1
    assert pool.describe().info.waiting == 1
    pool.advance(LIMITS.idle_s + 1)
    assert (pool.usage.bytes, pool.usage.count) == (0, 0)
    assert pool.describe().info.waiting == 0 and state_cell(NAME) not in pool.scheduler.cells


def test_a_state_above_its_limit_is_tried_again_later() -> None:
    pool = Pool(limits=StateLimits(bytes_max=1000))
    pool.create()
    for number in range(10):
        pool.append(put(f"{number}", "x" * 50))
    assert pool.values() is Code.STATE_TOO_LARGE and pool.usage.bytes == 0
    pool.append(b'{"headers":{"control":"reset"}}')
    pool.ask(m.Trim(0, 10))
    assert pool.values() is Code.STATE_TOO_LARGE
    pool.advance(61)
    assert pool.values() == {}


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_state_is_that_of_the_stream(seed: int, tmp_path: Path) -> None:
    """Appends, trims, deletions, crashes, restarts and rests; after each the state is what a fold
    of the records makes, where none of them were trimmed before they were read."""
    rng = Random(seed)
    pool = Pool(tmp_path if seed % 2 else None)
    for _ in range(60):
        match rng.randrange(12):
            case 0:
                pool.ask(m.Delete(0))
                pool.advance(0.01)
                pool.ask(m.Create(0))
            case 1:
                pool.crash_on.add(m.Append)
                pool.ask(m.Append(0, [put("x", rng.random())]))
                pool.crash_on.clear()
                pool.advance(15)
            case 2 if seed % 2:
                pool.restart()
            case 3:
                pool.advance(rng.choice([1, LIMITS.idle_s + 1]))
            case 4:
                pool.ask(m.Append(0, [b"no event", b"", b'{"headers":{"control":"reset"}}']))
            case _:
                events = [put(rng.choice("abcd"), rng.random()) for _ in range(rng.randrange(1, 5))]
                pool.ask(m.Append(0, events))
        check(pool)
    pool.close()


def check(pool: Pool) -> None:
    found = pool.ask(m.Describe(0))[0]
    values = pool.values()
    if isinstance(found, m.StreamFailed):
        assert values is Code.UNKNOWN_STREAM
        return
    fold = Fold()
    for sequence, _, _, body in rows_of(pool.read()):
        if body:
            fold.take(sequence, body)
    assert values == dict(fold.state.get_type("t"))
    told = pool.answer(DescribeState(0))
    assert isinstance(told, StateDescribed)
    assert (told.info.changes, told.info.resets) == (fold.stats.changes, fold.stats.resets)


def test_other_requests_are_refused() -> None:
    pool = Pool()
    told = pool.answer(m.Describe(0))
    assert isinstance(told, Failed) and told.code is Code.MALFORMED
    pool.scheduler.submit(state_cell(NAME), Batch(pool.port(), [Detach()]), pool.now)
    pool.settle()
    assert state_cell(NAME) not in pool.scheduler.cells

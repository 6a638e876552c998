"""Crashes cost what was in hand and nothing else: cells first, then task actors."""

from __future__ import annotations

import logging
from itertools import pairwise
from random import Random

import anyio
import pytest
import trio.testing

from millpond.actors.errors import Code
from millpond.actors.messages import Ack, Attach, Attached, Failed, Get, GetAck, Mode, Put
from millpond.actors.runtime.supervisor import (
    RestartPolicy,
    Restarts,
    RestartsExceeded,
    contain,
    supervise,
)
from tests.actors.recording_port import RecordingPort
from tests.actors.runtime.harness import START_S, RuntimeHarness

A, B = b"a", b"b"
virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def crashed(runtime: RuntimeHarness, port: RecordingPort) -> float:
    """Let A crash once; gives how long it rests."""
    runtime.submit(A, port, Ack(0))
    return runtime.scheduler.cells[A].resumes_at - runtime.now


def test_the_batch_in_hand_has_an_unknown_outcome_and_is_not_run_again() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    batch = [Put(1, 60, b"lost"), Get(1), Ack(0), Get(2)]
    runtime.submit(A, port, *batch)
    assert port.take() == [Failed(each, Code.OUTCOME_UNKNOWN) for each in batch]
    runtime.pass_time(60)
    assert runtime.ids(A) == [1]
    assert runtime.store.load(A).rows == [] and runtime.spawned[-1].kept == []


def test_the_mail_survives_and_runs_after_the_backoff() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.submit(A, port, Put(1, 60, b"kept"))
    rest_s = crashed(runtime, port)
    port.take()
    assert 0.025 <= rest_s <= 0.05
    assert runtime.submit(A, port, Get(1)) and runtime.submit(A, port, Get(2))
    runtime.pass_time(rest_s * 0.99)
    assert port.take() == []
    runtime.pass_time(rest_s * 0.02)
    assert port.take() == [GetAck(1, b""), GetAck(2, b"")]
    assert runtime.spawned[-1].kept == [1]


def test_siblings_never_notice() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    crashed(runtime, port)
    port.take()
    runtime.submit(B, port, Get(1))
    assert port.take() == [GetAck(1, b"")]


def test_connections_are_attached_again_unless_they_left() -> None:
    runtime, stays, leaves = RuntimeHarness(), RecordingPort(1), RecordingPort(2)
    for port in (stays, leaves):
        runtime.scheduler.attach(A, port, Attach(), runtime.now)
    crashed(runtime, stays)
    runtime.scheduler.detach(A, leaves)
    runtime.pass_time(0.05)
    assert runtime.spawned[-1].attachments == [stays]


def test_a_connection_to_a_crashed_cell_is_attached_after_its_restart() -> None:
    runtime, port, consumer = RuntimeHarness(), RecordingPort(1), RecordingPort(2)
    crashed(runtime, port)
    runtime.scheduler.attach(A, consumer, Attach(), runtime.now)
    assert consumer.take() == []
    runtime.pass_time(0.05)
    assert consumer.take() == [Attached(Mode.PAIR, 1)]


def test_a_crash_while_waking_is_a_crash_like_any_other() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.deadlines = {A: START_S + 5}

    def fail(name: bytes, now: float) -> None:
        runtime.on_wake = lambda name, now: None
        raise RuntimeError("the clock is wrong")

    runtime.on_wake = fail
    runtime.submit(A, port, Put(1, 60, b""))
    runtime.pass_time(5)
    assert runtime.scheduler.counters.crashes == 1 and len(runtime.spawned) == 1
    runtime.pass_time(0.05)
    assert len(runtime.spawned) == 2 and runtime.spawned[1].kept == [1]


def test_the_backoff_doubles_up_to_its_limit_and_crashes_are_forgotten() -> None:
    policy, restarts, rng = RestartPolicy(restarts_max=10), Restarts(), Random(1)
    rests = [restarts.count(policy, rng, float(now)) for now in range(10)]
    for number, rest_s in enumerate(rests):
        ceiling = min(10.0, 0.05 * 2**number)
        assert ceiling / 2 <= rest_s <= ceiling
    assert restarts.count(policy, rng, 1000.0) <= 0.05


def test_a_cell_that_keeps_crashing_is_quarantined_alone() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    for _ in range(5):
        runtime.now += crashed(runtime, port)
    assert runtime.scheduler.counters.quarantines == 0
    runtime.submit(A, port, Ack(0))
    assert runtime.scheduler.counters.quarantines == 1
    port.take()
    runtime.submit(A, port, Get(2))
    runtime.submit(B, port, Get(3))
    assert port.take() == [Failed(Get(2), Code.QUARANTINED), GetAck(3, b"")]


def test_batches_that_wait_for_a_quarantined_cell_are_refused() -> None:
    runtime, port = RuntimeHarness(turn_messages=2, mailbox_bytes=10), RecordingPort(1)
    for _ in range(5):
        runtime.now += crashed(runtime, port)
    port.take()
    resumed: list[bool] = []
    runtime.submit(A, port, Get(1), Get(2), Ack(0))
    assert not runtime.submit(A, port, Get(3), Get(4), size=20)
    runtime.scheduler.on_capacity(A, lambda: resumed.append(True))
    runtime.pass_time(0)
    assert port.take() == [
        GetAck(1, b""),
        GetAck(2, b""),
        Failed(Ack(0), Code.OUTCOME_UNKNOWN),
        Failed(Get(3), Code.QUARANTINED),
        Failed(Get(4), Code.QUARANTINED),
    ]
    assert resumed == [True]


def test_a_quarantine_ends_and_connections_are_still_attached() -> None:
    runtime, port, consumer = RuntimeHarness(), RecordingPort(1), RecordingPort(2)
    runtime.scheduler.attach(A, consumer, Attach(), runtime.now)
    for _ in range(6):
        runtime.now += crashed(runtime, port)
    assert runtime.scheduler.counters.quarantines == 1
    spawned = len(runtime.spawned)
    runtime.now -= 1
    port.take()
    runtime.submit(A, port, Get(1))
    assert port.take() == [Failed(Get(1), Code.QUARANTINED)]
    runtime.pass_time(1)
    assert len(runtime.spawned) == spawned + 1 and runtime.spawned[-1].attachments == [consumer]
    runtime.submit(A, port, Get(1))
    assert port.take() == [GetAck(1, b"")]


def test_a_cell_that_cannot_be_built_is_quarantined_too() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    spawn, runtime.scheduler._spawn = runtime.scheduler._spawn, lambda *given: 1 // 0
    runtime.submit(A, port, Get(1))
    assert port.take() == [Failed(Get(1), Code.OUTCOME_UNKNOWN)]
    for _ in range(100):
        runtime.pass_time(0.1)
    assert runtime.scheduler.counters.quarantines == 1
    runtime.scheduler._spawn = spawn
    runtime.pass_time(300)
    runtime.submit(A, port, Get(2))
    assert port.take() == [GetAck(2, b"")]


def test_an_empty_cell_is_forgotten_even_if_it_crashed_once() -> None:
    runtime, port = RuntimeHarness(passivate_after_s=60), RecordingPort(1)
    crashed(runtime, port)
    for _ in range(4):
        runtime.pass_time(60)
    assert runtime.scheduler.cells == {}


@virtual_time
async def test_a_task_actor_is_restarted_with_growing_backoff_until_it_returns(
    anyio_backend: object,
) -> None:
    starts: list[float] = []

    async def run() -> None:
        starts.append(anyio.current_time())
        if len(starts) < 4:
            raise OSError("not yet")

    await supervise("test", run, RestartPolicy(), Random(1), anyio.current_time)
    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert len(waits) == 3
    assert all(0.025 * 2**n <= wait <= 0.0501 * 2**n for n, wait in enumerate(waits))


@virtual_time
async def test_a_task_actor_that_crashes_too_often_escalates(anyio_backend: object) -> None:
    starts: list[float] = []

    async def run() -> None:
        starts.append(anyio.current_time())
        raise OSError("never")

    with pytest.raises(RestartsExceeded) as caught:
        await supervise("test", run, RestartPolicy(), Random(1), anyio.current_time)
    assert isinstance(caught.value.__cause__, OSError) and len(starts) == 6


@virtual_time
async def test_crashes_far_apart_never_escalate(anyio_backend: object) -> None:
    starts: list[float] = []

    async def run() -> None:
        starts.append(anyio.current_time())
        await anyio.sleep(30)
        if len(starts) < 20:
            raise OSError("again")

    await supervise("test", run, RestartPolicy(), Random(1), anyio.current_time)
    assert len(starts) == 20


async def test_cancellation_passes_through_supervision(anyio_backend: object) -> None:
    ended: list[str] = []

    async def run() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("ended")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(supervise, "s", run, RestartPolicy(), Random(1), anyio.current_time)
        tasks.start_soon(contain, "c", run)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert ended == ["ended", "ended"]


async def test_a_contained_crash_ends_itself_alone(anyio_backend: object) -> None:
    async def crash() -> None:
        raise OSError("one connection")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(contain, "c", crash)
        await anyio.wait_all_tasks_blocked()
        assert not tasks.cancel_scope.cancel_called

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
from tests.actors.cells import START_S, Works
from tests.actors.ports import RecordingPort

A, B = b"a", b"b"
virtual_time = pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
)


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def crashed(works: Works, port: RecordingPort) -> float:
    """Let A crash once; gives how long it rests."""
    works.submit(A, port, Ack(0))
    return works.scheduler.cells[A].resumes_at - works.now


def test_the_batch_in_hand_has_an_unknown_outcome_and_is_not_run_again() -> None:
    works, port = Works(), RecordingPort(1)
    batch = [Put(1, 60, b"lost"), Get(1), Ack(0), Get(2)]
    works.submit(A, port, *batch)
    assert port.take() == [Failed(each, Code.OUTCOME_UNKNOWN) for each in batch]
    works.pass_time(60)
    assert works.ids(A) == [1]
    assert works.store.load(A).rows == [] and works.spawned[-1].kept == []


def test_the_mail_survives_and_runs_after_the_backoff() -> None:
    works, port = Works(), RecordingPort(1)
    works.submit(A, port, Put(1, 60, b"kept"))
    rest_s = crashed(works, port)
    port.take()
    assert 0.025 <= rest_s <= 0.05
    assert works.submit(A, port, Get(1)) and works.submit(A, port, Get(2))
    works.pass_time(rest_s * 0.99)
    assert port.take() == []
    works.pass_time(rest_s * 0.02)
    assert port.take() == [GetAck(1, b""), GetAck(2, b"")]
    assert works.spawned[-1].kept == [1]


def test_siblings_never_notice() -> None:
    works, port = Works(), RecordingPort(1)
    crashed(works, port)
    port.take()
    works.submit(B, port, Get(1))
    assert port.take() == [GetAck(1, b"")]


def test_guests_are_admitted_again_and_who_left_meanwhile_is_not() -> None:
    works, stays, leaves = Works(), RecordingPort(1), RecordingPort(2)
    for port in (stays, leaves):
        works.scheduler.attach(A, port, Attach(), works.now)
    crashed(works, stays)
    works.scheduler.detach(A, leaves)
    works.pass_time(0.05)
    assert works.spawned[-1].guests == [stays]


def test_who_comes_while_a_cell_rests_is_welcomed_afterwards() -> None:
    works, port, guest = Works(), RecordingPort(1), RecordingPort(2)
    crashed(works, port)
    works.scheduler.attach(A, guest, Attach(), works.now)
    assert guest.take() == []
    works.pass_time(0.05)
    assert guest.take() == [Attached(Mode.PAIR, 1)]


def test_a_crash_while_waking_is_a_crash_like_any_other() -> None:
    works, port = Works(), RecordingPort(1)
    works.deadlines = {A: START_S + 5}

    def fail(name: bytes, now: float) -> None:
        works.on_wake = lambda name, now: None
        raise RuntimeError("the clock is wrong")

    works.on_wake = fail
    works.submit(A, port, Put(1, 60, b""))
    works.pass_time(5)
    assert works.scheduler.counters.crashes == 1 and len(works.spawned) == 1
    works.pass_time(0.05)
    assert len(works.spawned) == 2 and works.spawned[1].kept == [1]


def test_the_backoff_doubles_up_to_its_limit_and_crashes_are_forgotten() -> None:
    policy, restarts, rng = RestartPolicy(restarts_max=10), Restarts(), Random(1)
    rests = [restarts.count(policy, rng, float(now)) for now in range(10)]
    for number, rest_s in enumerate(rests):
        ceiling = min(10.0, 0.05 * 2**number)
        assert ceiling / 2 <= rest_s <= ceiling
    assert restarts.count(policy, rng, 1000.0) <= 0.05


def test_a_cell_that_keeps_crashing_is_quarantined_alone() -> None:
    works, port = Works(), RecordingPort(1)
    for _ in range(5):
        works.now += crashed(works, port)
    assert works.scheduler.counters.quarantines == 0
    works.submit(A, port, Ack(0))
    assert works.scheduler.counters.quarantines == 1
    port.take()
    works.submit(A, port, Get(2))
    works.submit(B, port, Get(3))
    assert port.take() == [Failed(Get(2), Code.QUARANTINED), GetAck(3, b"")]


def test_what_waits_for_a_cell_that_is_quarantined_is_answered() -> None:
    works, port = Works(turn_messages=2, mailbox_bytes=10), RecordingPort(1)
    for _ in range(5):
        works.now += crashed(works, port)
    port.take()
    resumed: list[bool] = []
    works.submit(A, port, Get(1), Get(2), Ack(0))
    assert not works.submit(A, port, Get(3), Get(4), size=20)
    works.scheduler.on_capacity(A, lambda: resumed.append(True))
    works.pass_time(0)
    assert port.take() == [
        GetAck(1, b""),
        GetAck(2, b""),
        Failed(Ack(0), Code.OUTCOME_UNKNOWN),
        Failed(Get(3), Code.QUARANTINED),
        Failed(Get(4), Code.QUARANTINED),
    ]
    assert resumed == [True]


def test_a_quarantine_ends_and_the_guests_are_still_there() -> None:
    works, port, guest = Works(), RecordingPort(1), RecordingPort(2)
    works.scheduler.attach(A, guest, Attach(), works.now)
    for _ in range(6):
        works.now += crashed(works, port)
    assert works.scheduler.counters.quarantines == 1
    spawned = len(works.spawned)
    works.now -= 1
    port.take()
    works.submit(A, port, Get(1))
    assert port.take() == [Failed(Get(1), Code.QUARANTINED)]
    works.pass_time(1)
    assert len(works.spawned) == spawned + 1 and works.spawned[-1].guests == [guest]
    works.submit(A, port, Get(1))
    assert port.take() == [GetAck(1, b"")]


def test_a_cell_that_cannot_be_built_is_quarantined_too() -> None:
    works, port = Works(), RecordingPort(1)
    spawn, works.scheduler._spawn = works.scheduler._spawn, lambda *given: 1 // 0
    works.submit(A, port, Get(1))
    assert port.take() == [Failed(Get(1), Code.OUTCOME_UNKNOWN)]
    for _ in range(100):
        works.pass_time(0.1)
    assert works.scheduler.counters.quarantines == 1
    works.scheduler._spawn = spawn
    works.pass_time(300)
    works.submit(A, port, Get(2))
    assert port.take() == [GetAck(2, b"")]


def test_an_empty_cell_is_forgotten_even_if_it_crashed_once() -> None:
    works, port = Works(passivate_after_s=60), RecordingPort(1)
    crashed(works, port)
    for _ in range(4):
        works.pass_time(60)
    assert works.scheduler.cells == {}


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

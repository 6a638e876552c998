"""The runtime of cells: inline when idle, queued when not, fair, bounded, woken in time."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import anyio.lowlevel
import pytest
import trio.testing

from millpond.actors.messages import Ack, Attach, Attached, Batch, Get, GetAck, Mode, Put
from millpond.actors.runtime.scheduler import LATER_MAX, WAKES_MAX
from millpond.actors.store.changes import StoredMessage
from tests.actors.recording_port import RecordingPort
from tests.actors.runtime.harness import START_S, LateStore, RuntimeHarness

A, B = b"a", b"b"


def gets(start: int, end: int) -> list[Get]:
    return [Get(each) for each in range(start, end)]


def test_an_idle_cell_runs_in_its_sender_s_turn_and_flushes_once() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    assert runtime.submit(A, port, *gets(0, 3))
    assert port.take() == [GetAck(each, b"") for each in range(3)]
    assert port.flushes == 1 and runtime.scheduler.is_idle


def test_a_change_is_kept_before_its_reply_is_sent() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    seen: list[list[StoredMessage]] = []
    port.on_send = lambda replies: seen.append(runtime.store.load(A).rows)
    runtime.submit(A, port, Put(7, 60, b"hi"), Get(7))
    assert [[row.key for row in rows] for rows in seen] == [[7]]


def test_mail_for_a_busy_cell_waits_for_the_next_turn_in_order() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)

    def more(replies: Sequence[object]) -> None:
        port.on_send = None
        runtime.submit(A, port, Get(2))
        runtime.submit(A, port, Get(3))
        assert runtime.ids(A) == [1]

    port.on_send = more
    runtime.submit(A, port, Get(1))
    runtime.submit(A, port, Get(4))  # behind what waits already
    assert runtime.ids(A) == [1]
    assert not runtime.scheduler.is_idle
    runtime.pass_time(0)
    assert runtime.ids(A) == [1, 2, 3, 4]


def test_a_batch_of_ten_thousand_starves_no_cell() -> None:
    runtime, port = RuntimeHarness(turn_messages=512), RecordingPort(1)
    runtime.submit(A, port, *gets(0, 10_000))
    runtime.submit(A, port, Get(10_000))
    runtime.submit(B, port, *gets(0, 600))
    runtime.submit(b"idle", port, Get(1))
    assert runtime.ids(b"idle") == [1] and runtime.ids(A) == []
    runtime.scheduler.turn(runtime.now)
    assert (len(runtime.ids(A)), len(runtime.ids(B))) == (512, 512)
    runtime.scheduler.turn(runtime.now)
    assert (len(runtime.ids(A)), len(runtime.ids(B))) == (1024, 600)
    runtime.pass_time(0)
    assert runtime.ids(A) == list(range(10_001))


def test_batches_that_nobody_waits_for_come_a_few_a_turn() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    cells = [b"%03d" % number for number in range(3 * LATER_MAX)]
    for each in cells:
        runtime.scheduler.submit_later(each, Batch(port, [Get(1)]), runtime.now)
    assert all(runtime.ids(each) == [] for each in cells)
    runtime.submit(A, port, Get(1))
    assert runtime.ids(A) == [1], "others are served at once"
    runtime.submit(cells[-1], port, Get(2))
    assert runtime.ids(cells[-1]) == [], "a cell takes its batches in order"
    for turn in range(1, 4):
        assert not runtime.scheduler.is_idle
        assert runtime.scheduler.turn(runtime.now) == (turn < 3)
        assert sum(bool(runtime.ids(each)) for each in cells) == turn * LATER_MAX
    assert runtime.ids(cells[-1]) == [1, 2] and runtime.scheduler.is_idle


def test_a_full_mailbox_says_so_and_calls_when_half_of_it_is_free() -> None:
    runtime, port = RuntimeHarness(turn_messages=2, mailbox_bytes=100), RecordingPort(1)
    calls: list[str] = []
    runtime.submit(A, port, *gets(0, 3), size=10)  # too much for one turn: queued
    assert runtime.submit(A, port, *gets(3, 5), size=60)
    assert not runtime.submit(A, port, *gets(5, 7), size=60)
    runtime.scheduler.on_capacity(A, lambda: calls.append("a"))
    runtime.scheduler.on_capacity(b"unknown", lambda: calls.append("unknown"))
    assert calls == ["unknown"]
    runtime.scheduler.turn(runtime.now)
    runtime.scheduler.turn(runtime.now)
    assert calls == ["unknown"]  # 120 bytes still wait, or 60
    runtime.pass_time(0)
    assert calls == ["unknown", "a"] and runtime.ids(A) == list(range(7))
    runtime.scheduler.on_capacity(A, lambda: calls.append("at once"))
    assert calls[-1] == "at once"


def test_a_resumed_connection_may_send_from_within_the_call() -> None:
    runtime, port = RuntimeHarness(turn_messages=2, mailbox_bytes=10), RecordingPort(1)
    assert not runtime.submit(A, port, *gets(0, 3), size=20)
    runtime.scheduler.on_capacity(A, lambda: runtime.submit(A, port, Get(3), size=20) and None)
    runtime.pass_time(0)
    assert runtime.ids(A) == [0, 1, 2, 3]


def test_cells_post_to_one_another_and_each_connection_is_written_once() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.on_ack = lambda name, number: [(B, Get(number)), (A, Get(number + 1))]
    runtime.submit(A, port, Ack(1), Get(9))
    assert runtime.ids(B) == [1] and runtime.ids(A) == [9]
    runtime.pass_time(0)
    assert runtime.ids(A) == [9, 2]
    assert port.flushes == 1


def test_a_cell_is_woken_at_its_earliest_deadline() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.deadlines = {A: START_S + 5, B: START_S + 3}
    for name in (A, B):
        runtime.submit(name, port, Put(1, 60, b""))
    assert runtime.scheduler.timers.next_at == START_S + 3
    runtime.pass_time(4)
    assert [(each.name, each.woken) for each in runtime.spawned] == [(A, []), (B, [START_S + 4])]
    runtime.pass_time(1)
    assert runtime.spawned[0].woken == [START_S + 5]


def many_due(runtime: RuntimeHarness, count: int) -> list[bytes]:
    """So many cells that keep something; their deadlines pass in order, before START_S + 1."""
    names = [b"%d" % number for number in range(count)]
    for at, name in enumerate(names):
        runtime.deadlines[name] = START_S + at / count
        runtime.submit(name, RecordingPort(1), Put(1, 60, b""))
    return names


def woken(runtime: RuntimeHarness) -> list[bytes]:
    return [each.name for each in runtime.spawned if each.woken]


def test_deadlines_that_pass_together_are_woken_in_several_turns() -> None:
    """The earliest first, and mail has its share of each turn."""
    runtime, port = RuntimeHarness(), RecordingPort(1)
    names = many_due(runtime, 2 * WAKES_MAX + 10)
    runtime.submit(A, port, *gets(0, 1025))  # too much for two turns
    runtime.now += 1
    assert runtime.scheduler.turn(runtime.now)
    assert (woken(runtime), len(runtime.ids(A))) == (names[:WAKES_MAX], 512)
    assert runtime.scheduler.turn(runtime.now)
    assert (woken(runtime), len(runtime.ids(A))) == (names[: 2 * WAKES_MAX], 1024)
    assert not runtime.scheduler.turn(runtime.now)
    assert (woken(runtime), len(runtime.ids(A))) == (names, 1025)


def test_deadlines_that_have_not_passed_do_not_keep_the_scheduler_awake() -> None:
    runtime = RuntimeHarness()
    many_due(runtime, 2 * WAKES_MAX)
    runtime.now += 0.5
    turns = [runtime.scheduler.turn(runtime.now) for _ in range(3)]
    assert len(woken(runtime)) == WAKES_MAX + 1
    assert turns == [True, False, False]
    assert runtime.scheduler.timers.next_at > runtime.now


async def test_other_tasks_run_while_many_deadlines_pass() -> None:
    runtime = RuntimeHarness()
    count = 4 * WAKES_MAX
    many_due(runtime, count)
    runtime.now += 1
    seen: list[int] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.scheduler.run)
            while not seen or seen[-1] < count:
                await anyio.lowlevel.checkpoint()
                seen.append(len(woken(runtime)))
            tasks.cancel_scope.cancel()
    assert len({each for each in seen if 0 < each < count}) >= 2


def test_an_empty_cell_without_connections_is_forgotten() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.submit(A, port, Get(1))
    assert runtime.scheduler.cells == {}
    assert runtime.scheduler.attach(A, port, Attach(), runtime.now)
    assert list(runtime.scheduler.cells) == [A]
    runtime.scheduler.detach(A, port)
    assert runtime.scheduler.cells == {} and runtime.scheduler.timers.next_at == float("inf")


def test_a_cell_that_keeps_something_is_passivated_and_rebuilt() -> None:
    runtime, port = RuntimeHarness(passivate_after_s=60), RecordingPort(1)
    runtime.submit(A, port, Put(1, 60, b""))
    runtime.pass_time(59)
    runtime.submit(A, port, Put(2, 60, b""))
    runtime.pass_time(59)
    assert runtime.scheduler.cells[A].behaviour is runtime.spawned[0]
    runtime.pass_time(1)
    assert (
        runtime.scheduler.cells[A].behaviour is None
        and runtime.scheduler.counters.passivations == 1
    )
    runtime.submit(A, port, Get(1))
    assert len(runtime.spawned) == 2 and runtime.spawned[1].kept == [1, 2]


def test_a_passivated_cell_keeps_its_deadline() -> None:
    runtime, port = RuntimeHarness(passivate_after_s=60), RecordingPort(1)
    runtime.deadlines = {A: START_S + 500}
    runtime.submit(A, port, Put(1, 60, b""))
    runtime.pass_time(60)
    assert runtime.scheduler.cells[A].behaviour is None
    assert runtime.scheduler.timers.next_at == START_S + 500
    runtime.pass_time(440)
    assert runtime.spawned[1].woken == [START_S + 500]


def test_a_cell_with_connections_is_never_passivated() -> None:
    runtime, port = RuntimeHarness(passivate_after_s=60), RecordingPort(1)
    runtime.scheduler.attach(A, port, Attach(), runtime.now)
    runtime.submit(A, port, Put(1, 60, b""))
    runtime.pass_time(1000)
    assert runtime.scheduler.cells[A].behaviour is runtime.spawned[0]
    runtime.scheduler.detach(A, port)
    runtime.pass_time(60)
    assert runtime.scheduler.cells[A].behaviour is None


def test_replies_wait_until_the_store_has_kept_its_promise() -> None:
    store, port = LateStore(), RecordingPort(1)
    runtime = RuntimeHarness(store=store)
    runtime.on_ack = lambda name, number: [(B, Get(number))]
    runtime.submit(A, port, Put(1, 60, b""), Get(5), Ack(6))
    assert port.take() == [] and runtime.ids(B) == []
    store.commits[0].finish(None)
    assert port.take() == [GetAck(5, b"")] and runtime.ids(B) == [6]


async def test_run_takes_what_is_submitted_while_it_sleeps(anyio_backend: object) -> None:
    runtime, port, done = RuntimeHarness(), RecordingPort(1), anyio.Event()
    port.on_send = lambda replies: done.set() if runtime.ids(A)[-1:] == [1999] else None
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(runtime.scheduler.run)
            await anyio.wait_all_tasks_blocked()
            runtime.submit(A, port, *gets(0, 2000))
            await done.wait()
            tasks.cancel_scope.cancel()
    assert runtime.ids(A) == list(range(2000))


@pytest.mark.parametrize(
    "anyio_backend", [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})]
)
async def test_run_wakes_cells_on_time_and_earlier_ones_first(anyio_backend: object) -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    zero = anyio.current_time()
    runtime.scheduler._now = lambda: START_S + anyio.current_time() - zero
    woken: list[tuple[bytes, float]] = []
    runtime.on_wake = lambda name, now: woken.append((name, round(now - START_S, 6)))
    runtime.deadlines = {A: START_S + 1000, B: START_S + 7}
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(runtime.scheduler.run)
        runtime.submit(A, port, Put(1, 60, b""))
        await anyio.sleep(5)
        runtime.submit(B, port, Put(1, 60, b""))  # earlier than what the scheduler sleeps for
        await anyio.sleep(2000)
        tasks.cancel_scope.cancel()
    # Passivation looks at its own times too; the behaviours are never late.
    assert (B, 7.0) in woken and (A, 1000.0) in woken and min(woken)[1] >= 7.0


def test_only_attached_ports_get_attachments() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.scheduler.attach(A, port, Attach(mode=Mode.QUEUE), runtime.now)
    assert port.take() == [Attached(Mode.PAIR, 1)]
    assert runtime.scheduler.cells[A].attachments == {port: Attach(mode=Mode.QUEUE)}
    runtime.scheduler.submit(A, Batch(RecordingPort(2), [Get(1)]), runtime.now)
    assert list(runtime.scheduler.cells[A].attachments or {}) == [port]


def test_a_cell_that_another_one_s_waking_emptied_is_left_alone() -> None:
    runtime, port = RuntimeHarness(), RecordingPort(1)
    runtime.deadlines = dict.fromkeys((A, B, b"c"), START_S + 5)
    for name in (A, B, b"c"):
        runtime.submit(name, port, Put(1, 60, b""))
    woken: list[bytes] = []

    def empty_b(name: bytes, now: float) -> None:
        woken.append(name)
        if name == A:
            runtime.spawned[1].kept.clear()
            runtime.submit(B, None, Get(1))
            assert B not in runtime.scheduler.cells

    runtime.on_wake = empty_b
    runtime.pass_time(5)
    assert woken == [A, b"c"] and B not in runtime.scheduler.cells

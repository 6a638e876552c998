"""Reads by the published client: every start, every limit, and what follows the tail (A.5)."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from s2_sdk import (
    AppendInput,
    CommandRecord,
    ReadLimit,
    ReadUnwrittenError,
    Record,
    S2ServerError,
    SeqNum,
    TailOffset,
    Timestamp,
    metered_bytes,
)

BEGAN = int(time.time() * 1000) - 100_000
"""The timestamp of the first record: young enough to be kept."""
FULL_S = 120.0
QUIET_S = 20.0
"""A client gives a read session up that says nothing for so long (A.5)."""


@pytest.fixture
async def ten(stream: Any) -> Any:
    """Ten records, 0 to 9, each stamped 10 ms behind the one before."""
    await stream.append(AppendInput([Record(b"%d" % n, [], BEGAN + 10 * n) for n in range(10)]))
    return stream


def _numbers(batch: Any) -> list[int]:
    return [each.seq_num for each in batch.records]


async def _session(stream: Any, **options: Any) -> list[int]:
    """The sequences of a session that ends by itself."""
    found: list[int] = []
    with anyio.fail_after(60):
        async for batch in stream.read_session(**options):
            found += _numbers(batch)
    return found


def shown(start: object) -> str:
    """A start in the name of a test, the same in each run."""
    if isinstance(start, Timestamp) and start.value >= BEGAN:
        return f"Timestamp(BEGAN+{start.value - BEGAN})"
    return str(start)


@pytest.mark.parametrize(
    ("start", "first"),
    [
        (SeqNum(0), 0),
        (SeqNum(7), 7),
        (Timestamp(0), 0),
        (Timestamp(BEGAN + 30), 3),
        (Timestamp(BEGAN + 31), 4),
        (Timestamp(BEGAN + 90), 9),
        (TailOffset(1), 9),
        (TailOffset(10), 0),
        (TailOffset(99), 0),
    ],
    ids=shown,
)
async def test_a_5_every_start(ten: Any, start: Any, first: int) -> None:
    assert _numbers(await ten.read(start=start)) == list(range(first, 10))
    found = await _session(ten, start=start, limit=ReadLimit(count=100))
    assert found == list(range(first, 10))


@pytest.mark.parametrize(
    "start", [SeqNum(10), SeqNum(11), Timestamp(BEGAN + 91), TailOffset(0)], ids=shown
)
async def test_a_5_nothing_to_read_is_416_with_the_tail(ten: Any, start: Any) -> None:
    tail = await ten.check_tail()
    with pytest.raises(ReadUnwrittenError) as unary:
        await ten.read(start=start)
    assert (unary.value.status_code, unary.value.tail) == (416, tail)
    with pytest.raises(ReadUnwrittenError) as session:
        await _session(ten, start=start, limit=ReadLimit(count=1))
    assert session.value.tail == tail


async def test_a_5_beyond_the_tail_clamp_begins_at_it(ten: Any) -> None:
    """Still with nothing to wait for it is 416 (A.5 3)."""
    with pytest.raises(ReadUnwrittenError):
        await ten.read(start=SeqNum(99), clamp_to_tail=True)
    with pytest.raises(ReadUnwrittenError):
        await ten.read(start=SeqNum(99), wait=1)
    found: list[int] = []

    async def follow() -> None:
        batch = await ten.read(start=Timestamp(BEGAN + 9999), clamp_to_tail=True, wait=4)
        found.extend(_numbers(batch))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.sleep(0.05)
        await ten.append(AppendInput([Record(b"new"), Record(b"more")]))
    assert found == [10, 11]


async def test_a_5_limits_of_count_bytes_and_time(ten: Any) -> None:
    """The last record may not go over a limit; a first one that would gives none."""
    assert _numbers(await ten.read(start=SeqNum(2), limit=ReadLimit(count=3))) == [2, 3, 4]
    assert _numbers(await ten.read(start=SeqNum(2), limit=ReadLimit(bytes=27))) == [2, 3, 4]
    assert _numbers(await ten.read(start=SeqNum(2), limit=ReadLimit(bytes=26))) == [2, 3]
    assert _numbers(await ten.read(start=SeqNum(2), until_timestamp=BEGAN + 41)) == [2, 3, 4]
    assert _numbers(await ten.read(start=SeqNum(2), until_timestamp=BEGAN + 40)) == [2, 3]
    for limits in (
        {"limit": ReadLimit(count=0)},
        {"limit": ReadLimit(bytes=8)},
        {"until_timestamp": BEGAN + 20},
    ):
        assert _numbers(await ten.read(start=SeqNum(2), **limits)) == []
        assert await _session(ten, start=SeqNum(2), **limits) == []
    assert await _session(ten, start=SeqNum(2), limit=ReadLimit(count=3)) == [2, 3, 4]
    assert await _session(ten, start=SeqNum(2), limit=ReadLimit(bytes=27)) == [2, 3, 4]
    assert await _session(ten, start=SeqNum(2), until_timestamp=BEGAN + 41) == [2, 3, 4]
    with pytest.raises(S2ServerError) as refused:
        await ten.read(start=Timestamp(BEGAN + 40), until_timestamp=BEGAN + 40)
    assert (refused.value.status_code, refused.value.code) == (422, "invalid")


async def test_a_5_a_unary_read_has_1000_records_and_1_mib_at_most(stream: Any) -> None:
    for _ in range(3):
        await stream.append(AppendInput([Record(b"") for _ in range(999)]))
    batch = await stream.read(start=SeqNum(0), limit=ReadLimit(count=5000))
    assert _numbers(batch) == list(range(1000))
    for _ in range(3):
        await stream.append(AppendInput([Record(b"x" * 400_000), Record(b"y" * 400_000)]))
    batch = await stream.read(start=SeqNum(2997), limit=ReadLimit(bytes=2**30))
    assert _numbers(batch) == [2997, 2998]
    found = []
    sizes = []
    async for each in stream.read_session(start=SeqNum(0), limit=ReadLimit(count=3003)):
        found += _numbers(each)
        sizes.append((len(each.records), metered_bytes(each.records)))
    assert found == list(range(3003))
    assert max(count for count, _ in sizes) <= 1000
    assert max(size for _, size in sizes) <= 2**20


async def test_a_5_a_read_that_waits_gets_the_first_batch_or_none(ten: Any) -> None:
    began = time.monotonic()
    batch = await ten.read(start=TailOffset(0), wait=1)
    assert (batch.records, batch.tail) == ([], await ten.check_tail())
    assert 0.9 < time.monotonic() - began < 3
    began = time.monotonic()
    assert _numbers(await ten.read(start=SeqNum(9), wait=30)) == [9]
    assert time.monotonic() - began < 1


async def test_a_5_a_session_with_wait_ends_when_nothing_came_for_so_long(ten: Any) -> None:
    """The clock begins anew with each batch."""
    found: list[int] = []
    began = time.monotonic()

    async def follow() -> None:
        found.extend(await _session(ten, start=SeqNum(8), limit=ReadLimit(count=99), wait=1))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await anyio.sleep(0.7)
        await ten.append(AppendInput([Record(b"late")]))
    assert found == [8, 9, 10]
    assert 1.6 < time.monotonic() - began < 4


async def test_a_5_a_session_follows_and_knows_when_it_has_caught_up(ten: Any) -> None:
    found: list[int] = []
    async with ten.read_session(start=SeqNum(5)) as session:
        async with anyio.create_task_group() as tasks:

            async def follow() -> None:
                async for batch in session:
                    found.extend(_numbers(batch))
                    if found[-1] >= 109:
                        return

            tasks.start_soon(follow)
            assert (await session.caught_up()).seq_num == 10
            for number in range(100):
                await ten.append(AppendInput([Record(b"%d" % number)]))
    assert found == list(range(5, 110))


async def test_a_5_sessions_pass_what_was_trimmed(ten: Any) -> None:
    """A.5 6: it is skipped in silence, also while a session reads."""
    await ten.append(AppendInput([CommandRecord.trim(4)]))
    assert await _session(ten, start=SeqNum(0), limit=ReadLimit(count=3)) == [4, 5, 6]
    found = await _session(ten, start=Timestamp(BEGAN), limit=ReadLimit(count=3))
    assert found == [4, 5, 6]
    async with ten.read_session(start=SeqNum(0), ignore_command_records=True) as session:
        assert _numbers(await anext(session)) == [4, 5, 6, 7, 8, 9]


async def test_two_hundred_readers_of_one_stream(ten: Any) -> None:
    """Each gets everything; the client opens more connections than one where it must."""
    found: list[list[int]] = []

    async def follow() -> None:
        found.append(await _session(ten, start=SeqNum(0), limit=ReadLimit(count=11), wait=5))

    async with anyio.create_task_group() as tasks:
        for _ in range(200):
            tasks.start_soon(follow)
        await anyio.sleep(0.3)
        await ten.append(AppendInput([Record(b"last")]))
    assert found == [list(range(11))] * 200


@pytest.mark.parametrize(
    "quiet_s", [QUIET_S + 2, pytest.param(FULL_S, marks=pytest.mark.full)], ids=["20s", "120s"]
)
async def test_a_5_heartbeats_keep_a_quiet_session(ten: Any, quiet_s: float) -> None:
    """The client gives up after 20 s without a frame; then what comes is still heard."""
    async with ten.read_session(start=SeqNum(10)) as session:
        got: list[int] = []

        async def follow() -> None:
            got.extend(_numbers(await anext(session)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            await session.caught_up()
            await anyio.sleep(quiet_s)
            assert session.is_caught_up()
            await ten.append(AppendInput([Record(b"at last")]))
    assert got == [10]

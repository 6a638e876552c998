"""Appends by the published client: forms, conditions, limits, creation (A.6)."""

from __future__ import annotations

import time
from typing import Any

import anyio
import pytest
from s2_sdk import (
    AppendInput,
    BasinConfig,
    CommandRecord,
    Compression,
    FencingTokenMismatchError,
    Record,
    S2Error,
    S2ServerError,
    SeqNum,
    SeqNumMismatchError,
    StreamConfig,
    Timestamping,
    TimestampingMode,
    metered_bytes,
)

from tests.node.http.s2.conftest import BASIN, client, running

MIB = 2**20


def _input(*bodies: bytes, **conditions: Any) -> AppendInput:
    return AppendInput([Record(body) for body in bodies], **conditions)


async def _bodies(stream: Any, start: int = 0) -> list[bytes]:
    return [each.body for each in (await stream.read(start=SeqNum(start))).records]


async def test_a_6_what_is_appended_is_read(stream: Any) -> None:
    """Bodies and headers of any bytes, empty ones too; positions of acks."""
    before = int(time.time() * 1000)
    every = bytes(range(256))
    pairs = [(b"k", b""), (b"k", every), (every, b"v")]
    records = [Record(b"hello"), Record(b""), Record(every, pairs), Record(b"", [(b"only", b"h")])]
    ack = await stream.append(AppendInput(records))
    assert (ack.start.seq_num, ack.end.seq_num, ack.tail.seq_num) == (0, 4, 4)
    assert before <= ack.start.timestamp <= ack.end.timestamp == ack.tail.timestamp
    batch = await stream.read(start=SeqNum(0))
    assert [(each.seq_num, each.body, each.headers) for each in batch.records] == [
        (at, each.body, each.headers) for at, each in enumerate(records)
    ]
    assert batch.records[-1].timestamp == ack.end.timestamp
    assert await stream.check_tail() == ack.tail
    again = await stream.append(_input(b"more"))
    assert (again.start.seq_num, again.tail.seq_num) == (4, 5)


async def test_a_6_timestamps_are_taken_capped_and_never_fall(basin: Any, stream: Any) -> None:
    now = int(time.time() * 1000)
    past = now - 50_000
    given = [past, past + 5, past + 1, None, now + 10_000_000]
    ack = await stream.append(AppendInput([Record(b"", [], each) for each in given]))
    stamps = [each.timestamp for each in (await stream.read(start=SeqNum(0))).records]
    assert stamps[:3] == [past, past + 5, past + 5]
    assert now <= stamps[3] <= stamps[4] <= now + 60_000
    assert (ack.start.timestamp, ack.end.timestamp) == (past, stamps[4])

    modes = Timestamping(mode=TimestampingMode.CLIENT_REQUIRE, uncapped=True)
    await basin.create_stream("required", config=StreamConfig(timestamping=modes))
    required = basin.stream("required")
    with pytest.raises(S2ServerError) as missing:
        await required.append(AppendInput([Record(b"", [], 1), Record(b"")]))
    assert (missing.value.status_code, missing.value.code) == (422, "invalid")
    ack = await required.append(AppendInput([Record(b"", [], 2**63)]))
    assert ack.tail.timestamp == 2**63
    modes = Timestamping(mode=TimestampingMode.ARRIVAL)
    await basin.create_stream("arrival", config=StreamConfig(timestamping=modes))
    ack = await basin.stream("arrival").append(AppendInput([Record(b"", [], 5)]))
    assert now <= ack.start.timestamp <= now + 60_000


async def test_a_6_conditions_hold_or_nothing_is_appended(stream: Any) -> None:
    """Fencing token first, then match_seq_num; the empty token is one."""
    await stream.append(_input(b"a", match_seq_num=0, fencing_token=""))
    with pytest.raises(SeqNumMismatchError) as late:
        await stream.append(_input(b"b", match_seq_num=0))
    assert late.value.expected_seq_num == 1
    await stream.append(AppendInput([CommandRecord.fence("mine"), Record(b"c")], match_seq_num=1))
    with pytest.raises(FencingTokenMismatchError) as fenced:
        await stream.append(_input(b"d", match_seq_num=77, fencing_token="yours"))
    assert fenced.value.expected_fencing_token == "mine"
    with pytest.raises(FencingTokenMismatchError):
        await stream.append(_input(b"d", fencing_token=""))
    await stream.append(_input(b"e", match_seq_num=3, fencing_token="mine"))
    await stream.append(_input(b"f"))
    assert await _bodies(stream) == [b"a", b"mine", b"c", b"e", b"f"]
    await stream.append(AppendInput([CommandRecord.fence("")], fencing_token="mine"))
    await stream.append(_input(b"g", fencing_token=""))


async def test_a_6_commands_are_records_that_act(stream: Any) -> None:
    """Fence and trim come back on reads, and can be left out by the client."""
    await stream.append(_input(*(b"%d" % n for n in range(6))))
    await stream.append(AppendInput([CommandRecord.trim(4), CommandRecord.fence("ü" * 18)]))
    batch = await stream.read(start=SeqNum(0))
    assert [each.seq_num for each in batch.records] == [4, 5, 6, 7]
    assert [each.is_command_record() for each in batch.records] == [False, False, True, True]
    assert batch.records[2].body == (4).to_bytes(8, "big")
    plain = await stream.read(start=SeqNum(0), ignore_command_records=True)
    assert [each.seq_num for each in plain.records] == [4, 5]
    await stream.append(AppendInput([CommandRecord.trim(2)]))
    assert (await stream.read(start=SeqNum(0))).records[0].seq_num == 4
    ack = await stream.append(AppendInput([CommandRecord.trim(2**64 - 1)]))
    assert await stream.check_tail() == ack.tail
    empty = await stream.read(start=SeqNum(0))
    assert (empty.records, empty.tail) == ([], ack.tail)


@pytest.mark.parametrize(
    "record",
    [
        Record(b"x", [(b"", b"unknown")]),
        Record(b"x", [(b"", b"fence"), (b"a", b"b")]),
        Record(b"x" * 37, [(b"", b"fence")]),
        Record(b"\xff", [(b"", b"fence")]),
        Record(b"1234567", [(b"", b"trim")]),
    ],
    ids=["verb", "company", "long", "utf-8", "seven"],
)
async def test_a_6_a_command_that_cannot_be_is_refused_with_its_batch(
    stream: Any, record: Record
) -> None:
    with pytest.raises(S2ServerError) as refused:
        await stream.append(AppendInput([Record(b"fine"), record]))
    assert (refused.value.status_code, refused.value.code) == (422, "invalid")
    assert (await stream.check_tail()).seq_num == 0


async def test_a_6_a_batch_of_the_largest_size_passes(stream: Any) -> None:
    """1000 records, and 1048576 metered bytes: exactly so much."""
    most = [Record(b"x") for _ in range(1000)]
    assert (await stream.append(AppendInput(most))).tail.seq_num == 1000
    large = Record(b"y" * (MIB - 8 - 2 - 5), [(b"ab", b"cde")])
    assert metered_bytes([large]) == MIB
    await stream.append(AppendInput([large]))
    found = await stream.read(start=SeqNum(1000))
    assert (found.records[0].body, found.records[0].headers) == (large.body, large.headers)
    half = Record(b"z" * (MIB // 2 - 8))
    assert (await stream.append(AppendInput([half, half]))).tail.seq_num == 1003


async def test_a_6_an_append_or_a_read_makes_the_stream_where_its_basin_says_so(s2: Any) -> None:
    config = BasinConfig(
        default_stream_config=StreamConfig(retention_policy=77),
        create_stream_on_append=True,
        create_stream_on_read=True,
    )
    await s2.create_basin(BASIN, config=config)
    basin = s2.basin(BASIN)
    infinite = StreamConfig(retention_policy="infinite")
    given = AppendInput([Record(b"first")], stream_config=infinite)
    assert (await basin.stream("by/append").append(given)).tail.seq_num == 1
    assert (await basin.get_stream_config("by/append")).retention_policy == "infinite"
    await basin.stream("by/append").append(
        AppendInput([Record(b"x")], stream_config=StreamConfig(retention_policy=5))
    )
    assert (await basin.get_stream_config("by/append")).retention_policy == "infinite"
    assert (await basin.stream("by/tail").check_tail()).seq_num == 0
    assert (await basin.get_stream_config("by/tail")).retention_policy == 77
    batch = (
        await basin.stream("by/read").read(start=SeqNum(0), wait=0, clamp_to_tail=True)
        if False
        else None
    )
    assert batch is None
    async with basin.stream("by/session").append_session(stream_config=infinite) as session:
        await (await session.submit(_input(b"1")))
    assert (await basin.get_stream_config("by/session")).retention_policy == "infinite"
    acks = []

    async def append() -> None:
        acks.append(await basin.stream("raced").append(_input(b"x")))

    async with anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(append)
    assert sorted(each.start.seq_num for each in acks) == list(range(20))


async def test_a_6_nothing_makes_a_stream_where_its_basin_does_not_say_so(basin: Any) -> None:
    missing = basin.stream("missing")
    for call in (missing.append(_input(b"x")), missing.check_tail(), missing.read(start=SeqNum(0))):
        with pytest.raises(S2ServerError) as refused:
            await call
        assert (refused.value.status_code, refused.value.code) == (404, "stream_not_found")
    with pytest.raises(S2ServerError) as refused:
        async with missing.append_session() as session:
            await (await session.submit(_input(b"x")))
    assert refused.value.code == "stream_not_found"
    with pytest.raises(S2ServerError) as refused:
        async for _ in missing.read_session(start=SeqNum(0)):
            pass
    assert refused.value.code == "stream_not_found"
    assert (await basin.list_streams()).items == []


@pytest.mark.parametrize("how", [Compression.ZSTD, Compression.GZIP])
async def test_a_1_compression_changes_nothing_but_the_bytes(how: Compression) -> None:
    """A.1, A.7: unary bodies of any size, and sessions."""
    async with running() as node, client(node, compression=how) as s2:
        await s2.create_basin(BASIN)
        basin = s2.basin(BASIN)
        await basin.create_stream("orders")
        stream = basin.stream("orders")
        bodies = [b"short", b"long " * 4000, b""]
        await stream.append(_input(*bodies))
        async with stream.append_session() as session:
            for _ in range(3):
                await (await session.submit(_input(*bodies)))
        assert await _bodies(stream) == bodies * 4
        found = []
        async for batch in stream.read_session(start=SeqNum(0), wait=0, until_timestamp=2**63):
            found += [each.body for each in batch.records]
        assert found == bodies * 4


async def test_the_clients_own_checks_are_not_ours(stream: Any) -> None:
    """Appends that the client refuses do not reach the node."""
    with pytest.raises(S2Error):
        await stream.append(AppendInput([]))
    assert (await stream.check_tail()).seq_num == 0

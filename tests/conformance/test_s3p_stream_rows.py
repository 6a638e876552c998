"""Streams, seen through S3P, row by row (docs/reference/compatibility.md)."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import anyio

from millpond.actors.messages import Durability
from millpond.actors.store.changes import Position
from millpond.actors.store.filesystem import File, OsDisk
from millpond.actors.streams.names import stream_cell
from millpond.actors.streams.stream import Stream
from tests.conformance.s3p_peer import (
    BAD_FORMAT,
    EXISTS,
    MIB,
    NOTHING,
    OK,
    PATIENCE_S,
    TOO_LOW,
    U64_MAX,
    UNKNOWN,
    Client,
    Id,
    S3pServer,
    after,
    append,
    bulk,
    create,
    delete,
    id_of,
    over_sockets,
    pairs,
    read,
    s3p_server,
    trim,
)

pytestmark = over_sockets

NOW_S = 1_700_000_001.234
NOW_MS = 1_700_000_001_234


class Hand:
    """A clock's hand, moved by the test."""

    def __init__(self, seconds: float = NOW_S) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        return self.seconds


async def test_s3p_19_s3p_21_s3p_28_s3a_05_the_examples_of_the_specification() -> None:
    hand = Hand()
    async with s3p_server(now=hand) as server:
        client = await server.dial()
        said = b"*3\r\n$6\r\nCREATE\r\n$6\r\norders\r\n*0\r\n"
        await client.send(said, said)
        await client.expect(OK, b"-ERR_STREAM_EXISTS stream orders already exists\r\n")
        await client.send(
            b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n*0\r\n*2\r\n$5\r\nhello\r\n$5\r\nworld\r\n"
        )
        await client.expect(b"$15\r\n1700000001234-1\r\n")
        await client.send(
            b"*4\r\n$6\r\nAPPEND\r\n$6\r\norders\r\n"
            b"*2\r\n$2\r\nID\r\n$13\r\n1700000001000\r\n*1\r\n$7\r\npayload\r\n"
        )
        await client.expect(
            b"-ERR_NON_MONOTONIC_ID provided timestamp ID 1700000001000 is not greater than last "
            b"appended ID 1700000001234\r\n"
        )
        await client.send(
            b"*3\r\n$4\r\nTRIM\r\n$6\r\norders\r\n*2\r\n$6\r\nMIN_ID\r\n$15\r\n1700000001235-0\r\n"
        )
        await client.expect(OK)
        await client.send(b"*3\r\n$6\r\nDELETE\r\n$6\r\norders\r\n*0\r\n")
        await client.expect(OK)


async def test_s3p_32_the_example_of_read() -> None:
    hand = Hand()
    async with s3p_server(now=hand) as server:
        client = await server.with_stream()
        assert await client.append(b"hello") == (NOW_MS, 0)
        hand.seconds += 0.001
        assert await client.append(b"world") == (NOW_MS + 1, 0)
        await client.send(
            b"*3\r\n$4\r\nREAD\r\n$6\r\norders\r\n"
            b"*4\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n$6\r\nMIN_ID\r\n$3\r\n0-0\r\n"
        )
        await client.expect(
            b"*4\r\n$15\r\n1700000001234-0\r\n$5\r\nhello\r\n$15\r\n1700000001235-0\r\n$5\r\nworld\r\n"
        )


async def test_s3p_20_one_of_many_that_create_a_stream_does() -> None:
    async with s3p_server() as server:
        clients = [await server.dial() for _ in range(20)]
        for client in clients:
            await client.send(create())
        replies = [await client.reply() for client in clients]
        assert replies.count(OK) == 1
        assert set(replies) == {OK, b"-ERR_STREAM_EXISTS stream orders already exists\r\n"}
        await clients[0].refused(create(), EXISTS)


async def test_s3p_22_s3p_23_s3p_45_soft_errors_cost_one_command() -> None:
    async with s3p_server() as server:
        client = await server.dial()
        tricky = b"*3\r\n$6\r\nDELETE\r\n$5\r\nother\r\n*0\r\n"
        await client.send(
            *(create(b"other"), append(b"x", tricky), read(), trim(MIN_ID="0-0"), delete()),
            *(
                create(b"other"),
                append(b"y", name=b"other", ID=5),
                append(b"z", name=b"other", ID=4),
            ),
            read(b"other"),
        )
        unknown = b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n"
        await client.expect(
            *(OK, unknown, unknown, unknown, unknown),
            *(b"-ERR_STREAM_EXISTS stream other already exists\r\n", bulk(b"5-0")),
            b"-ERR_NON_MONOTONIC_ID provided timestamp ID 4 is not greater than last appended ID "
            b"5\r\n",
            pairs(("5-0", b"y")),
        )


async def test_s3p_21_s3a_15_an_append_is_one_run_of_ids() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.append(b"a", b"b", b"c", ID=9) == (9, 2)
        assert await client.append(b"d", ID=9) == (9, 3)
        ms, seq = await client.append(b"e", b"f")
        assert seq == 1
        found = await client.records()
        assert [at for at, _ in found] == [(9, 0), (9, 1), (9, 2), (9, 3), (ms, 0), (ms, 1)]


async def test_s3p_28_an_id_is_never_below_the_last() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.append(b"a", ID=100) == (100, 0)
        assert await client.append(b"b", ID=100) == (100, 1)
        assert await client.append(b"c", ID=101) == (101, 0)
        await client.refused(append(b"never", b"never", ID=100), TOO_LOW)
        await client.refused(append(b"never", ID=0), TOO_LOW)
        assert [body for _, body in await client.records()] == [b"a", b"b", b"c"]


async def test_s3p_29_s3a_12_ids_follow_the_clock_but_never_back() -> None:
    hand = Hand()
    async with s3p_server(now=hand) as server:
        client = await server.with_stream()
        assert await client.append(b"a") == (NOW_MS, 0)
        assert await client.append(b"b") == (NOW_MS, 1)
        hand.seconds += 0.002
        assert await client.append(b"c") == (NOW_MS + 2, 0)
        hand.seconds -= 3600
        assert await client.append(b"d") == (NOW_MS + 2, 1)
        assert await client.append(b"e", b"f") == (NOW_MS + 2, 3)
        await client.refused(append(b"x", ID=NOW_MS - 3_600_000), TOO_LOW)
        assert await client.append(b"g", ID=NOW_MS + 5000) == (NOW_MS + 5000, 0)
        assert await client.append(b"h") == (NOW_MS + 5000, 1)


def pretend(server: S3pServer, last_id: Id) -> None:
    """No test appends 2^64 records to see the id of the next one."""
    stream = server.node.scheduler.view(stream_cell(b"orders"))
    assert isinstance(stream, Stream)
    stream._bounds.last_id = Position(*last_id)


async def test_s3a_10_no_id_is_used_twice_when_the_highest_is_reached() -> None:
    future = 2**60
    async with s3p_server() as server:
        client = await server.with_stream(b"x", ms=future)
        pretend(server, (future, U64_MAX - 2))
        await client.refused(append(b"a", b"b", b"c", ID=future), TOO_LOW)
        assert await client.append(b"a", ID=future) == (future, U64_MAX - 1)
        assert await client.append(b"b", b"c") == (future + 1, 1), "one ms for all of an append"
        pretend(server, (future + 1, U64_MAX))
        await client.refused(append(b"d", ID=future + 1), TOO_LOW)
        assert await client.append(b"d") == (future + 2, 0)
        pretend(server, (U64_MAX, U64_MAX - 1))
        assert await client.append(b"e") == (U64_MAX, U64_MAX)
        await client.refused(append(b"f"), TOO_LOW)
        await client.refused(append(b"f", ID=U64_MAX), TOO_LOW)
        assert [body for _, body in await client.records()] == b"x a b c d e".split()


async def test_s3a_11_s3p_31_the_highest_ids() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.ask(append(b"a", ID=U64_MAX)) == bulk(b"18446744073709551615-0")
        assert await client.append(b"b") == (U64_MAX, 1)
        assert await client.append(b"c", b"d", ID=U64_MAX) == (U64_MAX, 3)
        await client.refused(append(b"x", ID=U64_MAX - 1), TOO_LOW)
        assert await client.ask(read(MIN_ID=f"{U64_MAX}-3")) == pairs((f"{U64_MAX}-3", b"d"))


async def test_s3p_31_the_lowest_id() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.append(b"a", ID=0) == (0, 0)
        assert await client.ask(read()) == pairs(("0-0", b"a"))
        assert await client.ask(trim(MIN_ID="0-0")) == OK
        assert len(await client.records()) == 1


async def test_s3p_30_ids_compare_as_numbers() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        for ms in (9, 10, 99, 100):
            for _ in range(12):
                await client.append(b"x", ID=ms)
        found = await client.records()
        assert [at for at, _ in found] == [
            (ms, seq) for ms in (9, 10, 99, 100) for seq in range(12)
        ]
        assert (await client.records(MIN_ID="9-9"))[0][0] == (9, 9)
        assert (await client.records(MIN_ID="10-2"))[0][0] == (10, 2)
        assert (await client.records(MIN_ID="9-10"))[:2] == [((9, 10), b"x"), ((9, 11), b"x")]


async def _write(client: Client, who: int, rounds: int, given: list[list[Id]]) -> None:
    mine: list[Id] = []
    for each in range(rounds):
        await client.send(*[append(b"%d/%d" % (who, each), b"+")] * 4)
        mine += [id_of(await client.reply()) for _ in range(4)]
    assert all(a < b for a, b in pairwise(mine))
    given.append(mine)


async def test_s3p_30_ids_increase_with_fifty_writers(tmp_path: Path, wiring: str) -> None:
    data = tmp_path if wiring == "tcp-uvloop" else None
    async with s3p_server(
        data, durability=Durability.MEMORY if data is None else Durability.OS
    ) as server:
        witness = await server.with_stream()
        given: list[list[Id]] = []
        async with anyio.create_task_group() as tasks:
            for who in range(50):
                tasks.start_soon(_write, await server.dial(), who, 5, given)
        ids = sorted(at for mine in given for at in mine)
        assert len(set(ids)) == len(ids) == 50 * 5 * 4
        found = await witness.all()
        assert len(found) == 2 * len(ids)
        assert set(ids) <= {at for at, _ in found}
        bodies = [body for _, body in found]
        assert bodies[1::2] == [b"+"] * len(ids), "each append is in one piece"


async def test_s3p_33_s3p_35_s3a_07_count_and_an_inclusive_start() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(*[b"%d" % each for each in range(10)])
        assert [body for _, body in await client.records(COUNT=3)] == [b"0", b"1", b"2"]
        assert [body for _, body in await client.records(MIN_ID="5-8")] == [b"8", b"9"]
        assert [body for _, body in await client.records(MIN_ID="5-8", COUNT=1)] == [b"8"]
        assert len(await client.records(MIN_ID="0-0")) == 10
        assert await client.ask(read(MIN_ID="5-10")) == NOTHING
        assert await client.append(b"x", ID=7) == (7, 0)
        assert await client.ask(read(MIN_ID="6-3")) == pairs(("7-0", b"x"))


async def test_s3p_32_nothing_is_an_empty_array() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        assert await client.ask(read()) == b"*0\r\n"


async def test_s3p_39_a_wait_ends_with_nothing_when_its_time_is_over() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"x")
        began_at = anyio.current_time()
        assert await client.ask(read(BLOCK=80, MIN_ID="6-0")) == NOTHING
        assert 0.075 <= anyio.current_time() - began_at < 5


async def test_s3p_39_an_append_wakes_every_reader_at_once() -> None:
    async with s3p_server() as server:
        writer = await server.with_stream(b"x")
        readers = [await server.dial() for _ in range(30)]
        for reader in readers:
            await reader.send(read(BLOCK=60_000, MIN_ID="6-0"))
        await readers[-1].silent_for(0.05)
        began_at = anyio.current_time()
        assert await writer.append(b"y", b"z", ID=6) == (6, 1)
        for reader in readers:
            await reader.expect(pairs(("6-0", b"y"), ("6-1", b"z")))
        assert anyio.current_time() - began_at < 1


async def test_s3p_40_existing_records_are_returned_at_once() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"x")
        began_at = anyio.current_time()
        assert await client.ask(read(BLOCK=60_000)) == pairs(("5-0", b"x"))
        assert anyio.current_time() - began_at < 1


async def test_s3a_08_a_record_below_the_id_does_not_end_or_restart_a_wait() -> None:
    async with s3p_server() as server:
        writer, reader = await server.with_stream(), await server.dial()
        began_at = anyio.current_time()
        await reader.send(read(BLOCK=200, MIN_ID="50-1"))
        for ms in (10, 20, 50):
            await writer.append(b"below", ID=ms)
            await anyio.sleep(0.04)
        assert await reader.reply() == NOTHING
        assert 0.19 <= anyio.current_time() - began_at < 5
        await reader.send(read(BLOCK=60_000, MIN_ID="50-1"))
        await writer.append(b"there", ID=50)
        await reader.expect(pairs(("50-1", b"there")))


async def test_s3a_27_a_delete_ends_every_wait() -> None:
    async with s3p_server() as server:
        writer, reader = await server.with_stream(b"x"), await server.dial()
        await reader.send(read(BLOCK=60_000, MIN_ID="6-0"), read())
        await reader.silent_for(0.05)
        assert await writer.ask(delete()) == OK
        await reader.expect(NOTHING, b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n")


async def test_s3a_28_a_trim_wakes_no_read() -> None:
    async with s3p_server() as server:
        writer, reader = await server.with_stream(b"x"), await server.dial()
        await reader.send(read(BLOCK=60_000, MIN_ID="6-0"))
        assert await writer.ask(trim(MIN_ID="9-0")) == OK
        await reader.silent_for(0.05)
        await writer.append(b"y", ID=10)
        await reader.expect(pairs(("10-0", b"y")))


async def test_s3p_41_a_trim_removes_records_strictly_below() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(*b"a b c d".split())
        assert await client.ask(trim(MIN_ID="5-2")) == OK
        assert [body for _, body in await client.records()] == [b"c", b"d"]
        assert await client.ask(trim(MIN_ID="5-1")) == OK
        assert len(await client.records()) == 2
        assert await client.ask(trim(MIN_ID="6-0")) == OK
        assert await client.ask(read()) == NOTHING
        assert await client.ask(trim(MIN_ID=f"{U64_MAX}-{U64_MAX}")) == OK, "of an empty stream"
        assert await client.append(b"e", ID=5) == (5, 4)


async def test_s3p_42_s3a_14_a_stream_that_is_created_again_is_another() -> None:
    async with s3p_server() as server:
        client = await server.with_stream(b"x", ms=500)
        assert await client.ask(delete()) == OK
        await client.refused(delete(), UNKNOWN)
        assert await client.ask(create()) == OK
        assert await client.ask(read()) == NOTHING
        assert await client.append(b"y", ID=7) == (7, 0), "the last id is forgotten"


async def test_s3a_14_a_waiting_read_belongs_to_the_deleted_stream() -> None:
    async with s3p_server() as server:
        client, reader = await server.with_stream(), await server.dial()
        await reader.send(read(BLOCK=60_000))
        await reader.silent_for(0.05)
        await client.send(delete(), create(), append(b"other", ID=5))
        await client.expect(OK, OK, bulk(b"5-0"))
        await reader.expect(NOTHING)


async def test_s3a_13_s3a_16_the_last_id_outlives_the_records(tmp_path: Path) -> None:
    async with s3p_server(tmp_path) as server:
        client = await server.with_stream(b"x", b"y", ms=500)
        assert await client.ask(trim(MIN_ID="501-0")) == OK
        assert await client.ask(read()) == NOTHING
        await client.refused(append(b"z", ID=499), TOO_LOW)
        assert await client.append(b"z", ID=500) == (500, 2)
        assert await client.ask(trim(MIN_ID="501-0")) == OK
    async with s3p_server(tmp_path) as server:
        client = await server.dial()
        assert await client.ask(read()) == NOTHING
        await client.refused(append(b"z", ID=499), TOO_LOW)
        assert await client.append(b"z", ID=500) == (500, 3)


async def test_s3p_30_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with s3p_server(tmp_path) as server:
        client = await server.with_stream(*[b"%d" % each for each in range(50)], ms=500)
        await client.append(b"now")
        assert await client.ask(trim(MIN_ID="500-10")) == OK
        await server.with_stream(b"z", name=b"other")
        assert await client.ask(create(b"gone")) == OK
        assert await client.ask(delete(b"gone")) == OK
        before = await client.records()
    async with s3p_server(tmp_path) as server:
        client = await server.dial()
        assert await client.records() == before and len(before) == 41
        assert await client.records(b"other") == [((5, 0), b"z")]
        await client.refused(read(b"gone"), UNKNOWN)
        await client.refused(create(), EXISTS)
        assert await client.append(b"next") > before[-1][0]


async def test_s3a_29_a_reply_has_about_four_mebibytes_and_a_record_at_least() -> None:
    async with s3p_server() as server:
        client = await server.with_stream()
        bodies = [bytes((each,)) * MIB for each in range(8)]
        for each in bodies:
            await client.append(each, ID=5)
        found = await client.records(COUNT=1000)
        assert 1 <= len(found) <= 5
        while len(found) < 8:
            page = await client.records(COUNT=1000, MIN_ID=after(found[-1][0]))
            assert page
            found += page
        assert [body for _, body in found] == bodies


async def test_s3a_33_commands_behind_a_delete_find_no_stream() -> None:
    async with s3p_server() as server:
        one, other = await server.with_stream(b"x"), await server.dial()
        await one.send(delete(), append(b"y"))
        await one.expect(OK, b"-ERR_UNKNOWN_STREAM stream orders does not exist\r\n")
        await other.refused(append(b"z"), UNKNOWN)


def names_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


HOSTILE_NAMES = [b"\x00", b"/", b"..", b"../../x", b"a\x00b", b"\xff" * 256, b"CON", b"con"]
HOSTILE_NAMES += [b"topic/0", b"\0topics", b"\0stream\0x", b"%2e%2e", b" ", b"-", b"\r\n", b"~"]


async def test_s3a_35_a_name_is_bytes_and_no_path(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with s3p_server(data) as server:
        for name in HOSTILE_NAMES:
            await server.with_stream(b"of " + name, name=name)
    async with s3p_server(data) as server:
        client = await server.dial()
        for name in HOSTILE_NAMES:
            assert await client.records(name) == [((5, 0), b"of " + name)]
    assert names_in(tmp_path) == ["data"]


class GatedFile:
    """A file of the journal whose sync is done once the gate is open."""

    def __init__(self, file: File, gate: threading.Event) -> None:
        self._gate = gate
        self.write = file.write
        self.close = file.close
        self._sync = file.sync

    def sync(self) -> None:
        assert self._gate.wait(PATIENCE_S)
        self._sync()


class GatedDisk(OsDisk):
    """A disk that takes its time."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: Path, size: int) -> File:
        return GatedFile(super().create(path, size), self.gate)

    def open(self, path: Path) -> File:
        return GatedFile(super().open(path), self.gate)


async def test_s3a_34_nothing_is_answered_before_it_is_on_the_disk(tmp_path: Path) -> None:
    disk = GatedDisk()
    async with s3p_server(tmp_path, disk=disk) as server:
        client, reader = await server.with_stream(), await server.dial()
        await reader.send(read(BLOCK=60_000))
        disk.gate.clear()
        await client.send(append(b"x", ID=6), create(b"other"), read())
        await reader.silent_for(0.05)
        await client.silent_for(0.05)
        disk.gate.set()
        await client.expect(bulk(b"6-0"), OK, pairs(("6-0", b"x")))
        await reader.expect(pairs(("6-0", b"x")))


async def test_s3a_21_the_command_is_checked_before_the_stream() -> None:
    async with s3p_server() as server:
        await server.with_stream(b"x", ms=100)
        await server.refuses(
            BAD_FORMAT,
            append(b"y", ID="x"),
            append(b"y", name=b"nowhere", ID="x"),
            read(b"nowhere", MIN_ID="x"),
            trim(b"nowhere"),
            create(SIZE=1),
        )

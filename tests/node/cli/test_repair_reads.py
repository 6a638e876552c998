"""Repairs print the truth: a node on the repaired folder is read, and compared with them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from millpond import Config, Node, connect, connect_streams
from millpond.actors.messages import Mode
from millpond.actors.store.changes import Change, Chunk, ModeSet, Position
from millpond.actors.store.settings import StoreSettings
from millpond.actors.streams.metadata import creation_of
from millpond.actors.streams.names import stream_cell
from millpond.node.cli.main import main
from tests.node.folders import empty_wal, partition_of, row, rows, segments, stopped

pytestmark = pytest.mark.crash

ORDERS, BOX = stream_cell(b"orders"), b"box"
COUNT, IN_FILE = 150, 120
PAGE = 4096
INTERIOR, LEAF = 5, 13
OFF = dict.fromkeys(("ws", "s3p", "rustlog", "http"), "off")
MS = 1_763_683_200_000
Told = dict[str, Any]


def body(number: int) -> bytes:
    return b"body %d " % number + b"." * (10_000 if number % 15 == 7 else 400)


def chunk(number: int) -> Chunk:
    data = msgspec.msgpack.encode([[body(number)]])
    at, ids = MS + number, Position(MS + number, 0)
    return Chunk(number, 1, at, at, ids, ids, data)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel and a stream, most of them in files, the rest in the journal; the node was
    stopped."""
    folder = tmp_path_factory.mktemp("whole") / "data"
    created = creation_of(ORDERS, MS)
    assert created is not None
    chunks: list[Change] = [chunk(number) for number in range(COUNT)]
    messages = [row(number, body(number)) for number in range(COUNT)]
    with stopped(folder) as store:
        store.write(ORDERS, [created, *chunks[:IN_FILE]])
        store.write(BOX, [ModeSet(Mode.PAIR), *messages[:IN_FILE]])
        store.write(b"filler", rows(600, 50_000))
    with stopped(folder, StoreSettings()) as store:
        store.write(ORDERS, chunks[IN_FILE:])
        store.write(BOX, [*messages[IN_FILE:]])
    for name in (ORDERS, BOX):
        empty_wal(partition_of(folder, name))
        assert partition_of(folder, name).stat().st_size > 20 * PAGE
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a kill leaves it: the later half of the files is in their write-ahead logs."""
    folder = tmp_path_factory.mktemp("killed") / "data"
    created = creation_of(ORDERS, MS)
    assert created is not None
    chunks: list[Change] = [chunk(number) for number in range(COUNT)]
    messages = [row(number, body(number)) for number in range(COUNT)]
    with stopped(folder) as store:
        store.write(ORDERS, [created, *chunks[: IN_FILE // 2]])
        store.write(BOX, [ModeSet(Mode.PAIR), *messages[: IN_FILE // 2]])
        store.write(b"filler", rows(600, 50_000))
    with stopped(folder) as store:
        store.write(ORDERS, chunks[IN_FILE // 2 :])
        store.write(BOX, [*messages[IN_FILE // 2 :]])
        store.write(b"filler", rows(600, 60_000))
        copy = shutil.copytree(folder, folder.with_name("copy"))
    assert all(wal_of(partition_of(copy, name)).stat().st_size > PAGE for name in (ORDERS, BOX))
    return copy


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def pages_of(path: Path, kind: int) -> list[int]:
    data = path.read_bytes()
    return [at for at in range(1, len(data) // PAGE) if data[at * PAGE] == kind]


def flipped(path: Path, page: int, rng: Random) -> None:
    """A bit in the middle of what is on a page."""
    data = bytearray(path.read_bytes())
    places = range(page * PAGE, min((page + 1) * PAGE, len(data)))
    data[rng.choice([at for at in places if data[at]] or places)] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def bit_in_interior_page(path: Path, rng: Random) -> None:
    flipped(path, rng.choice(pages_of(path, INTERIOR)), rng)


def bit_in_leaf(path: Path, rng: Random) -> None:
    flipped(path, rng.choice(pages_of(path, LEAF)), rng)


def bit_in_overflow_page(path: Path, rng: Random) -> None:
    data = path.read_bytes()
    pages = [each for each in pages_of(path, 0) if b"." * 3000 in data[each * PAGE :][:PAGE]]
    flipped(path, rng.choice(pages), rng)


def bit_in_first_page(path: Path, rng: Random) -> None:
    flipped(path, 0, rng)


def first_page_zeroed(path: Path, rng: Random) -> None:
    path.write_bytes(bytes(PAGE) + path.read_bytes()[PAGE:])


def pages_swapped(path: Path, rng: Random) -> None:
    data = bytearray(path.read_bytes())
    leaves = pages_of(path, LEAF)
    one, other = (slice(each * PAGE, (each + 1) * PAGE) for each in rng.sample(leaves, 2))
    data[one], data[other] = data[other], data[one]
    path.write_bytes(data)


def truncated(path: Path, rng: Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zeroed(path: Path, rng: Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def missing(path: Path, rng: Random) -> None:
    path.unlink()


def another_file(path: Path, rng: Random) -> None:
    """The file of another channel is in its place."""
    folder = path.parent.parent.parent
    shutil.copy(partition_of(folder, b"filler"), path)


FILE_FAULTS = [
    bit_in_interior_page,
    bit_in_leaf,
    bit_in_overflow_page,
    bit_in_first_page,
    first_page_zeroed,
    pages_swapped,
    truncated,
    zeroed,
    missing,
    another_file,
]


def segment_missing(folder: Path, rng: Random) -> None:
    segments(folder)[-1].unlink()


def segment_zeroed(folder: Path, rng: Random) -> None:
    path = segments(folder)[-1]
    path.write_bytes(bytes(path.stat().st_size))


def segment_cut_off(folder: Path, rng: Random) -> None:
    os.truncate(segments(folder)[-1], 4000)


def catalog_lost(folder: Path, rng: Random) -> None:
    for path in folder.glob("catalogue.*"):
        path.unlink()


def catalog_and_stream_lost(folder: Path, rng: Random) -> None:
    catalog_lost(folder, rng)
    zeroed(partition_of(folder, ORDERS), rng)


def journal_and_stream_lost(folder: Path, rng: Random) -> None:
    for path in segments(folder):
        path.unlink()
    missing(partition_of(folder, ORDERS), rng)


FOLDER_FAULTS = [
    segment_missing,
    segment_zeroed,
    segment_cut_off,
    catalog_lost,
    catalog_and_stream_lost,
    journal_and_stream_lost,
]


class Served(msgspec.Struct):
    """Everything that a node has: messages by id, records by sequence."""

    messages: dict[int, bytes]
    records: dict[int, bytes]
    trim_point: int
    tail: int
    next_id: int
    next_sequence: int


async def served(folder: Path) -> Served:
    """Read everything, and write one message and one record."""
    config = Config(p2p="127.0.0.1:0", **OFF, data=str(folder))
    async with Node(config, rng=Random(1)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with connect(url, channel="box", window=0) as box:
            messages = {each: await box.get(each) for each in [each async for each in box.ids()]}
            next_id = (await box.put(b"new", ttl=3600)).id
            await box.ack(next_id)
        async with connect_streams(url) as streams:
            orders = streams.stream("orders")
            info = await orders.info()
            records = {each.sequence: each.data async for each in orders.records(0)}
            next_sequence = (await orders.append(b"new")).first
    tails = info.trim_point, info.tail
    return Served(messages, records, *tails, next_id, next_sequence)


def repaired(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> tuple[int, list[dict[str, object]]]:
    capfd.readouterr()
    code = main(["doctor", "--data", str(folder), "--repair-all", "--json"])
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    return code, lines


MESSAGES = {row(number).id: body(number) for number in range(COUNT)}
RECORDS = {number: body(number) for number in range(COUNT)}


async def check(folder: Path, capfd: pytest.CaptureFixture[str]) -> Served:
    """Repair the folder, and compare what a node serves with what was printed, and was written."""
    code, lines = repaired(folder, capfd)
    found = await served(folder)
    assert found.messages.items() <= MESSAGES.items(), "nothing is made up"
    assert found.records.items() <= RECORDS.items(), "nothing is made up"
    assert found.next_id > max(MESSAGES) and found.next_sequence >= COUNT, "nothing comes twice"
    told = {line.get("channel", line.get("stream")): line for line in lines}
    is_whole = found.messages == MESSAGES and found.records == RECORDS
    assert is_whole or code == 1
    of_box = told.get("box")
    if of_box is None:
        assert found.messages == MESSAGES
    else:
        check_channel(of_box, found)
    of_orders = told.get("orders")
    if of_orders is None:
        assert found.records == RECORDS and found.tail == COUNT
    else:
        check_stream(of_orders, found)
    assert main(["doctor", "--data", str(folder)]) == 0
    return found


def check_channel(told: Told, found: Served) -> None:
    assert told["messages"] == len(found.messages)
    lost = MESSAGES.keys() - found.messages.keys()
    assert {int(each) for each in told["lost"]} <= lost
    if not told["damages"] or ".journal" not in str(told["damages"]):
        count = told["lost_count"]
        assert count in (len(lost), None) or (told["at_least"] and count < len(lost))
    assert not (told["complete"] and lost)


def check_stream(told: Told, found: Served) -> None:
    assert told["messages"] == len(found.records)
    lost: set[int] = set()
    for each in [*told["lost"], told["skipped"] or "0--1"]:
        first, _, last = each.partition("-")
        lost.update(range(int(first), min(int(last or first) + 1, 10_000)))
    assert not lost & found.records.keys()
    spoken_of = lost | found.records.keys()
    assert spoken_of >= {*range(found.trim_point, min(found.tail, COUNT))}
    assert not (told["complete"] and found.records != RECORDS)


@pytest.mark.parametrize("name", [ORDERS, BOX], ids=["stream", "channel"])
@pytest.mark.parametrize("fault", FILE_FAULTS)
async def test_what_is_printed_of_a_damaged_file_is_what_a_node_serves(
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: bytes,
    fault: Callable[[Path, Random], None],
) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    fault(partition_of(folder, name), Random(3))
    found = await check(folder, capfd)
    left = len(found.records) if name == ORDERS else len(found.messages)
    if fault in FILE_FAULTS[:6]:
        assert left >= COUNT - 1, "one bit costs a row at most"
    else:
        assert left >= COUNT - IN_FILE, "the journal has the rest"


@pytest.mark.parametrize("is_json", [False, True], ids=["text", "json"])
def test_a_number_that_is_a_minimum_is_printed_as_one(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, is_json: bool
) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    with closing(sqlite3.connect(partition_of(folder, BOX))) as connection:
        connection.execute("DELETE FROM messages WHERE message_id < ?", (row(2, b"").id,))
        connection.commit()
    if is_json:
        code, (told,) = repaired(folder, capfd)
        assert (told["lost_count"], told["at_least"], told["complete"]) == (2, True, False)
    else:
        code = main(["doctor", "--data", str(folder), "--repair", BOX.decode()])
        assert "lost        at least 2 messages\n" in capfd.readouterr().out
    assert code == 1


@pytest.mark.parametrize("is_json", [False, True], ids=["text", "json"])
def test_what_nothing_tells_is_printed_as_that(
    whole: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], *, is_json: bool
) -> None:
    """Without the headers nothing counts properties, subscribers, acks and attempts."""
    folder = shutil.copytree(whole, tmp_path / "data")
    for name in (ORDERS, BOX):
        with closing(sqlite3.connect(partition_of(folder, name))) as connection:
            connection.execute("UPDATE meta SET deadline = 7.0")
            connection.commit()
    if is_json:
        code, lines = repaired(folder, capfd)
        told = {line.get("channel", line.get("stream")): line for line in lines}
        assert [told["box"][each] for each in ("delivery_known", "complete")] == [False, False]
        assert [told["orders"][each] for each in ("lost_properties", "complete")] == [None, False]
        assert told["orders"]["delivery_known"] and told["box"]["lost_properties"] == 0
    else:
        code = main(["doctor", "--data", str(folder), "--repair-all"])
        out = capfd.readouterr().out
        assert out.count("lost        perhaps some of its properties: ") == 1
        assert out.count("lost        perhaps subscribers, acks or attempts: ") == 1
    assert code == 1


@pytest.mark.parametrize("fault", FOLDER_FAULTS)
async def test_what_is_printed_of_a_damaged_folder_is_what_a_node_serves(
    whole: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    fault: Callable[[Path, Random], None],
) -> None:
    folder = shutil.copytree(whole, tmp_path / "data")
    fault(folder, Random(3))
    await check(folder, capfd)


def log_lost(path: Path, rng: Random) -> None:
    path.unlink()


def log_zeroed(path: Path, rng: Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def log_cut_off(path: Path, rng: Random) -> None:
    os.truncate(path, path.stat().st_size // 2)


def bit_in_log(path: Path, rng: Random) -> None:
    flipped(path, 0, rng)


LOG_FAULTS = [log_lost, log_zeroed, log_cut_off, bit_in_log]


@pytest.mark.parametrize("name", [ORDERS, BOX], ids=["stream", "channel"])
@pytest.mark.parametrize("fault", LOG_FAULTS)
async def test_what_is_printed_of_a_damaged_write_ahead_log_is_what_a_node_serves(
    killed: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    name: bytes,
    fault: Callable[[Path, Random], None],
) -> None:
    folder = shutil.copytree(killed, tmp_path / "data")
    fault(wal_of(partition_of(folder, name)), Random(5))
    found = await check(folder, capfd)
    if fault is bit_in_log:
        assert len(found.messages) >= COUNT - 1 and len(found.records) >= COUNT - 1


async def test_a_sound_folder_is_left_as_it_is(
    killed: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(killed, tmp_path / "data")
    assert main(["doctor", "--data", str(folder), "--repair-all"]) == 0
    assert "no channel or stream is damaged" in capfd.readouterr().out
    found = await served(folder)
    assert (found.messages, found.records) == (MESSAGES, RECORDS)


def file_missing(folder: Path, rng: Random) -> None:
    """Its write-ahead log is still there."""
    missing(partition_of(folder, ORDERS), rng)


def another_file_with_own_log(folder: Path, rng: Random) -> None:
    another_file(partition_of(folder, ORDERS), rng)


FILE_IS_GONE = [file_missing, another_file_with_own_log]


@pytest.mark.parametrize(
    "fault", [segment_missing, segment_zeroed, segment_cut_off, catalog_lost, *FILE_IS_GONE]
)
async def test_after_a_kill_what_is_printed_is_what_a_node_serves(
    killed: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    fault: Callable[[Path, Random], None],
) -> None:
    """Without the last segment every name is refused, and repaired."""
    folder = shutil.copytree(killed, tmp_path / "data")
    fault(folder, Random(3))
    found = await check(folder, capfd)
    assert len(found.messages) >= IN_FILE - 1
    assert len(found.records) >= IN_FILE - 1 or fault in FILE_IS_GONE


ROUNDS = [pytest.param(10, id="normal"), pytest.param(200, id="full", marks=pytest.mark.full)]


@pytest.mark.parametrize("rounds", ROUNDS)
async def test_any_two_faults_at_once(
    whole: Path,
    killed: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    rounds: int,
) -> None:
    """Each seed is another pair, so a failure names the one that caused it. Without the catalog,
    nothing tells of a file that is missing as well, nor without its header whose a file is."""
    for seed in range(rounds):
        rng = Random(seed)
        folder = shutil.copytree(rng.choice((whole, killed)), tmp_path / f"{seed}")
        for _ in range(2):
            path = partition_of(folder, rng.choice((ORDERS, BOX)))
            log = wal_of(path)
            kind = rng.randrange(4)
            if kind == 0 and log.exists():
                rng.choice(LOG_FAULTS)(log, rng)
            elif kind == 1:
                rng.choice(FOLDER_FAULTS[:3])(folder, rng)
            elif path.exists() and path.stat().st_size > 15 * PAGE and pages_of(path, LEAF)[1:]:
                rng.choice([*FILE_FAULTS[:2], *FILE_FAULTS[3:-1]])(path, rng)
        try:
            await check(folder, capfd)
        except BaseException:
            print("seed", seed)
            raise
        shutil.rmtree(folder)

"""The scrub finds damage in what nobody requests, at its rate, and sound folders have none."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import msgspec
import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.changes import Chunk, Position, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.interface import Fault
from tests.actors.store.harness import LAZY, NOW, SMALL, Run, run, young_id
from tests.sim.loop import Clock, Loop

LOG, QUEUE = b"streams/orders", b"chat"
OLD_ID = young_id(60.0)


def chunk(first: int) -> Chunk:
    ids = Position(first, 0), Position(first + 9, 0)
    return Chunk(first, 10, first, first + 9, *ids, bytes(2000))


def row(number: int) -> StoredMessage:
    return StoredMessage(OLD_ID + number, number, 3600, NOW + 3600, bytes(2000))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log and a queue of 200 kB each, in files."""
    with run(tmp_path / "data", SMALL) as opened:
        for number in range(100):
            opened.write(LOG, chunk(10 * number))
            opened.write(QUEUE, row(number))
        opened.flush()
    return tmp_path / "data"


class Scrubbed(Run):
    """A run that scrubs, whose clock can be set."""

    def __init__(self, folder: Path, bytes_s: int, settings: object = LAZY) -> None:
        self.folder = folder
        self._fillers = 0
        self.clock = Clock(NOW)
        self.loop = Loop(self.clock, Random(1))
        self.store = DurableStore(
            folder,
            OsDisk(),
            msgspec.structs.replace(LAZY, scrub_bytes_s=bytes_s),
            self.loop,
            lambda name: Durability.DISK,
        )
        self.found = self.store.open()

    def pass_time(self, seconds: float) -> None:
        """Second by second."""
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            self.loop.work(idle=True)
            self.loop.work(idle=False)
            self.work()


def whole_pass(opened: Run) -> int:
    """Steps until a pass has ended."""
    passes = opened.store.stats.scrub_passes
    for steps in range(1, 1000):
        opened.store.scrub_step()
        opened.work()
        if opened.store.stats.scrub_passes > passes:
            return steps
    raise AssertionError("the pass does not end")


@pytest.fixture(params=[4096, 2**20], ids=["in slices", "whole"])
def scrubbed(folder: Path, request: pytest.FixtureRequest) -> Iterator[Scrubbed]:
    opened = Scrubbed(folder, request.param)
    yield opened
    opened.close()


def test_a_sound_folder_has_no_damage(scrubbed: Scrubbed) -> None:
    steps = whole_pass(scrubbed)
    assert (steps > 50) is (scrubbed.store._settings.scrub_bytes_s == 4096)
    stats = scrubbed.store.stats
    assert stats.damages == 0 and stats.scrub_bytes > 400_000
    assert stats.scrubbed_at == NOW


def test_writes_during_a_pass_are_no_damage(folder: Path) -> None:
    opened = Scrubbed(folder, 4096)
    rng = Random(3)
    for number in range(100, 160):
        for _ in range(rng.randint(0, 3)):
            opened.store.scrub_step()
            opened.work()
        opened.write(LOG, chunk(10 * number))
        opened.write(QUEUE, row(number))
        if not number % 10:
            opened.store._compactor.prefer(opened.store._entries[QUEUE])
            opened.store._compactor.prefer(opened.store._entries[LOG])
            opened.work()
    whole_pass(opened)
    whole_pass(opened)
    assert opened.store.stats.damages == 0
    opened.close()


def sql(text: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(text)
            connection.commit()

    return change


DAMAGES = [
    (LOG, sql("DELETE FROM chunks WHERE first = 500")),
    (LOG, sql("UPDATE chunks SET data = zeroblob(2000) || x'01' WHERE first = 990")),
    (LOG, sql("UPDATE chunks SET crc = crc + 1 WHERE first = 0")),
    (QUEUE, sql(f"DELETE FROM messages WHERE message_id = {OLD_ID + 50}")),
    (QUEUE, sql(f"UPDATE messages SET crc = crc + 1 WHERE message_id = {OLD_ID + 99}")),
    (QUEUE, Path.unlink),
]


@pytest.mark.parametrize("size", [4096, 2**20])
@pytest.mark.parametrize(("name", "damage"), DAMAGES)
def test_what_nobody_requests_is_found(
    folder: Path, name: bytes, damage: Callable[[Path], None], size: int
) -> None:
    opened = Scrubbed(folder, size)
    damage(opened.file(name))
    whole_pass(opened)
    assert [each.name for each in opened.store.damages] == [name]
    answer = opened.store.log_snapshot(name) if name == LOG else opened.store.load(name)
    assert opened.finish(answer) is Fault.DAMAGED
    opened.close()
    with run(folder) as again:
        assert [each.name for each in again.store.damages] == [name]


def test_a_segment_that_rots_is_left_before_a_restart_needs_it(folder: Path) -> None:
    """Everything in it is in memory: it goes to files, or is written again."""
    with run(folder, LAZY) as opened:
        opened.write(b"young", row(1))
    opened = Scrubbed(folder, 2**20)
    segment = max((folder / "journal").glob("*.journal"))
    data = bytearray(segment.read_bytes())
    data[data.index(b"young") + 200] ^= 1
    segment.write_bytes(data)
    whole_pass(opened)
    assert [each.where for each in opened.store.damages] == [segment.name]
    opened.pass_time(3)
    opened.close()
    with run(folder, LAZY) as again:
        assert again.load(b"young").rows == [row(1)]


def test_it_begins_a_minute_after_the_start_reads_at_its_rate_and_rests_for_a_day(
    folder: Path,
) -> None:
    opened = Scrubbed(folder, 20_000)
    opened.pass_time(59)
    assert opened.store.stats.scrub_bytes == 0
    opened.pass_time(6)
    assert 0 < opened.store.stats.scrub_bytes <= 6 * 20_000 + 40_000
    assert opened.store.stats.scrub_progress < 1
    opened.pass_time(60)
    stats = opened.store.stats
    assert stats.scrub_passes == 1 and stats.scrubbed_at > NOW
    opened.pass_time(600)
    assert opened.store.stats.scrub_bytes == stats.scrub_bytes
    opened.clock.now += 86_400
    opened.pass_time(60)
    assert opened.store.stats.scrub_passes == 2
    opened.close()

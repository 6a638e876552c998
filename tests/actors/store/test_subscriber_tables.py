"""Members in a queue's file: who has what is there after reopening, and damage is told (PS-06)."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    MessageRemoved,
    ModeSet,
    PartitionKind,
    Snapshot,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions.partition import Damaged, empty_file
from millpond.actors.store.repair.salvage import read_partition
from millpond.actors.store.subscribers import (
    Acked,
    AckedUpTo,
    Subscriber,
    SubscriberRemoved,
    SubscriberTable,
    SubscriberTouched,
)
from tests.actors.store.test_queue_tables import FILE, NAME, memtable_of, opened, scrub_all

A, B = (StoredMessage(each, each, 60, 1000.0, b"hi") for each in (1, 2))
ANN, BOB = Subscriber(1, b"a" * 32, 900.5), Subscriber(2**32 - 1, b"b" * 32, 950.0, 0)
OLDER = "members, acks, attempts or attributes are older than meta says"
TABLE = SubscriberTable({1: ANN, BOB.number: BOB}, {BOB.number: 1}, {0: {2}, BOB.number: {2}})


def build_file(path: Path) -> Path:
    partition = opened(path)
    changes = [AckedUpTo(BOB.number, 1), Acked(BOB.number, 2), Acked(0, 2)]
    partition.apply(memtable_of(ModeSet(Mode.FANOUT), A, B, ANN, BOB, *changes), 1)
    partition.close()
    return path


def tables_of(path: Path) -> set[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    connection.close()
    return {name for (name,) in rows}


def change(path: Path, *scripts: str) -> None:
    connection = sqlite3.connect(path)
    for each in scripts:
        connection.executescript(each)
    connection.commit()
    connection.close()


def test_ps_06_everything_of_them_comes_back_after_reopening(tmp_path: Path) -> None:
    partition = opened(build_file(tmp_path / FILE))
    assert partition.load() == Snapshot([A, B], {1: A, 2: B}, {}, Mode.FANOUT, TABLE)
    assert (partition.metadata.keys, partition.metadata.deadline) == (2, 900.5)
    assert partition.verify() == []
    partition.close()


def test_a_file_has_place_for_them_from_when_it_needs_it(tmp_path: Path) -> None:
    """Files without are spared the pages."""
    path = tmp_path / FILE
    OsDisk().install(path, empty_file(PartitionKind.QUEUE))
    partition = opened(path)
    partition.apply(memtable_of(A), 1)
    partition.close()
    assert tables_of(path) == {"meta", "messages", "keys"}
    partition = opened(path)
    partition.apply(memtable_of(ANN), 2)
    partition.close()
    assert tables_of(path) == {"meta", "messages", "keys", "members", "acks", "dues", "uniques"}


def test_they_change_and_go_and_so_do_acks_of_what_is_gone(tmp_path: Path) -> None:
    partition = opened(build_file(tmp_path / FILE))
    metadata = partition.apply(
        memtable_of(
            SubscriberTouched(1, 990.0, 5),
            MessageRemoved(2, 2, None, 2),
            SubscriberRemoved(BOB.number),
        ),
        2,
    )
    assert metadata.keys == 1
    assert partition.load().subscribers == SubscriberTable(
        {1: Subscriber(1, ANN.identity, 990.0, 5)}
    )
    again = partition.apply(memtable_of(B, Acked(1, 2), AckedUpTo(1, 1)), 3)
    assert again.keys == 1
    subscribers = partition.load().subscribers
    assert subscribers is not None and (subscribers.floors, subscribers.acked) == ({1: 1}, {1: {2}})
    partition.apply(
        memtable_of(
            SubscriberRemoved(1), MessageRemoved(1, 1, None, 2), MessageRemoved(2, 2, None, 2)
        ),
        4,
    )
    assert partition.load().subscribers is None
    partition.close()


def test_a_number_that_was_another_s_has_none_of_its_acks(tmp_path: Path) -> None:
    partition = opened(build_file(tmp_path / FILE))
    cat = Subscriber(BOB.number, b"c" * 32, 999.0, 0)
    partition.apply(memtable_of(SubscriberRemoved(BOB.number), cat), 2)
    subscribers = partition.load().subscribers
    assert subscribers == SubscriberTable({1: ANN, cat.number: cat}, {}, {0: {2}})
    partition.close()


def test_the_same_layer_twice_changes_nothing(tmp_path: Path) -> None:
    partition = opened(build_file(tmp_path / FILE))
    memtable = memtable_of(
        SubscriberTouched(BOB.number, 999.0, 1), SubscriberRemoved(1), Acked(BOB.number, 1)
    )
    once, loaded = partition.apply(memtable, 2), partition.load()
    assert partition.apply(memtable, 2) == once and partition.load() == loaded
    assert once.keys == 1
    partition.close()


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("UPDATE members SET until = 5.0 WHERE number = 1", "member 1 is not what was written"),
        ("UPDATE members SET floor = 2 WHERE number > 1", "member 4294967295 is not"),
        ("UPDATE acks SET number = 1 WHERE number = 0", "an ack of message 2 is not"),
        ("DELETE FROM members WHERE number = 1", "1 keys and members, and meta says 2"),
    ],
)
def test_what_somebody_else_changed_is_damage(tmp_path: Path, sql: str, text: str) -> None:
    path = build_file(tmp_path / FILE)
    change(path, sql)
    partition = opened(path)
    with pytest.raises(Damaged, match=text):
        partition.load()
    assert any(text in line for line in partition.verify())
    partition.close()


@pytest.mark.parametrize(
    "tables",
    [("members",), ("acks",), ("members", "acks")],
    ids=lambda tables: " and ".join(tables),
)
def test_older_rows_are_found_that_are_as_many(tmp_path: Path, tables: tuple[str, ...]) -> None:
    """A page of them is as it was before: each row has the right checksum."""
    path = build_file(tmp_path / FILE)
    older = shutil.copy(path, tmp_path / "older.sqlite3")
    partition = opened(path)
    cat = Subscriber(2, b"c" * 32, 980.0, 0)
    partition.apply(memtable_of(SubscriberRemoved(1), cat, Acked(2, 1)), 2)
    partition.apply(memtable_of(SubscriberRemoved(2), ANN, SubscriberTouched(1, 990.0)), 3)
    partition.apply(memtable_of(Acked(1, 1), AckedUpTo(1, 1)), 4)
    assert partition.verify() == []
    partition.close()
    change(path, f"ATTACH '{older}' AS older", *(put_back(table) for table in tables))
    partition = opened(path)
    with pytest.raises(Damaged, match=OLDER):
        partition.load()
    assert [OLDER in each for each in partition.verify()] == [True]
    with pytest.raises(Damaged, match=OLDER):
        scrub_all(partition)
    partition.close()
    found = read_partition(path, OsDisk(), NAME).queue()
    assert (found.lost_count, found.has_older, found.is_delivery_known) == (0, False, False)


def put_back(table: str) -> str:
    return f"DELETE FROM {table}; INSERT INTO {table} SELECT * FROM older.{table}"


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("UPDATE members SET until = 5.0 WHERE number = 1", {BOB.number}),
        ("UPDATE members SET identity = x'00'", set()),
        ("DROP TABLE acks", {1, BOB.number}),
        ("DROP TABLE members", set()),
    ],
)
def test_what_is_right_of_a_damaged_file_is_saved(tmp_path: Path, sql: str, left: set[int]) -> None:
    path = build_file(tmp_path / FILE)
    change(path, sql)
    change(path, "UPDATE messages SET data = x'00' WHERE message_id = 1")
    found = read_partition(path, OsDisk(), NAME).queue()
    assert found.snapshot.rows == [B] and found.lost == [1]
    subscribers = found.snapshot.subscribers or SubscriberTable()
    assert set(subscribers.by_number) == left
    claims = set() if "DROP TABLE acks" in sql else {2}
    assert subscribers.acked.get(0, set()) == claims

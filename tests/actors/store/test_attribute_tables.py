"""Attributes of queued messages in a file: present after reopening, and damage is reported."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import MessageRemoved, ModeSet, StoredMessage
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.message_attributes import DueAt, MessageAttributes, UniqueKey
from millpond.actors.store.partitions.partition import Damaged
from millpond.actors.store.repair.salvage import read_partition
from tests.actors.store.test_queue_tables import FILE, memtable_of, opened, scrub_all
from tests.actors.store.test_queue_tables import NAME as CHAT
from tests.actors.store.test_subscriber_tables import OLDER, change, put_back, tables_of

A, B = (StoredMessage(each, each, 60, 1000.0, b"hi") for each in (1, 2))
NAME = bytes(range(64))


def build_file(path: Path) -> Path:
    partition = opened(path)
    terms = [DueAt(1, 940.5), UniqueKey(1, b"alice"), UniqueKey(2, NAME)]
    partition.apply(memtable_of(ModeSet(Mode.QUEUE), A, B, *terms), 1)
    partition.close()
    return path


def test_they_come_back_after_reopening_in_tables_of_their_own(tmp_path: Path) -> None:
    path = build_file(tmp_path / FILE)
    assert {"dues", "uniques"} < tables_of(path)
    partition = opened(path)
    found = partition.load()
    assert found.attributes == MessageAttributes({1: 940.5}, {1: b"alice", 2: NAME})
    assert (found.subscribers, partition.metadata.keys, partition.verify()) == (None, 0, [])
    partition.close()


def test_a_rest_ends_and_all_goes_with_its_message(tmp_path: Path) -> None:
    partition = opened(build_file(tmp_path / FILE))
    memtable = memtable_of(DueAt(1, 0.0), DueAt(2, 50.0))
    for _ in range(2):  # the same memtable twice changes nothing
        partition.apply(memtable, 2)
        assert partition.load().attributes == MessageAttributes({2: 50.0}, {1: b"alice", 2: NAME})
    partition.apply(memtable_of(MessageRemoved(2, 2, None, 2)), 3)
    assert partition.load().attributes == MessageAttributes({}, {1: b"alice"})
    partition.apply(memtable_of(MessageRemoved(1, 1, None, 2)), 4)
    assert partition.load().attributes is None
    partition.close()


@pytest.mark.parametrize("table", ["dues", "uniques"])
def test_older_rows_are_found_that_are_as_many(tmp_path: Path, table: str) -> None:
    path = build_file(tmp_path / FILE)
    older = shutil.copy(path, tmp_path / "older.sqlite3")
    partition = opened(path)
    job = StoredMessage(3, 3, 60, 1000.0, b"hi")
    gone = MessageRemoved(1, 1, None, 2)
    partition.apply(memtable_of(gone, job, DueAt(3, 945.5), UniqueKey(3, b"bob")), 2)
    assert partition.verify() == []
    partition.close()
    change(path, f"ATTACH '{older}' AS older", put_back(table))
    partition = opened(path)
    with pytest.raises(Damaged, match=OLDER):
        partition.load()
    assert [OLDER in each for each in partition.verify()] == [True]
    with pytest.raises(Damaged, match=OLDER):
        scrub_all(partition)
    partition.close()


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE dues SET due = 5.0",
        "UPDATE uniques SET name = x'00' WHERE message_id = 2",
        "UPDATE uniques SET message_id = 3 WHERE message_id = 2",
    ],
)
def test_what_somebody_else_changed_is_damage_and_the_rest_is_saved(
    tmp_path: Path, sql: str
) -> None:
    path = build_file(tmp_path / FILE)
    change(path, sql)
    partition = opened(path)
    with pytest.raises(Damaged, match=r"what message \d has besides is not what was written"):
        partition.load()
    assert any("has besides" in line for line in partition.verify())
    partition.close()
    saved = read_partition(path, OsDisk(), CHAT).queue().snapshot
    is_due_lost = "dues" in sql
    names = {1: b"alice", 2: NAME} if is_due_lost else {1: b"alice"}
    assert saved.rows == [A, B] and saved.attributes == MessageAttributes(
        {} if is_due_lost else {1: 940.5}, names
    )

"""A queue's file: what a flush brought there is what a channel is loaded from (P2P-30)."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    DeadlineSet,
    KeyExpired,
    KeyRetained,
    MessageRemoved,
    ModeSet,
    Origin,
    PartitionKind,
    QueueChange,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.partitions import flush_batches as flush
from millpond.actors.store.partitions.metadata import (
    QUEUE_SCHEMA,
    FileHeader,
    PartitionMetadata,
    read_header,
    write_header,
)
from millpond.actors.store.partitions.partition import (
    APPLICATION,
    Damaged,
    Partition,
    empty_file,
)
from millpond.actors.store.partitions.queue_tables import SCHEMA
from millpond.actors.store.partitions.sqlite import UnknownFormat, make_file
from millpond.actors.store.queue_memtable import QueueMemtable
from tests.actors.store.older_files import without_seed
from tests.actors.store.queue_model import Queue

U64_MAX, ID_MAX = 2**64 - 1, 2**63 - 1
FILE = "partition.sqlite3"
NAME = b"chat/1"
A = StoredMessage(1, 10, 60, 1000.25, b"one")
B = StoredMessage(2, 2**63, 604_800, 1e9, b"", origin=Origin(7, 3, "too often: \u00e9\u4e2d"))
C = StoredMessage(ID_MAX, U64_MAX, 0, 2000.0, b"\x00\xff" * 5000)
LEFT = StoredKey(1, 60, 600.5, bytes(32))


def memtable_of(*changes: QueueChange) -> QueueMemtable:
    memtable = QueueMemtable(is_oldest=False)
    memtable.fold(changes)
    return memtable


def opened(path: Path, disk: OsDisk | None = None) -> Partition:
    disk = disk or OsDisk()
    if not path.exists():
        disk.install(path, empty_file(PartitionKind.QUEUE))
    return Partition(disk.connect(path), NAME, PartitionKind.QUEUE)


def rows_of(first: int, count: int, size: int) -> list[StoredMessage]:
    return [
        StoredMessage(i, i, 60, 1000.0, bytes([i % 256]) * size)
        for i in range(first, first + count)
    ]


class TestWhatIsKept:
    def test_p2p_30_everything_of_a_message_comes_back_after_reopening(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / FILE
        partition = opened(path)
        memtable = memtable_of(
            ModeSet(Mode.QUEUE), A, B, C, AttemptsSet(2, 9), KeyRetained(U64_MAX - 1, LEFT)
        )
        metadata = partition.apply(memtable, 77)
        assert metadata == PartitionMetadata(
            NAME, PartitionKind.QUEUE, 77, 3, 10_003, 1, 600.5, ID_MAX, Mode.QUEUE
        )
        partition.close()
        again = opened(path)
        assert again.metadata == metadata
        keys: dict[int, StoredMessage | StoredKey] = {
            10: A,
            U64_MAX - 1: LEFT,
            2**63: B,
            U64_MAX: C,
        }
        assert again.load() == Snapshot([A, B, C], keys, {2: 9}, Mode.QUEUE)
        assert list(again.load().keys) == list(keys)
        assert again.verify() == []
        again.close()

    def test_the_source_of_a_message_is_not_kept(self, tmp_path: Path) -> None:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(StoredMessage(1, 1, 60, 1000.0, b"x", source=5)), 1)
        assert partition.load().rows == [StoredMessage(1, 1, 60, 1000.0, b"x")]
        partition.close()

    def test_the_same_layer_twice_changes_nothing(self, tmp_path: Path) -> None:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(ModeSet(Mode.PAIR), A, B, KeyRetained(5, LEFT)), 1)
        memtable = memtable_of(MessageRemoved(1, 10, LEFT, 3), C, AttemptsSet(2, 4), KeyExpired(5))
        once = partition.apply(memtable, 2)
        loaded = partition.load()
        assert partition.apply(memtable, 2) == once
        assert (
            partition.load()
            == loaded
            == Snapshot([B, C], {10: LEFT, 2**63: B, U64_MAX: C}, {2: 4}, Mode.PAIR)
        )
        assert (once.messages, once.bytes, once.keys) == (2, 10_000, 1)
        partition.close()

    def test_what_is_removed_is_counted_once_and_what_was_never_there_is_not(
        self, tmp_path: Path
    ) -> None:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(A, B), 1)
        gone = memtable_of(
            MessageRemoved(1, 10, None, 3), MessageRemoved(999, 0, None, 50), KeyExpired(123)
        )
        metadata = partition.apply(gone, 2)
        assert (metadata.messages, metadata.bytes, metadata.keys) == (1, 0, 0)
        partition.close()

    def test_an_emptied_queue_has_no_deadline_but_its_mode_for_what_is_carried_and_its_last_id(
        self, tmp_path: Path
    ) -> None:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(ModeSet(Mode.FANOUT), A, B), 1)
        metadata = partition.apply(
            memtable_of(MessageRemoved(1, 10, None, 3), MessageRemoved(2, 2**63, None, 0)), 2
        )
        assert metadata == PartitionMetadata(
            NAME, PartitionKind.QUEUE, 2, last_id=2, mode=Mode.FANOUT
        )
        assert partition.load() == Snapshot(mode=Mode.FANOUT)
        partition.close()

    def test_pa_08_a_key_used_again_stands_for_the_younger_message(self, tmp_path: Path) -> None:
        partition = opened(tmp_path / FILE)
        partition.apply(memtable_of(KeyRetained(10, LEFT)), 1)
        again = StoredMessage(3, 10, 60, 9000.0, b"again")
        metadata = partition.apply(memtable_of(again), 2)
        assert metadata.keys == 0 and metadata.deadline == 9000.0
        assert partition.load().keys == {10: again}
        partition.close()

    @pytest.mark.parametrize("ttl", [0, 60, 600, 3601, 86_400, 86_401, 604_800])
    def test_pa_08_the_deadline_is_the_end_of_a_message_or_of_its_window(
        self, tmp_path: Path, ttl: int
    ) -> None:
        partition = opened(tmp_path / FILE)
        row = StoredMessage(1, 1, ttl, 1.7e9 + 0.123456, b"x")
        assert partition.apply(memtable_of(row), 1).deadline == min(row.expires_at, row.until)
        partition.close()

    def test_the_seed_s_table_shows_what_is_in_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        partition = opened(path)
        partition.apply(memtable_of(A), 1)
        partition.close()
        connection = sqlite3.connect(path)
        query = "SELECT message_id, expiry, data, key, ttl, attempts FROM messages"
        assert connection.execute(query).fetchall() == [(1, 1000, b"one", 10, 60, 0)]
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        connection.close()

    def test_a_deadline_of_a_message_in_the_file_is_corrected(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        partition = opened(path)
        partition.apply(memtable_of(A, B, AttemptsSet(2, 4)), 1)
        metadata = partition.apply(memtable_of(DeadlineSet(2, 2e6), DeadlineSet(9, 1.0)), 2)
        assert metadata.deadline == min(A.expires_at, A.until)
        assert (metadata.messages, metadata.bytes) == (2, 3)
        partition.close()
        partition = opened(path)
        found = partition.load()
        assert found.rows == [A, msgspec.structs.replace(B, expires_at=2e6)]
        assert found.attempts == {2: 4}
        assert partition.verify() == []
        partition.close()

    def test_space_is_given_back(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        partition = opened(path)
        partition.apply(memtable_of(*rows_of(1, 20, 2**20)), 1)
        assert path.stat().st_size > 20 * 2**20
        partition.apply(memtable_of(*(MessageRemoved(i, i, None, 2**20) for i in range(1, 20))), 2)
        assert path.stat().st_size < 2 * 2**20
        assert path.with_name(FILE + "-wal").stat().st_size < 2 * 2**20
        assert [row.id for row in partition.load().rows] == [20]
        partition.close()


KEYS = st.integers(U64_MAX - 4, U64_MAX)


@st.composite
def histories(draw: st.DrawFn) -> list[list[QueueChange]]:
    """Layers of what a channel may say: ids ascend, and a key is new, or over, before its use."""
    kept: dict[int, StoredMessage] = {}
    left: set[int] = set()
    last = 0
    memtables: list[list[QueueChange]] = []
    for _ in range(draw(st.integers(1, 5))):
        changes: list[QueueChange] = []
        for _ in range(draw(st.integers(0, 12))):
            what = draw(st.sampled_from(["put", "gone", "over", "tried", "mode", "limit"]))
            if what == "put":
                key = draw(KEYS)
                if key in left:
                    left.discard(key)
                    changes.append(KeyExpired(key))
                elif any(row.key == key for row in kept.values()):
                    changes.append(KeyExpired(key, was_left=False))
                last += draw(st.integers(1, 3))
                kept[last] = StoredMessage(last, key, 60, 1e6 + last, draw(st.binary(max_size=9)))
                changes.append(kept[last])
            elif what == "gone" and kept:
                row = kept.pop(draw(st.sampled_from(sorted(kept))))
                younger = any(each.key == row.key for each in kept.values()) or row.key in left
                key_row = StoredKey(row.id, row.ttl, row.until, bytes(32))
                leaves = not younger and draw(st.booleans())
                changes.append(
                    MessageRemoved(row.id, row.key, key_row if leaves else None, len(row.data))
                )
                if leaves:
                    left.add(row.key)
            elif what == "over" and left:
                key = draw(st.sampled_from(sorted(left)))
                left.discard(key)
                changes.append(KeyExpired(key))
            elif what == "tried" and kept:
                changes.append(
                    AttemptsSet(draw(st.sampled_from(sorted(kept))), draw(st.integers(1, 9)))
                )
            elif what == "limit" and kept:
                row = kept[draw(st.sampled_from(sorted(kept)))]
                changes.append(DeadlineSet(row.id, 1e6 - draw(st.integers(0, 9))))
            elif what == "mode":
                changes.append(ModeSet(draw(st.sampled_from(list(Mode)))))
        memtables.append(changes)
    return memtables


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_layers_in_the_file_are_the_layers_over_one_another(
    tmp_path_factory: pytest.TempPathFactory,
    history: list[list[QueueChange]],
    data: st.DataObject,
) -> None:
    path = tmp_path_factory.mktemp("model") / FILE
    partition = opened(path)
    model = Snapshot()
    mode: Mode | None = None
    for lsn, changes in enumerate(history, 1):
        memtable = memtable_of(*changes)
        model = memtable.apply_to(model)
        mode = mode if memtable.mode is None else memtable.mode
        model.mode = mode
        for _ in range(data.draw(st.integers(1, 2))):
            metadata = partition.apply(memtable, lsn)
        if data.draw(st.booleans()):
            partition.close()
            partition = opened(path)
        assert partition.load() == model
        left = sum(isinstance(row, StoredKey) for row in model.keys.values())
        assert (metadata.messages, metadata.keys) == (len(model.rows), left)
        assert metadata.bytes == sum(len(row.data) for row in model.rows)
        assert metadata.mode == mode
        deadlines = [min(row.expires_at, row.until) for row in model.rows]
        deadlines += [key.until for key in model.keys.values()]
        assert metadata.deadline == min(deadlines, default=inf)
    assert partition.verify() == []
    partition.close()


class Interrupted(sqlite3.Connection):
    """A connection whose statements fail from the k-th change on."""

    left = 10**9

    def _count(self, sql: str) -> None:
        if not sql.startswith(("SELECT", "PRAGMA", "ROLLBACK")):
            self.left -= 1
            if self.left < 0:
                raise sqlite3.OperationalError("disk I/O error")

    def execute(self, sql: str, *args: Any) -> Any:
        self._count(sql)
        return super().execute(sql, *args)

    def executemany(self, sql: str, *args: Any) -> Any:
        self._count(sql)
        return super().executemany(sql, *args)


class InterruptedDisk(OsDisk):
    def __init__(self, left: int) -> None:
        self.left = left

    def connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, factory=Interrupted)
        connection.left = self.left
        return connection


class TestAFlushThatIsCutShort:
    """Several slices: rows, keys and departures of 40 KB, with slices of about 10 KB."""

    BEFORE: tuple[QueueChange, ...] = (*rows_of(1, 30, 100), KeyRetained(900, LEFT))
    CHANGES: tuple[QueueChange, ...] = (
        *(MessageRemoved(i, i, StoredKey(i, 60, 5e5, bytes(32)), 100) for i in range(1, 15)),
        *rows_of(100, 60, 500),
        KeyExpired(900),
        AttemptsSet(20, 2),
        AttemptsSet(110, 3),
    )

    def model(self) -> tuple[Snapshot, Snapshot]:
        before = memtable_of(*self.BEFORE).apply_to(Snapshot())
        return before, memtable_of(*self.CHANGES).apply_to(before)

    def each_cut(self, tmp_path: Path, check: Callable[[Partition, Path, int], None]) -> int:
        for cut in range(200):
            path = tmp_path / str(cut) / FILE
            path.parent.mkdir()
            first = opened(path)
            first.apply(memtable_of(*self.BEFORE), 1)
            first.close()
            partition = opened(path, InterruptedDisk(cut))
            try:
                partition.apply(memtable_of(*self.CHANGES), 2)
            except sqlite3.OperationalError:
                partition._connection.left = 10**9  # type: ignore[attr-defined]
                check(partition, path, cut)
                partition.close()
            else:
                partition.close()
                return cut
        raise AssertionError("it always failed")

    @pytest.fixture(autouse=True)
    def small_slices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(flush, "SLICE_BYTES", 10_000)

    def test_a_kill_leaves_only_what_the_layer_says_again(self, tmp_path: Path) -> None:
        before, after = self.model()
        memtable = memtable_of(*self.CHANGES)

        def check(partition: Partition, path: Path, cut: int) -> None:
            killed = path.parent / "killed"
            killed.mkdir()
            for each in (path, path.with_name(FILE + "-wal")):
                shutil.copy(each, killed)
            found = opened(killed / FILE)
            assert found.metadata.applied == 1 and found.verify() == []
            # The handle that failed sees what one sees that comes after the kill.
            for loaded in (found.load(), partition.load()):
                assert {row.id for row in loaded.rows} <= {row.id for row in before.rows}
                assert memtable.apply_to(loaded) == after
            assert found.apply(memtable, 2).applied == 2
            assert found.load() == after and found.verify() == []
            found.close()

        assert self.each_cut(tmp_path, check) > 15

    def test_a_message_acked_between_two_attempts_does_not_come_back(self, tmp_path: Path) -> None:
        changes = (*self.CHANGES, *(MessageRemoved(i, i, None, 500) for i in range(100, 160)))

        def check(partition: Partition, path: Path, cut: int) -> None:
            # A message that came and went within the memtable leaves no trace in it.
            again = opened(path)
            again.apply(memtable_of(*changes), 3)
            assert [row.id for row in again.load().rows] == list(range(15, 31))
            again.close()

        self.each_cut(tmp_path, check)

    def test_a_first_flush_that_failed_leaves_nothing(self, tmp_path: Path) -> None:
        for cut in range(1, 30):
            path = tmp_path / f"{cut}.sqlite3"
            opened(path).close()
            partition = opened(path, InterruptedDisk(cut))
            try:
                partition.apply(memtable_of(*self.CHANGES), 1)
            except sqlite3.OperationalError:
                partition.close()
                again = opened(path)
                assert again.load() == Snapshot() and again.verify() == []
                again.close()
            else:
                partition.close()


def first_version(path: Path) -> None:
    """A queue as the first version wrote it: its header has no sum of its rows."""

    def fill(connection: sqlite3.Connection) -> None:
        header = FileHeader(NAME, PartitionKind.QUEUE, applied=1, last_id=1)
        write_header(connection, header)

    schema = re.sub(r",\n +\w+_sum INTEGER", "", QUEUE_SCHEMA)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(make_file(schema + SCHEMA, APPLICATION, fill))


def changed(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        for each in statements:
            connection.execute(each)
        connection.commit()


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def test_a_queue_of_the_first_version_has_the_sum_of_its_rows_from_its_next_change(
    tmp_path: Path,
) -> None:
    path = tmp_path / FILE
    older = rows_of(1, 3, 20)
    partition = opened(path)
    partition.apply(memtable_of(*older, KeyRetained(900, LEFT)), 1)
    partition.close()
    rows = tmp_path / "rows"
    without_seed(path)
    shutil.copy(path, rows)
    path.unlink()
    first_version(path)
    changed(
        path,
        f"ATTACH '{rows}' AS later",
        "INSERT INTO messages (message_id, key, ttl, expires_at, crc, data) "
        "SELECT message_id, key, ttl, expires_at, crc, data FROM later.messages",
        "INSERT INTO keys SELECT * FROM later.keys",
    )
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        header = read_header(connection)
        header.messages, header.bytes, header.keys, header.last_id = 3, 60, 1, 3
        write_header(connection, header)
    partition = opened(path)
    assert partition.load().rows == older and partition.verify() == [] and version_of(path) == 1
    partition.apply(memtable_of(MessageRemoved(2, 2, None, 20), *rows_of(4, 1, 20)), 2)
    assert [row.id for row in partition.load().rows] == [1, 3, 4] and partition.verify() == []
    partition.close()
    assert version_of(path) == 3


@pytest.mark.parametrize("seed", range(20))
def test_the_sums_in_the_header_are_those_of_the_rows(tmp_path: Path, seed: int) -> None:
    """They are kept from change to change, and `verify` adds all rows up."""
    queue = Queue(Random(seed))
    partition = opened(tmp_path / FILE)
    for applied in range(1, 13):
        memtable = memtable_of(*queue.run(8))
        for _ in range(2):  # a memtable that was flushed already changes nothing
            partition.apply(memtable, applied)
            assert partition.verify() == []
        scrub_all(partition)
        assert partition.load() == queue.snapshot
    partition.close()


def scrub_all(partition: Partition) -> None:
    """Read the file as a scrub does, in slices."""
    _, point = partition.scrub(None, 4096)
    while point is not None:
        _, point = partition.scrub(point, 4096)


class Cramped(sqlite3.Connection):
    """There is no room to move pages about."""

    def executescript(self, script: str) -> Any:
        raise sqlite3.OperationalError("database or disk is full")


class CrampedDisk(OsDisk):
    def connect(self, path: Path) -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, factory=Cramped)


def test_a_flush_is_done_though_its_space_cannot_be_given_back(tmp_path: Path) -> None:
    path = tmp_path / FILE
    partition = opened(path)
    partition.apply(memtable_of(*rows_of(1, 20, 2**16)), 1)
    partition.close()
    cramped = opened(path, CrampedDisk())
    gone = memtable_of(*(MessageRemoved(i, i, None, 2**16) for i in range(1, 20)))
    assert cramped.apply(gone, 2).applied == 2
    cramped.close()
    again = opened(path)
    assert again.metadata.applied == 2 and len(again.load().rows) == 1
    again.close()


class TestDamage:
    def damaged(self, path: Path, old: bytes, new: bytes) -> None:
        content = path.read_bytes()
        assert content.count(old) == 1
        path.write_bytes(content.replace(old, new))

    def build_file(self, path: Path) -> None:
        partition = opened(path)
        partition.apply(
            memtable_of(
                *rows_of(1, 300, 60),
                StoredMessage(400, 4, 60, 1e3, b"find me"),
                KeyRetained(8000, LEFT),
            ),
            3,
        )
        partition.close()

    def test_a_changed_byte_of_a_message_is_found_and_nothing_else_is_harmed(
        self, tmp_path: Path
    ) -> None:
        path, other = tmp_path / FILE, tmp_path / "other.sqlite3"
        self.build_file(path)
        self.build_file(other)
        self.damaged(path, b"find me", b"fine me")
        partition = opened(path)
        with pytest.raises(Damaged, match="message 400"):
            partition.load()
        assert partition.verify() == ["message 400 is not what was written (crc)"]
        partition.close()
        healthy = opened(other)
        assert healthy.verify() == [] and len(healthy.load().rows) == 301
        healthy.close()

    @pytest.mark.parametrize(
        ("sql", "text"),
        [
            ("UPDATE messages SET key = 5 WHERE message_id = 7", "message 7"),
            ("UPDATE messages SET expires_at = 'x' WHERE message_id = 7", "message 7"),
            ("UPDATE messages SET data = CAST(x'ff80' AS TEXT) WHERE message_id = 7", "message 7"),
            ("DELETE FROM messages WHERE message_id = 7", "300 messages"),
            ("DELETE FROM keys", "0 keys"),
            ("UPDATE keys SET digest = x'00'", "key 8000"),
            ("DROP TABLE messages", "no such table"),
        ],
    )
    def test_what_somebody_else_changed_is_damage(
        self, tmp_path: Path, sql: str, text: str
    ) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()
        with pytest.raises(Damaged, match=text):
            partition = opened(path)
            partition.load()
        if "DROP" not in sql:
            assert any(text in line for line in partition.verify())
            partition.close()

    @pytest.mark.parametrize(
        "older",
        [
            StoredMessage(8, 8, 60, 1000.0, b"older row, as large as the one".ljust(60)),
            StoredMessage(301, 7, 60, 1000.0, bytes(60)),
        ],
    )
    def test_an_older_row_that_is_as_large_is_found(
        self, tmp_path: Path, older: StoredMessage
    ) -> None:
        """The count of messages, and their size, are as the header says."""
        path, other = tmp_path / FILE, tmp_path / "older.sqlite3"
        self.build_file(path)
        partition = opened(other)
        partition.apply(memtable_of(older), 1)
        partition.close()
        changed(
            path,
            f"ATTACH '{other}' AS older",
            "DELETE FROM messages WHERE message_id = 8",
            "INSERT INTO messages (message_id, key, ttl, expires_at, crc, data) "
            "SELECT message_id, key, ttl, expires_at, crc, data FROM older.messages",
        )
        partition = opened(path)
        with pytest.raises(Damaged, match="older than meta says"):
            partition.load()
        assert partition.verify() == ["some messages or keys are older than meta says (sum of crc)"]
        with pytest.raises(Damaged, match="older than meta says"):
            scrub_all(partition)
        partition.close()

    @pytest.mark.parametrize("older", ["attempts - 1", "0", "attempts + 1"])
    def test_older_attempts_are_found(self, tmp_path: Path, older: str) -> None:
        """They have no checksum, and are counted in the header alone."""
        path = tmp_path / FILE
        self.build_file(path)
        partition = opened(path)
        partition.apply(memtable_of(AttemptsSet(8, 2), AttemptsSet(9, 1)), 4)
        partition.apply(memtable_of(AttemptsSet(8, 3)), 5)
        assert partition.load().attempts == {8: 3, 9: 1} and partition.verify() == []
        scrub_all(partition)
        partition.close()
        changed(path, f"UPDATE messages SET attempts = {older} WHERE message_id = 8")
        partition = opened(path)
        text = "members, acks, attempts or attributes are older than meta says"
        with pytest.raises(Damaged, match=text):
            partition.load()
        assert [text in each for each in partition.verify()] == [True]
        with pytest.raises(Damaged, match=text):
            scrub_all(partition)
        partition.close()

    def test_a_row_that_a_search_does_not_find_is_damage(self, tmp_path: Path) -> None:
        """An older page of the inside of the tree: all rows are read in their order, and the
        removal of one would not find it."""
        path = tmp_path / FILE
        self.build_file(path)
        with closing(sqlite3.connect(path)) as connection:
            of = "SELECT rootpage FROM sqlite_schema WHERE name = 'messages'"
            ((root,),) = connection.execute(of)
            every = connection.execute("SELECT message_id FROM messages").fetchall()
        data = bytearray(path.read_bytes())
        page = (root - 1) * 4096
        cell = page + int.from_bytes(data[page + 12 : page + 14])
        last = data[cell + 4]
        assert data[page] == 5 and 1 < last < 128, "the number of the last row of the first page"
        data[cell + 4] = last - 1
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT message_id FROM messages").fetchall() == every
            search = "SELECT count(*) FROM messages WHERE message_id = ?"
            assert connection.execute(search, (last,)).fetchone() == (0,)
        partition = opened(path)
        with pytest.raises(Damaged, match="out of order"):
            partition.load()
        with pytest.raises(Damaged, match="out of order"):
            scrub_all(partition)
        partition.close()

    def test_an_older_key_is_found(self, tmp_path: Path) -> None:
        path, other = tmp_path / FILE, tmp_path / "older.sqlite3"
        self.build_file(path)
        partition = opened(other)
        partition.apply(memtable_of(KeyRetained(7000, LEFT)), 1)
        partition.close()
        changed(
            path,
            f"ATTACH '{other}' AS older",
            "DELETE FROM keys",
            "INSERT INTO keys SELECT * FROM older.keys",
        )
        partition = opened(path)
        with pytest.raises(Damaged, match="older than meta says"):
            partition.load()
        with pytest.raises(Damaged, match="older than meta says"):
            scrub_all(partition)
        partition.close()

    @pytest.mark.parametrize(
        "sql",
        ["UPDATE meta SET applied = 2", "DELETE FROM meta", "UPDATE meta SET last_id = 10"],
    )
    def test_what_a_file_says_of_itself_is_checked(self, tmp_path: Path, sql: str) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        connection = sqlite3.connect(path)
        connection.execute(sql)
        connection.commit()
        connection.close()
        with pytest.raises(Damaged, match=r"meta|says of itself"):
            opened(path)

    @pytest.mark.parametrize("size", [0, 100, 5000, 20_000])
    def test_a_truncated_file_is_damaged(self, tmp_path: Path, size: int) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        path.write_bytes(path.read_bytes()[:size])
        with pytest.raises(Damaged):
            opened(path).load()

    def test_bytes_that_are_no_database_are_damaged(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        path.write_bytes(b"nothing of the kind " * 1000)
        with pytest.raises(Damaged):
            opened(path)

    def test_a_file_of_a_later_version_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 6")
        connection.close()
        content = path.read_bytes()
        with pytest.raises(UnknownFormat, match="format 6"):
            opened(path)
        assert path.read_bytes() == content

    def test_the_file_of_another_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        for name, kind in ((b"chat/2", PartitionKind.QUEUE), (NAME, PartitionKind.LOG)):
            connection = OsDisk().connect(path)
            with pytest.raises(Damaged, match="in the place of"):
                Partition(connection, name, kind)
            connection.close()

    def test_an_error_that_may_pass_is_no_damage(self, tmp_path: Path) -> None:
        path = tmp_path / FILE
        self.build_file(path)
        partition = opened(path, InterruptedDisk(0))
        with pytest.raises(sqlite3.OperationalError):
            partition.apply(memtable_of(MessageRemoved(1, 1, None, 60)), 4)
        partition.close()
        again = opened(path)
        assert len(again.load().rows) == 301
        again.close()

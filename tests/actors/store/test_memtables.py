"""Memtables over a file, against plain models: however a history is cut into
memtables, what they make together is what happened."""

from __future__ import annotations

from copy import deepcopy
from hashlib import sha256
from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    Chunk,
    KeyExpired,
    KeyRetained,
    LogChange,
    LogDeleted,
    LogSnapshot,
    LogTrimmed,
    MessageRemoved,
    MetadataSet,
    ModeSet,
    Position,
    QueueChange,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.journal.change_codec import decode, encode
from millpond.actors.store.log_memtable import LogMemtable
from millpond.actors.store.queue_memtable import QueueMemtable
from tests.actors.store.queue_model import Queue

seeds = st.integers(0, 2**32).map(Random)
lengths = st.integers(0, 60)


def queue_layer(changes: list[QueueChange], *, is_oldest: bool = False) -> QueueMemtable:
    memtable = QueueMemtable(is_oldest=is_oldest)
    memtable.fold(changes)
    return memtable


def said(memtable: QueueMemtable | LogMemtable) -> bytes:
    """The counts that a memtable reports."""
    return encode(memtable.changes())


def check_sums(memtable: QueueMemtable) -> None:
    assert memtable.row_bytes == sum(len(row.data) for row in memtable.rows.values())
    assert memtable.removed_bytes == sum(memtable.removed.values())
    assert memtable.size >= memtable.row_bytes + memtable.lesser_size
    snapshot = memtable.apply_to(Snapshot())
    dates = [row.expires_at for row in snapshot.rows]
    dates += [row.until for row in snapshot.keys.values()]
    if snapshot.subscribers is not None:
        dates += [subscriber.until for subscriber in snapshot.subscribers.by_number.values()]
    assert memtable.deadline <= min(dates, default=inf)


class TestQueue:
    @given(seeds, lengths, lengths)
    def test_a_memtable_over_what_was_is_what_is(
        self, rng: Random, before: int, after: int
    ) -> None:
        queue = Queue(rng)
        queue.run(before)
        below, (messages, size, keys) = queue.snapshot, queue.weight
        memtable = queue_layer(queue.run(after))
        assert memtable.apply_to(deepcopy(below)) == queue.snapshot
        assert queue.weight == (
            messages + len(memtable.rows) - len(memtable.removed),
            size + memtable.row_bytes - memtable.removed_bytes,
            keys + memtable.keys_added,
        )
        check_sums(memtable)

    @given(seeds, lengths)
    def test_a_base_layer_is_all_there_is(self, rng: Random, steps: int) -> None:
        queue = Queue(rng)
        memtable = queue_layer(queue.run(steps), is_oldest=True)
        assert memtable.apply_to(Snapshot()) == queue.snapshot
        assert not memtable.removed
        assert not memtable.expired_keys
        snapshot = queue.snapshot
        assert bool(memtable) is bool(snapshot.rows or snapshot.keys or snapshot.subscribers)
        check_sums(memtable)

    @given(seeds, lengths, lengths)
    def test_twice_is_once(self, rng: Random, before: int, after: int) -> None:
        queue = Queue(rng)
        queue.run(before)
        below = queue.snapshot
        changes = queue.run(after)
        once = queue_layer(changes).apply_to(deepcopy(below))
        assert queue_layer(changes).apply_to(once) == queue.snapshot
        assert queue_layer([*changes, *changes]).apply_to(deepcopy(below)) == queue.snapshot

    @given(seeds, lengths, lengths, st.booleans())
    def test_what_it_says_makes_it_again(
        self, rng: Random, before: int, after: int, is_oldest: bool
    ) -> None:
        """As a rewrite does: through the journal's bytes."""
        queue = Queue(rng)
        queue.run(0 if is_oldest else before)
        below = queue.snapshot
        memtable = queue_layer(queue.run(after), is_oldest=is_oldest)
        again = QueueMemtable(is_oldest=is_oldest)
        again.fold(list(decode(said(memtable))))  # type: ignore[arg-type]  # changes of a queue
        assert said(again) == said(memtable)
        assert (again.row_bytes, again.removed_bytes) == (
            memtable.row_bytes,
            memtable.removed_bytes,
        )
        assert again.apply_to(below) == queue.snapshot

    @given(seeds, lengths, lengths, lengths, st.booleans())
    def test_layers_upon_each_other_are_one(
        self, rng: Random, before: int, middle: int, after: int, is_oldest: bool
    ) -> None:
        queue = Queue(rng)
        queue.run(0 if is_oldest else before)
        below = queue.snapshot
        memtable = queue_layer(queue.run(middle), is_oldest=is_oldest)
        newer = queue_layer(queue.run(after))
        assert newer.apply_to(memtable.apply_to(deepcopy(below))) == queue.snapshot
        memtable.fold(newer.changes())
        assert memtable.apply_to(below) == queue.snapshot
        check_sums(memtable)

    @given(seeds, lengths, lengths, lengths, st.booleans(), st.booleans(), st.integers(0, 150))
    def test_what_moves_and_what_stays_are_all(
        self,
        rng: Random,
        before: int,
        middle: int,
        after: int,
        is_oldest: bool,
        keys_stay: bool,
        settled_id: int,
    ) -> None:
        """Flushed rows are in the file; the rest, and later changes, lie over it."""
        queue = Queue(rng)
        queue.run(0 if is_oldest else before)
        below = queue.snapshot
        memtable = queue_layer(queue.run(middle), is_oldest=is_oldest)
        before_split = said(memtable)
        moved, stays = memtable.split(settled_id, keys_stay=keys_stay)
        assert said(memtable) == before_split
        assert all(row.id >= settled_id for row in stays.rows.values())
        assert all(row.id < settled_id for row in moved.rows.values())
        check_sums(moved)
        check_sums(stays)
        file = moved.apply_to(deepcopy(below))
        assert stays.apply_to(deepcopy(file)) == queue.snapshot
        moved.fold(stays.changes())
        assert moved.apply_to(deepcopy(below)) == queue.snapshot
        thawed = queue_layer(list(stays.changes()))
        thawed.fold(queue.run(after))
        assert thawed.apply_to(file) == queue.snapshot

    @pytest.mark.parametrize("is_gone", [True, False])
    def test_pa_08_a_key_that_was_used_again_is_as_old_as_its_latest_use(
        self, is_gone: bool
    ) -> None:
        """The oldest keys are forgotten when there are too many."""
        left = StoredKey(1, 60, 600.0, bytes(32))
        below = Snapshot(rows=[StoredMessage(2, 20, 60, 900.0, b"")], keys={10: left})
        memtable = QueueMemtable(is_oldest=False)
        again = StoredMessage(3, 10, 60, 2000.0, b"")
        memtable.fold([again])
        below.keys[20] = below.rows[0]
        if is_gone:
            memtable.fold([MessageRemoved(3, 10, StoredKey(3, 60, 2000.0, bytes(32)))])
            memtable.add(StoredMessage(1, 10, 60, 900.0, b""))
        keys = memtable.apply_to(below).keys
        assert [(key, use.id) for key, use in keys.items()] == [(20, 2), (10, 3)]

    def test_a_message_that_came_and_went_leaves_its_key_alone(self) -> None:
        row = StoredMessage(1, 7, 60, 100.0, b"data")
        left = StoredKey(1, 60, 640.0, sha256(b"data").digest())
        memtable = queue_layer(
            [ModeSet(Mode.PAIR), row, MessageRemoved(1, 7, left, 4)], is_oldest=True
        )
        assert list(memtable.changes()) == [ModeSet(Mode.PAIR), KeyRetained(7, left)]
        memtable.fold([KeyExpired(7)])
        assert not memtable


def chunk(rng: Random, first: int, now: int) -> Chunk:
    count = rng.randint(1, 4)
    ids = Position(now, 0), Position(now, count)
    return Chunk(first, count, now, now + count, *ids, rng.randbytes(rng.randint(1, 9)))


class Log:
    """A log as its owner sees it."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.clear()

    def clear(self) -> None:
        self.chunks: list[Chunk] = []
        self.trim_point = 0
        self.tail = 0
        self.last: Chunk | None = None
        self.metadata: dict[bytes, bytes] = {}

    def step(self) -> LogChange:
        rng = self.rng
        match rng.randrange(10):
            case 0 | 1:
                self.trim_point = rng.randint(self.trim_point, self.tail)
                self.chunks = [each for each in self.chunks if each.end > self.trim_point]
                return LogTrimmed(self.trim_point)
            case 2:
                name, value = rng.choice((b"a", b"b")), rng.choice((b"x", b"y"))
                self.metadata[name] = value
                return MetadataSet(name, value)
            case 3:
                name = rng.choice((b"a", b"b"))
                self.metadata.pop(name, None)
                return MetadataSet(name, None)
            case 4 if rng.random() < 0.3:
                self.clear()
                return LogDeleted()
            case _:
                now = 0 if self.last is None else self.last.last_timestamp + rng.randrange(2)
                self.last = chunk(rng, self.tail, now)
                self.tail = self.last.end
                self.chunks.append(self.last)
                return self.last

    def run(self, steps: int) -> list[LogChange]:
        return [self.step() for _ in range(steps)]

    @property
    def snapshot(self) -> LogSnapshot:
        last = self.last
        return LogSnapshot(
            trim_point=self.trim_point,
            tail=self.tail,
            last_id=last.last_id if last else Position(0, 0),
            last_timestamp=last.last_timestamp if last else 0,
            metadata=dict(self.metadata),
        )


def log_layer(changes: list[LogChange], *, is_oldest: bool = False) -> LogMemtable:
    memtable = LogMemtable(is_oldest=is_oldest)
    memtable.fold(changes)
    return memtable


def metadata(snapshot: LogSnapshot) -> LogSnapshot:
    """Without its size: what is trimmed counts until its space is given back."""
    snapshot.bytes = 0
    return snapshot


def chunks_over(below: list[Chunk], memtable: LogMemtable) -> list[Chunk]:
    """The expected rows of a file with a memtable over it."""
    kept = [] if memtable.is_fresh or memtable.is_oldest else below
    return [each for each in [*kept, *memtable.chunks] if each.end > memtable.trim_point]


class TestLog:
    @given(seeds, lengths, lengths)
    def test_a_memtable_over_what_was_is_what_is(
        self, rng: Random, before: int, after: int
    ) -> None:
        log = Log(rng)
        log.run(before)
        below, chunks = log.snapshot, list(log.chunks)
        memtable = log_layer(log.run(after))
        assert metadata(memtable.apply_to(below)) == log.snapshot
        assert chunks_over(chunks, memtable) == log.chunks
        assert memtable.chunk_bytes == sum(len(each.data) for each in memtable.chunks)

    @given(seeds, lengths)
    def test_a_base_layer_is_all_there_is(self, rng: Random, steps: int) -> None:
        log = Log(rng)
        memtable = log_layer(log.run(steps), is_oldest=True)
        assert metadata(memtable.apply_to(LogSnapshot())) == log.snapshot
        assert chunks_over([], memtable) == log.chunks
        assert not memtable.is_fresh
        assert memtable or log.snapshot == LogSnapshot()

    @given(seeds, lengths, lengths)
    def test_twice_is_once(self, rng: Random, before: int, after: int) -> None:
        """`bytes` and the chunks themselves are told apart by their sequence, in the file."""
        log = Log(rng)
        log.run(before)
        memtable = log_layer(log.run(after))
        # Records of the file that the memtable trims are gone once the memtable is in the file.
        once = memtable.apply_to(LogSnapshot() if before == 0 else log.snapshot)
        assert metadata(memtable.apply_to(once)) == log.snapshot

    @given(seeds, lengths, lengths, st.booleans())
    def test_what_it_says_makes_it_again(
        self, rng: Random, before: int, after: int, is_oldest: bool
    ) -> None:
        log = Log(rng)
        log.run(0 if is_oldest else before)
        below = log.snapshot
        memtable = log_layer(log.run(after), is_oldest=is_oldest)
        again = LogMemtable(is_oldest=is_oldest)
        again.fold(list(decode(said(memtable))))  # type: ignore[arg-type]  # changes of a log
        assert chunks_over([], again) == chunks_over([], memtable)
        assert again.chunk_bytes <= memtable.chunk_bytes
        assert metadata(again.apply_to(below)) == log.snapshot

    @given(seeds, lengths, lengths, lengths, st.booleans())
    def test_layers_upon_each_other_are_one(
        self, rng: Random, before: int, middle: int, after: int, is_oldest: bool
    ) -> None:
        log = Log(rng)
        log.run(0 if is_oldest else before)
        below, chunks = log.snapshot, list(log.chunks)
        memtable = log_layer(log.run(middle), is_oldest=is_oldest)
        newer = log_layer(log.run(after))
        assert metadata(newer.apply_to(memtable.apply_to(deepcopy(below)))) == log.snapshot
        assert chunks_over(chunks_over(chunks, memtable), newer) == log.chunks
        memtable.fold(newer.changes())
        assert metadata(memtable.apply_to(below)) == log.snapshot
        assert chunks_over(chunks, memtable) == log.chunks

    @given(seeds, lengths, lengths, lengths, st.integers(0, 5))
    def test_what_moves_and_what_stays_are_all(
        self, rng: Random, before: int, middle: int, after: int, count: int
    ) -> None:
        log = Log(rng)
        log.run(before)
        below, chunks = log.snapshot, list(log.chunks)
        memtable = log_layer(log.run(middle))
        moved, stays = memtable.split(count)
        assert len(stays.chunks) == min(count, len(memtable.chunks))
        file = moved.apply_to(deepcopy(below))
        thawed = log_layer(list(stays.changes()))
        thawed.fold(log.run(after))
        assert metadata(thawed.apply_to(file)) == log.snapshot
        kept = chunks_over(chunks_over(chunks, moved), thawed)
        assert [each for each in kept if each.end > log.trim_point] == log.chunks

    @pytest.mark.parametrize("is_oldest", [True, False])
    def test_a_log_that_is_deleted_begins_anew_from_0(self, is_oldest: bool) -> None:
        log = Log(Random(1))
        memtable = log_layer(log.run(20), is_oldest=is_oldest)
        memtable.fold([LogDeleted()])
        below = LogSnapshot(5, 9, Position(1, 1), 3, {b"a": b"b"}, 10)
        assert memtable.apply_to(below) == LogSnapshot()
        assert bool(memtable) is not is_oldest, "below a base nothing has to be deleted"
        new = Chunk(0, 1, 7, 7, Position(7, 0), Position(7, 0), b"new")
        memtable.fold([new])
        assert memtable.apply_to(LogSnapshot(5, 9)) == LogSnapshot(0, 1, Position(7, 0), 7, {}, 3)

    def test_the_end_of_a_log_survives_its_trimming(self) -> None:
        last = Chunk(3, 2, 8, 9, Position(8, 0), Position(9, 5), b"x")
        memtable = log_layer([last, LogTrimmed(5)], is_oldest=True)
        assert chunks_over([], memtable) == []
        snapshot = memtable.apply_to(LogSnapshot())
        assert (snapshot.tail, snapshot.trim_point) == (5, 5)
        assert (snapshot.last_id, snapshot.last_timestamp) == (Position(9, 5), 9)

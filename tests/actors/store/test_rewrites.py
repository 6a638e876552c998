"""Rewrites in the journal: whichever segments are left, a restart finds what there was."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from millpond.actors.store.changes import (
    Change,
    Chunk,
    LogDeleted,
    LogSnapshot,
    MessageRemoved,
    Position,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.interface import Fault
from millpond.actors.store.journal.change_codec import encode
from millpond.actors.store.journal.format import GROUP_SIZE, HEADER_SIZE, RECORD_SIZE
from millpond.actors.store.settings import StoreSettings
from tests.actors.store.harness import FILLER, FILLER_ID, NOW, Run, copied, young_id

QUEUE, LOG = b"orders", b"streams/orders"
SEGMENT_BYTES = 8192
OLD, YOUNG = young_id(60), young_id()


def settings(**changed: float) -> StoreSettings:
    """Segments of 8 KiB, two of which may stay; what is small is rewritten."""
    sizes = {"segment_bytes": SEGMENT_BYTES, "journal_bytes_max": 16_384, "rewrite_bytes_max": 4000}
    return StoreSettings(**{**sizes, "settle_s": 1.0, **changed})  # type: ignore[arg-type]


def row(message_id: int, size: int = 10) -> StoredMessage:
    return StoredMessage(message_id, message_id, 3600, NOW + 3600, bytes(size))


def gone(message: StoredMessage) -> MessageRemoved:
    key = StoredKey(message.id, message.ttl, message.until, sha256(message.data).digest())
    return MessageRemoved(message.id, message.key, key, len(message.data))


def removed(message: StoredMessage) -> MessageRemoved:
    """The same, of a message whose key is not kept."""
    return MessageRemoved(message.id, message.key, None, len(message.data))


def chunk(first: int) -> Chunk:
    ids = Position(first, 0), Position(first + 9, 0)
    return Chunk(first, 10, first, first + 9, *ids, bytes(100))


def submit(run: Run, name: bytes, *changes: Change) -> None:
    """Have changes wait for the journal's worker."""
    run.store.write(name, changes)
    run.loop.finish_pass()


def fill(run: Run, size: int = 6000) -> None:
    """Write most of a segment; nothing of it is needed."""
    message = row(FILLER_ID + run.store.stats.groups, size)
    run.write(FILLER, message, removed(message))


def rewrite_behind(run: Run, name: bytes, change: Change) -> None:
    """Freeze a partition while a change is on its way, which fills its segment: the rewrite is in
    the next one."""
    _, journal = run.loop.workers
    message = row(FILLER_ID + run.store.stats.groups, 0)
    records = ((FILLER, (message, removed(message))), (name, (change,)))
    size = sum(RECORD_SIZE + len(of) + len(encode(changes)) for of, changes in records)
    left = SEGMENT_BYTES - run.store._journal._offset - GROUP_SIZE - size
    message = row(message.id, left - 10)
    run.store.write(FILLER, [message, removed(message)])
    submit(run, name, change)
    compactor = run.store._compactor
    compactor.prefer(run.store._entries[name])
    compactor.step()
    segment = compactor.current_segment
    journal.step()  # the change, not the rewrite
    assert compactor.current_segment == segment
    run.work()
    assert compactor.current_segment == segment + 1


@pytest.mark.parametrize("others", [[], [row(YOUNG + 1)]], ids=["alone", "among others"])
def test_a_message_that_leaves_during_a_rewrite_stays_away(
    tmp_path: Path, others: list[StoredMessage]
) -> None:
    """PS-13: the rewrite has the message, and the segment that tells of its removal goes first."""
    run = Run(tmp_path / "data", settings())
    message = row(YOUNG)
    run.write(QUEUE, message, *others)
    rewrite_behind(run, QUEUE, removed(message))
    if others:
        run.write(QUEUE, *map(removed, others))
    for step in range(6):
        assert Run(copied(run.folder, f"copy{step}"), settings()).load(QUEUE).rows == []
        fill(run)


def test_a_stream_that_is_deleted_during_a_rewrite_stays_away(tmp_path: Path) -> None:
    run = Run(tmp_path / "data", settings())
    run.write(LOG, chunk(0))
    rewrite_behind(run, LOG, LogDeleted())
    for step in range(6):
        left = Run(copied(run.folder, f"copy{step}"), settings()).log_snapshot(LOG)
        assert left == LogSnapshot()
        fill(run)


@pytest.mark.parametrize("rewrite_bytes_max", [4000, 0], ids=["rewritten", "in part flushed"])
def test_the_loss_of_a_rewrite_in_the_open_segment_is_no_silent_one(
    tmp_path: Path, rewrite_bytes_max: int
) -> None:
    """After a kill, the end of that segment cannot be told from what was never written."""
    run = Run(tmp_path / "data", settings(rewrite_bytes_max=rewrite_bytes_max))
    messages = [row(OLD, 1000), row(YOUNG, 1000)]
    run.write(QUEUE, *messages)
    is_rewritten = False
    for step in range(8):
        fill(run)
        is_rewritten |= run.store._compactor._rewritten_to == run.store._compactor.current_segment
        copy = copied(run.folder, f"copy{step}")
        newest = max((copy / "journal").iterdir())
        newest.write_bytes(newest.read_bytes()[:HEADER_SIZE].ljust(SEGMENT_BYTES, b"\0"))
        again = Run(copy, settings())
        found = again.finish(again.store.load(QUEUE))
        assert found is Fault.DAMAGED or found.rows == messages
    assert is_rewritten


def test_segments_whose_content_was_rewritten_go_when_the_next_one_begins(tmp_path: Path) -> None:
    """Also where nobody writes but few: the journal keeps to its budget."""
    run = Run(tmp_path / "data", settings())
    names = [b"channel %d" % number for number in range(20)]
    for number, name in enumerate(names):
        run.write(name, row(YOUNG + number))
    for _ in range(30):
        fill(run)
        assert run.store.stats.segments <= 4
        assert run.store.health.is_writable


def test_a_segment_that_nothing_needs_any_more_goes_below_the_budget_too(tmp_path: Path) -> None:
    """The commit that empties it says so, though the journal is small and nothing is full."""
    run = Run(tmp_path / "data", settings(journal_bytes_max=2**20))
    message = row(YOUNG)
    run.write(QUEUE, message)
    fill(run)
    fill(run)
    run.work()
    assert run.store.stats.segments == 2, "the first has the message"
    run.write(QUEUE, removed(message))
    run.work()
    assert run.store.stats.segments == 1

"""The size of a partition: arithmetic over its changes, forth and back."""

from __future__ import annotations

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    KeyExpired,
    KeyRetained,
    MessageRemoved,
    ModeSet,
    PartitionKind,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.index import IndexEntry, count_usage
from millpond.actors.store.interface import PartitionUsage, Usage

LEFT = StoredKey(1, 60, 700.0, b"d" * 32)
CHANGES: list[Change] = [
    ModeSet(Mode.QUEUE),
    StoredMessage(1, 10, 60, 100.0, b"one"),
    MessageRemoved(1, 10, LEFT, 3),
    StoredMessage(2, 20, 60, 100.0, b"four"),
    AttemptsSet(2, 1),
    MessageRemoved(7, 70, None, 1000),
    KeyRetained(30, LEFT),
    KeyExpired(10),
    KeyExpired(20, was_left=False),
    StoredMessage(3, 40, 60, 100.0, b"seventh"),
]


def test_p2p_30_every_change_counts_once_whatever_stands_next_to_it() -> None:
    entry, usage = IndexEntry(b"a", PartitionKind.QUEUE, Durability.DISK), Usage(5, 5000, 5)
    assert count_usage(entry, CHANGES, usage, 1)
    assert usage == Usage(5 + 3 - 2, 5000 + 14 - 1003, 5 + 2 - 1)
    assert entry.usage() == PartitionUsage(1, -989, 2, Mode.QUEUE)
    assert count_usage(entry, CHANGES, usage, -1)
    assert usage == Usage(5, 5000, 5)
    assert (entry.messages, entry.bytes, entry.keys) == (0, 0, 0)


def test_ps_13_nobody_waits_for_what_goes() -> None:
    entry = IndexEntry(b"a", PartitionKind.QUEUE, Durability.DISK)
    soft = [each for each in CHANGES if not isinstance(each, StoredMessage)]
    assert not count_usage(entry, soft, Usage(), 1)

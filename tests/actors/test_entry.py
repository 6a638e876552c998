"""What a partition weighs is arithmetic over its changes, forth and back."""

from __future__ import annotations

from millpond.actors.messages import Durability, Mode
from millpond.actors.store.changes import (
    Change,
    Gone,
    KeyGone,
    KeyLeft,
    KeyRow,
    Kind,
    ModeSet,
    Row,
    Tried,
)
from millpond.actors.store.index import Entry, weigh
from millpond.actors.store.interface import Usage, Weight

LEFT = KeyRow(1, 60, 700.0, b"d" * 32)
CHANGES: list[Change] = [
    ModeSet(Mode.QUEUE),
    Row(1, 10, 60, 100.0, b"one"),
    Gone(1, 10, LEFT, 3),
    Row(2, 20, 60, 100.0, b"four"),
    Tried(2, 1),
    Gone(7, 70, None, 1000),
    KeyLeft(30, LEFT),
    KeyGone(10),
    KeyGone(20, was_left=False),
    Row(3, 40, 60, 100.0, b"seventh"),
]


def test_p2p_30_every_change_counts_once_whatever_stands_next_to_it() -> None:
    entry, usage = Entry(b"a", Kind.QUEUE, Durability.DISK), Usage(5, 5000, 5)
    assert weigh(entry, CHANGES, usage, 1)
    assert usage == Usage(5 + 3 - 2, 5000 + 14 - 1003, 5 + 2 - 1)
    assert entry.weight() == Weight(1, -989, 2, Mode.QUEUE)
    assert weigh(entry, CHANGES, usage, -1)
    assert usage == Usage(5, 5000, 5)
    assert (entry.messages, entry.bytes, entry.keys) == (0, 0, 0)


def test_ps_13_nobody_waits_for_what_goes() -> None:
    entry = Entry(b"a", Kind.QUEUE, Durability.DISK)
    soft = [each for each in CHANGES if not isinstance(each, Row)]
    assert not weigh(entry, soft, Usage(), 1)

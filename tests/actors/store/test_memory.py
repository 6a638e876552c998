"""Partitions in memory: what is written is what a channel is rebuilt from (P2P-22, P2P-30)."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from millpond.actors.messages import Mode
from millpond.actors.store.changes import (
    AttemptsSet,
    Change,
    KeyExpired,
    MessageRemoved,
    ModeSet,
    Snapshot,
    StoredKey,
    StoredMessage,
)
from millpond.actors.store.interface import Usage
from millpond.actors.store.memory import MemoryStore
from tests.actors.store.harness import LAZY, NOW, SMALL, run, young_id

A, B = StoredMessage(1, 10, 60, 100.0, b"one"), StoredMessage(2, 20, 60, 100.0, b"four", 3)
LEFT = StoredKey(1, 60, 700.0, b"digest")


def test_p2p_22_names_are_partitions_of_their_own() -> None:
    store = MemoryStore()
    assert store.write(b"a", [ModeSet(Mode.QUEUE), A, B, AttemptsSet(2, 4)]) is None
    assert store.load(b"b") == Snapshot()
    assert store.load(b"a") == Snapshot([A, B], {10: A, 20: B}, {2: 4}, Mode.QUEUE)
    assert store.usage == Usage(messages=2, bytes=7, keys=0)


def test_a_message_that_is_gone_leaves_its_key_until_that_is_gone() -> None:
    store = MemoryStore()
    store.write(b"a", [A, B, AttemptsSet(1, 2), MessageRemoved(1, 10, LEFT)])
    assert store.load(b"a") == Snapshot([B], {10: LEFT, 20: B}, {}, None)
    assert store.usage == Usage(messages=1, bytes=4, keys=1)
    store.write(b"a", [KeyExpired(10), MessageRemoved(2, 20, None)])
    assert store.load(b"a") == Snapshot()
    assert store.usage == Usage()


def test_an_emptied_partition_is_forgotten_with_its_mode() -> None:
    store = MemoryStore()
    store.write(b"a", [ModeSet(Mode.QUEUE), A, MessageRemoved(1, 10, None)])
    assert store.load(b"a").mode is None and store._partitions == {}


def test_writing_the_same_departure_twice_counts_once() -> None:
    store = MemoryStore()
    store.write(
        b"a",
        [
            A,
            B,
            MessageRemoved(1, 10, LEFT),
            MessageRemoved(1, 10, LEFT),
            KeyExpired(10),
            KeyExpired(10),
        ],
    )
    assert store.usage == Usage(messages=1, bytes=4, keys=0)


def test_a_key_used_again_is_the_younger_message_s() -> None:
    store = MemoryStore()
    again = StoredMessage(3, 10, 60, 900.0, b"again")
    store.write(b"a", [A, B, MessageRemoved(1, 10, LEFT), again])
    assert store.load(b"a").keys == {20: B, 10: again}
    assert store.usage.keys == 0


def test_pa_08_the_key_of_an_older_message_does_not_come_back_over_a_younger_digest() -> None:
    store = MemoryStore()
    long_kept, young = (
        StoredMessage(1, 10, 604_800, 1e6, b"old"),
        StoredMessage(2, 10, 60, 9e4, b"young"),
    )
    digest = StoredKey(2, 60, 9e4, b"digest")
    store.write(b"a", [long_kept, KeyExpired(10), young, MessageRemoved(2, 10, digest)])
    assert store.load(b"a").keys == {10: digest}


@pytest.mark.parametrize("place", ["memory", "journal", "file"])
def test_pa_08_every_store_gives_keys_by_their_age(place: str, tmp_path: Path) -> None:
    """A key used again is as old as its latest use, wherever its message is kept."""
    first, second, third = (
        StoredMessage(young_id(60 - at), 10, 600, NOW + 600, b"%d" % at) for at in range(3)
    )
    other = StoredMessage(young_id(59.5), 20, 600, NOW + 600, b"other")
    last = StoredMessage(young_id(57), 30, 600, NOW + 600, b"last")
    left = StoredKey(last.id, 600, NOW + 600, sha256(b"last").digest())
    changes: list[Change] = [
        *(
            first,
            other,
            KeyExpired(10, was_left=False),
            second,
            MessageRemoved(second.id, 10, None, 1),
        ),
        *(third, last, MessageRemoved(last.id, 30, left, 4)),
    ]
    if place == "memory":
        memory = MemoryStore()
        memory.write(b"a", changes)
        kept = memory.load(b"a")
    else:
        with run(tmp_path / "data", SMALL if place == "file" else LAZY) as store:
            store.write(b"a", *changes)
            if place == "file":
                store.flush()
                assert store.file(b"a").exists()
            kept = store.load(b"a")
    assert list(kept.keys.items()) == [(20, other), (10, third), (30, left)]
    assert kept.rows == [first, other, third]

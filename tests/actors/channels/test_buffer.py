"""A channel's messages by id: expiry exact on every read, swept in slices (P2P-14)."""

from __future__ import annotations

from math import inf
from random import Random

from millpond.actors.channels.buffer import SWEEP_SLICE, Buffer
from millpond.actors.store.changes import StoredMessage


def row(message_id: int, expires_at: float = 100.0, data: bytes = b"data") -> StoredMessage:
    return StoredMessage(message_id, message_id, 60, expires_at, data)


def test_p2p_14_every_read_leaves_out_expired_messages_before_a_sweep() -> None:
    buffer = Buffer([row(1, 10.0), row(2, 20.0), row(3, 10.0), row(4, 20.0)])
    assert buffer.get(1, 9.999) is not None and buffer.get(1, 10.0) is None
    assert [each.id for each in buffer.after(0, 10.0)] == [2, 4]
    assert buffer.next_after(2, 10.0) == row(4, 20.0) and buffer.next_after(4, 10.0) is None
    assert list(buffer.between(1, 4, 10.0, newest_first=True)) == [4, 2]
    assert len(buffer) == 4 and buffer.expiry_at == 10.0


def test_between_is_inclusive_both_ways() -> None:
    buffer = Buffer(map(row, (2, 4, 6, 8)))
    assert list(buffer.between(4, 6, 0.0, newest_first=False)) == [4, 6]
    assert list(buffer.between(3, 9, 0.0, newest_first=True)) == [8, 6, 4]
    assert list(buffer.between(9, 3, 0.0, newest_first=False)) == []


def test_bytes_and_the_last_id_follow_the_messages() -> None:
    buffer = Buffer([row(1, data=b"one"), row(2, data=b"four")])
    assert (buffer.bytes, buffer.last_id) == (7, 2)
    assert buffer.remove(2) == row(2, data=b"four") and buffer.remove(2) is None
    assert buffer.bytes == 3
    buffer.remove(1)
    assert (buffer.bytes, buffer.last_id, buffer.expiry_at) == (0, 0, inf)


def test_a_sweep_goes_in_slices_and_finds_each_expired_message_once() -> None:
    count = 2 * SWEEP_SLICE + 10
    buffer = Buffer(row(each, 10.0 if each % 2 else 50.0) for each in range(1, count + 1))
    swept, sizes, now = [], [], 10.0
    while buffer.expiry_at <= now:
        expired = buffer.sweep(now)
        sizes.append(len(expired))
        swept += [each.id for each in expired if buffer.remove(each.id)]
    assert swept == list(range(1, count + 1, 2))
    assert max(sizes) <= SWEEP_SLICE
    assert buffer.expiry_at == 50.0


def test_removals_within_a_sweep_hide_nothing_from_it() -> None:
    rng, now = Random(3), 10.0
    buffer = Buffer(row(each, rng.choice((10.0, 50.0))) for each in range(1, 7000))
    while buffer.expiry_at <= now:
        for each in buffer.sweep(now):
            buffer.remove(each.id)
        for _ in range(500):
            buffer.remove(rng.randrange(1, 7000))
        if buffer.expiry_at <= now and len(buffer) < 9000:
            buffer.add(row(buffer.last_id + 7000, 30.0))
    assert all(each.expires_at > now for each in buffer.rows.values())
    assert buffer.expiry_at == min(each.expires_at for each in buffer.rows.values())


def test_the_order_is_compacted_while_messages_come_and_go() -> None:
    buffer = Buffer()
    for message_id in range(1, 5000):
        buffer.add(row(message_id))
        if message_id > 10:
            buffer.remove(message_id - 10)
            assert len(buffer._order) <= 2 * 10 + 66
    assert list(buffer.between(0, 2**63, 0.0, newest_first=False)) == list(range(4990, 5000))

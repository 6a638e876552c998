"""Idempotency keys: their windows and their limit (PA-08 to PA-11)."""

from __future__ import annotations

from hashlib import sha256
from math import inf

import pytest

from millpond.actors.channels.idempotency import IdempotencyKeys, is_same
from millpond.actors.store.changes import KeyExpired, StoredKey, StoredMessage, window_s


def row(key: int, *, message_id: int = 1, now: float = 0.0, ttl: int = 60) -> StoredMessage:
    return StoredMessage(message_id, key, ttl, now + ttl, b"data %d" % key)


def remember(keys: IdempotencyKeys, row: StoredMessage) -> None:
    keys.remember(row, row.until)


@pytest.mark.parametrize(
    ("ttl", "window"),
    [(1, 600), (600, 600), (601, 601), (86_400, 86_400), (604_800, 86_400)],
)
def test_pa_08_the_window_is_the_ttl_within_ten_minutes_and_a_day(ttl: int, window: int) -> None:
    assert window_s(ttl) == window
    assert row(1, now=1000.0, ttl=ttl).until == 1000.0 + window


def test_pa_08_a_key_outlives_its_message_as_a_digest() -> None:
    keys, message = IdempotencyKeys({}), row(1)
    remember(keys, message)
    assert is_same(keys.rows[1], b"data 1") and not is_same(keys.rows[1], b"data 2")
    left = keys.retain_digest(message)
    assert left == StoredKey(1, 60, 600.0, sha256(b"data 1").digest())
    assert keys.rows[1] is left
    assert is_same(left, b"data 1") and not is_same(left, b"data 2")


def test_a_key_used_again_after_its_window_belongs_to_the_younger_message() -> None:
    keys, old, young = IdempotencyKeys({}), row(1, ttl=604_800), row(1, message_id=2, now=90_000.0)
    remember(keys, old)
    remember(keys, young)
    assert keys.retain_digest(old) is None
    assert keys.rows[1] is young


def test_an_expired_key_says_whether_its_message_was_removed() -> None:
    keys, old = IdempotencyKeys({}), row(1)
    remember(keys, old)
    keys.retain_digest(old)
    assert keys.remember(row(1, message_id=2, now=90_000.0), inf) == KeyExpired(1, True)
    assert keys.forget_oldest() == [KeyExpired(1, False)]


def test_a_sweep_forgets_the_keys_whose_window_is_over() -> None:
    keys = IdempotencyKeys({})
    for key, ttl in ((1, 60), (2, 700), (3, 60)):
        remember(keys, row(key, ttl=ttl))
    assert keys.expiry_at == 600.0 and keys.sweep(599.0) == []
    assert keys.sweep(600.0) == [KeyExpired(1, False), KeyExpired(3, False)]
    assert keys.expiry_at == 700.0
    assert keys.sweep(700.0) == [KeyExpired(2, False)] and keys.expiry_at == inf


def test_the_oldest_keys_go_first_and_at_least_one() -> None:
    keys = IdempotencyKeys({})
    for key in range(32):
        remember(keys, row(key))
    assert [gone.key for gone in keys.forget_oldest()] == [0, 1, 2]
    assert list(keys.rows) == list(range(3, 32))
    single = IdempotencyKeys({9: row(9)})
    assert single.forget_oldest() == [KeyExpired(9, False)] and len(single) == 0

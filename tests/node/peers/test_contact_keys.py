"""Keys for one peer alone: replaced when they are used, and destroyed."""

from __future__ import annotations

import os

import msgspec
import pytest

from millpond.node.peers.contact_keys import KEPT_MAX, ContactKeys, replaces
from millpond.node.peers.sealed_message import ContactKey, kid_of

NOW = 1_763_683_200_000
DAY = 86_400_000
LIFE = 9 * DAY


def made(keys: ContactKeys, now_ms: int = NOW) -> bytes:
    """A new key; returns its kid."""
    return kid_of(keys.make(now_ms, LIFE, os.urandom).public)


def test_a_key_is_replaced_when_it_was_used_and_after_a_day() -> None:
    keys = ContactKeys()
    assert keys.wants_new(NOW) and keys.current(0) is None
    kid = made(keys)
    assert not keys.wants_new(NOW)
    assert keys.wants_new(NOW + DAY) and keys.wants_new(NOW - 1)
    assert keys.used(kid) and keys.wants_new(NOW)
    assert not keys.used(kid) and not keys.used(bytes(8))


def test_the_newest_few_are_kept() -> None:
    keys = ContactKeys()
    kids = [made(keys) for _ in range(KEPT_MAX + 3)]
    assert [kid_of(each.public) for each in keys.keys] == kids[-KEPT_MAX:]
    current = keys.current(3_600_000)
    assert current is not None and kid_of(current.public) == kids[-1]
    assert (current.made_at, current.good_until) == (NOW, NOW + LIFE - 3_600_000)


def test_a_key_is_destroyed_on_time() -> None:
    keys = ContactKeys()
    made(keys)
    made(keys, NOW + DAY)
    assert not keys.sweep(NOW + LIFE)
    assert keys.sweep(NOW + LIFE + 1) and len(keys.keys) == 1
    assert keys.sweep(NOW + 99 * DAY) and not keys.keys


def test_numbers_go_up_also_after_a_loss() -> None:
    keys = ContactKeys()
    made(keys)
    made(keys)
    assert [each.number for each in keys.keys] == [NOW, NOW + 1]
    lost = ContactKeys()
    made(lost, NOW + 10)
    assert lost.keys[0].number > keys.keys[-1].number


def key(number: int, made_at: int = NOW, good_until: int = NOW + LIFE) -> ContactKey:
    return ContactKey(bytes(32), number, made_at, good_until)


@pytest.mark.parametrize(
    ("new", "known", "is_newer"),
    [
        (key(2), None, True),
        (key(2), key(1), True),
        (key(1), key(1), False),
        (key(1), key(2), False),
        (key(9, made_at=NOW + 3_600_001), key(1), False),
        (key(9, made_at=NOW + 3_600_000), key(1), True),
        (key(9, good_until=NOW), key(1), False),
        (key(1), key(9, good_until=NOW), True),
    ],
)
def test_of_two_keys_of_a_peer_the_newer_counts(
    new: ContactKey, known: ContactKey | None, is_newer: bool
) -> None:
    """None from the future does, and an expired one blocks nothing."""
    assert replaces(new, known, NOW) is is_newer


def test_the_private_half_is_not_shown() -> None:
    keys = ContactKeys()
    made(keys)
    assert keys.keys[0].private.hex() not in repr(keys)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(keys), type=ContactKeys) == keys

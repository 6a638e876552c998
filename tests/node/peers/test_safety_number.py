"""Safety numbers: what two people compare, on both sides and in any spelling."""

from __future__ import annotations

from hashlib import sha512

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.peers.identity import Identity
from millpond.node.peers.safety_number import (
    BadSafetyNumber,
    parse_safety_number,
    safety_number,
)

KEYS = st.binary(min_size=32, max_size=32)
ALICE, BOB, CAROL = (Identity.from_seed(bytes([each]) * 32).public for each in (1, 2, 3))
VECTORS = [
    (ALICE, BOB, "41341 38373 92023 49739 39296 83261 03038 93003 86384 88557 38163 37218"),
]


@pytest.mark.parametrize(("one", "other", "number"), VECTORS)
def test_what_two_keys_look_like(one: bytes, other: bytes, number: str) -> None:
    """Other programs show the same: it never changes."""
    assert safety_number(one, other) == safety_number(other, one) == number


@settings(max_examples=10, deadline=None)
@given(KEYS, KEYS)
def test_each_half_is_the_stretched_digest_of_one_key(one: bytes, other: bytes) -> None:
    expected = ""
    for key in sorted([one, other]):
        state = b"millpond safety number v1\0" + key
        for _ in range(5200):
            state = sha512(state + key).digest()
        for group in range(6):
            expected += f" {int.from_bytes(state[5 * group : 5 * group + 5], 'big') % 100000:05d}"
    assert safety_number(one, other) == expected[1:]


def test_somebody_in_between_changes_half_of_it() -> None:
    """Alice sees the number with the key in the middle, and Bob another one."""
    assert (
        len({safety_number(ALICE, BOB), safety_number(ALICE, CAROL), safety_number(CAROL, BOB)})
        == 3
    )


@pytest.mark.parametrize("change", [str.split, list, lambda text: text.replace(" ", "-").split()])
def test_a_number_may_be_typed_in_any_groups(change: object) -> None:
    number = safety_number(ALICE, BOB)
    assert callable(change)
    assert parse_safety_number("  ".join(change(number)) + "\n") == number


@pytest.mark.parametrize(
    "text", ["", "1" * 59, "1" * 61, "x" * 60, "\u0661" * 60, "1" * 59 + "\u00b2"]
)
def test_anything_else_is_no_number(text: str) -> None:
    with pytest.raises(BadSafetyNumber):
        parse_safety_number(text)

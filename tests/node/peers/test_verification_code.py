"""Verification codes in QR codes: whose screen was read, and its safety number
(docs/reference/peer-formats.md)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.identity import Identity
from millpond.node.peers.safety_number import BadSafetyNumber, safety_number
from millpond.node.peers.verification_code import NotSame, compare, verification_code

ALICE, BOB, EVE = (Identity(bytes([each]) * 32).public for each in (1, 2, 3))


def test_the_code_of_the_peer_and_its_number_are_accepted() -> None:
    code = verification_code(BOB, ALICE)
    assert code == code.upper() and len(code) == 131
    compare(ALICE, BOB, code)
    compare(ALICE, BOB, f" {code.lower()}\n")
    compare(ALICE, BOB, safety_number(ALICE, BOB))


@pytest.mark.parametrize(
    ("shown", "says"),
    [
        (verification_code(ALICE, BOB), "the code that this node shows"),
        (verification_code(EVE, ALICE), "THE NUMBERS DIFFER"),
        (verification_code(BOB, EVE), "THE NUMBERS DIFFER"),
        (verification_code(EVE, BOB), "THE NUMBERS DIFFER"),
        (verification_code(BOB, ALICE)[:-1] + "x", "no verification code"),
        (verification_code(BOB, ALICE).replace(":1:", ":2:"), "later version"),
        ("MILLPOND-VERIFY:1:" + "A" * 51 + "B:" + "0" * 60, "verification code"),
        ("MILLPOND-VERIFY:", "no verification code"),
        (safety_number(ALICE, EVE), "THE NUMBERS DIFFER"),
        ("12345", "60 digits"),
    ],
)
def test_anything_else_verifies_nobody(shown: str, says: str) -> None:
    with pytest.raises((NotSame, BadSafetyNumber), match=says):
        compare(ALICE, BOB, shown)


@given(st.text(max_size=200))
def test_no_text_is_another_error(text: str) -> None:
    for shown in (text, f"MILLPOND-VERIFY:{text}"):
        with pytest.raises((NotSame, BadSafetyNumber)):
            compare(ALICE, BOB, shown)

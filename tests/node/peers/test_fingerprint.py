"""Fingerprints: what two people read to each other."""

from __future__ import annotations

from hashlib import sha256
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.fingerprint import FINGERPRINT_WORDS, fingerprint, fingerprint_words
from millpond.node.peers.identity import Identity

KEYS = st.binary(min_size=32, max_size=32)
PUBLIC = Identity.from_seed(bytes(range(32))).public


def distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for line, letter in enumerate(one, 1):
        above = row
        row = [line]
        for column, wanted in enumerate(other, 1):
            swap = above[column - 1] + (letter != wanted)
            row.append(min(above[column] + 1, row[-1] + 1, swap))
    return row[-1]


def test_what_one_key_looks_like() -> None:
    """People have written these down: they never change."""
    assert fingerprint(PUBLIC) == "5647 5aa7 5463 474c 0285 df5d bf2b cab7"
    assert (
        fingerprint_words(PUBLIC)
        == "fiddle drummer forest nickel feather ghost drummer eggplant agent kernel"
    )


@given(KEYS)
def test_both_show_the_beginning_of_the_digest(public: bytes) -> None:
    digest = sha256(public).digest()
    assert bytes.fromhex(fingerprint(public).replace(" ", "")) == digest[:16]
    assert [len(group) for group in fingerprint(public).split(" ")] == [4] * 8
    assert (
        bytes(FINGERPRINT_WORDS.index(word) for word in fingerprint_words(public).split(" "))
        == digest[:10]
    )


def test_the_words_can_be_told_apart() -> None:
    assert len(FINGERPRINT_WORDS) == len(set(FINGERPRINT_WORDS)) == 256 and list(
        FINGERPRINT_WORDS
    ) == sorted(FINGERPRINT_WORDS)
    assert all(
        4 <= len(word) <= 8 and word.isascii() and word.islower() for word in FINGERPRINT_WORDS
    )
    assert len({word[:3] for word in FINGERPRINT_WORDS}) == 256
    assert min(distance(one, other) for one, other in combinations(FINGERPRINT_WORDS, 2)) >= 3

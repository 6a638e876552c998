"""Delivery tokens: the file, how they follow each other, and proofs of having one."""

from __future__ import annotations

import hmac
import os
from hashlib import sha256
from pathlib import Path

import pytest

from millpond.node.peers.card import ContactCard, encode_card
from millpond.node.peers.delivery_proof import delivery_key, delivery_proof, is_proved
from millpond.node.peers.delivery_token import (
    FILE_NAME,
    OLD_TOKENS_S,
    TOKENS_MAX,
    DeliveryTokens,
    token_in_card,
)
from millpond.node.peers.errors import DeliveryTokenError
from millpond.node.peers.identity import Identity

OWNER, SENDER, RELAY = (bytes([each]) * 32 for each in (1, 2, 3))
TOKEN, NONCE = bytes(range(16)), bytes(range(32))
NOON = 1_763_683_200.0


class Clock:
    def __init__(self) -> None:
        self.s = NOON

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["file", "memory"])
def tokens(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> DeliveryTokens:
    path = tmp_path / FILE_NAME if request.param == "file" else None
    return DeliveryTokens(path, clock, os.urandom)


def test_the_bytes_of_key_and_proof() -> None:
    label = b"millpond delivery key v1\0"
    key = hmac.new(TOKEN, label + OWNER + RELAY, sha256).digest()
    assert delivery_key(TOKEN, OWNER, RELAY) == key
    label = b"millpond delivery proof v1\0"
    proof = hmac.new(key, label + SENDER + NONCE, sha256).digest()
    assert delivery_proof(key, SENDER, NONCE) == proof


def test_a_proof_is_for_one_sender_one_connection_one_relay_and_one_owner() -> None:
    key = delivery_key(TOKEN, OWNER, RELAY)
    proof = delivery_proof(key, SENDER, NONCE)
    assert is_proved([bytes(32), key], SENDER, NONCE, proof)
    for keys, sender, nonce in (
        ([], SENDER, NONCE),
        ([key], OWNER, NONCE),
        ([key], SENDER, NONCE[::-1]),
        ([delivery_key(TOKEN, OWNER, SENDER)], SENDER, NONCE),
        ([delivery_key(TOKEN, SENDER, RELAY)], SENDER, NONCE),
        ([delivery_key(TOKEN[::-1], OWNER, RELAY)], SENDER, NONCE),
    ):
        assert not is_proved(keys, sender, nonce, proof)


def test_a_token_is_made_once_and_shown_by_nothing(tokens: DeliveryTokens) -> None:
    token = tokens.current()
    assert len(token) == 16 and tokens.current() == token
    assert [each.token for each in tokens.valid()] == [token]
    assert token.hex() not in repr(tokens.valid())


def test_an_old_token_is_good_for_a_time(tokens: DeliveryTokens, clock: Clock) -> None:
    first = tokens.current()
    clock.s += 10
    second = tokens.rotate()
    assert second != first and tokens.current() == second
    assert [each.token for each in tokens.valid()] == [second, first]
    clock.s += 10
    third = tokens.rotate()  # this does not prolong the life of the first one
    clock.s = NOON + 10 + OLD_TOKENS_S - 1
    assert [each.token for each in tokens.valid()] == [third, second, first]
    clock.s += 2
    assert [each.token for each in tokens.valid()] == [third, second]
    clock.s += 10
    assert [each.token for each in tokens.valid()] == [third]


def test_old_tokens_can_be_ended_at_once(tokens: DeliveryTokens) -> None:
    tokens.current()
    tokens.rotate()
    last = tokens.rotate(end_old=True)
    assert [each.token for each in tokens.valid()] == [last]


def test_there_are_at_most_four_tokens(tokens: DeliveryTokens) -> None:
    made = [tokens.current(), *(tokens.rotate() for _ in range(5))]
    assert [each.token for each in tokens.valid()] == made[: -TOKENS_MAX - 1 : -1]


def test_the_file_is_for_its_owner_and_read_by_other_processes(
    tmp_path: Path, clock: Clock
) -> None:
    path = tmp_path / FILE_NAME
    one, other = (DeliveryTokens(path, clock, os.urandom) for _ in range(2))
    assert one.current() == other.current()
    other.rotate()
    assert one.valid() == other.valid() and path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("tokens 1", "tokens 2"),
        lambda text: text.replace("current", "until 5"),
        lambda text: text + text.splitlines()[1],
        lambda text: text[:-20],
        lambda text: "",
        lambda text: "é" + text,
    ],
)
def test_a_damaged_file_is_not_replaced(tmp_path: Path, clock: Clock, damage: object) -> None:
    """A new token would end all cards at once, without a word."""
    path = tmp_path / FILE_NAME
    tokens = DeliveryTokens(path, clock, os.urandom)
    tokens.current()
    damaged = damage(path.read_text())  # type: ignore[operator]
    path.write_text(damaged)
    for work in (tokens.current, tokens.valid, tokens.rotate):
        with pytest.raises(DeliveryTokenError):
            work()
    assert path.read_text() == damaged


def test_a_file_that_others_can_read_is_refused(tmp_path: Path, clock: Clock) -> None:
    tokens = DeliveryTokens(tmp_path / FILE_NAME, clock, os.urandom)
    tokens.current()
    (tmp_path / FILE_NAME).chmod(0o644)
    with pytest.raises(DeliveryTokenError, match="chmod"):
        tokens.valid()


def test_the_token_in_a_card() -> None:
    owner = Identity.from_seed(OWNER)
    card = ContactCard(owner.public, (), (), None, NOON, (), TOKEN)
    assert token_in_card(encode_card(card, owner)) == TOKEN
    assert token_in_card(encode_card(ContactCard(owner.public, (), (), None, NOON), owner)) == b""
    assert token_in_card("") == token_in_card("millpond:damaged") == b""

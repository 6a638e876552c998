"""Invites: one line of text, byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.card import BadCard, ContactCard, decode_card, encode_card
from millpond.node.peers.identity import Identity
from millpond.node.peers.invite import (
    Introduction,
    decode_invite,
    encode_invite,
    introduction_digest,
    introduction_uuid,
)
from tests.node.peers.test_card import ALICE, FULL, prekey

CARD = (
    "millpond:mQLEIIqI4910CfGV_VLbLTy6XXLKZwm_HZQSG_N0iAG0D29ckbZ0Y3A6Ly8yMDMuMC4xMTMuNzo3NDAwkMDP"
    "AAABmqO17ACQwMQQAAECAwQFBgcICQoLDA0OD7sijY3PWyV-Jp8yQo_b4QJ39W4RsgPNZCeXVFuQV855wqUg_CleIxlt"
    "AmMtCtJq7MY9CcFmvUGrovnD9V_pwA0"
)
SECRET = bytes(range(16))
LINE = CARD + ".AAECAwQFBgcICQoLDA0OD2ko5gA"
OWNER = Identity.from_seed(b"\x01" * 32)


def test_the_bytes_are_those_of_the_reference() -> None:
    introduction = Introduction(SECRET, 1_764_288_000)
    assert encode_invite(CARD, introduction) == LINE
    invite = decode_invite(LINE)
    assert (invite.card.public, invite.line, invite.introduction) == (
        OWNER.public,
        CARD,
        introduction,
    )
    digest = "9dc6f160bc85c14ded6da1c07d760c91bb95b4854e998541cd95be6b735a76c0"
    assert introduction_digest(SECRET).hex() == digest
    assert introduction_uuid(SECRET).hex() == "25143e251f371a5be9f4fb26cb5f963f"


def test_white_space_is_passed_over() -> None:
    assert decode_invite(f"  {LINE[:40]}\r\n {LINE[40:]}\n") == decode_invite(LINE)


def test_a_short_card_has_the_prekey_that_counts() -> None:
    owner = prekey(ALICE)
    card = ContactCard(ALICE.public, FULL.addresses, (), owner, FULL.made_at)
    short = encode_card(card, ALICE, is_short=True)
    assert decode_card(short) == decode_card(encode_card(card, ALICE))
    assert len(short) < len(encode_card(card, ALICE)) - 200


def test_an_invite_is_no_card_and_says_so() -> None:
    with pytest.raises(BadCard, match="chat accept"):
        decode_card(LINE)
    with pytest.raises(BadCard, match="no invite"):
        decode_invite(CARD)


@given(st.integers(0, len(LINE) - 1), st.characters(codec="ascii", exclude_characters=" \t\r\n"))
def test_a_changed_one_has_another_secret_or_is_refused(place: int, char: str) -> None:
    changed = LINE[:place] + char + LINE[place + 1 :]
    try:
        invite = decode_invite(changed)
    except BadCard:
        return
    assert invite.line == CARD and (place > len(CARD) or changed == LINE)


@given(st.text())
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(BadCard):
        decode_invite(text)

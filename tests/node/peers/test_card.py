"""Cards: one line of text that says how somebody can be written to, and is signed."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.card import BadCard, ContactCard, decode_card, encode_card
from millpond.node.peers.identity import Identity
from millpond.node.peers.peer import CARD_CHARS_MAX
from millpond.node.peers.prekeys import Prekeys, SignedPrekey

ALICE = Identity.from_seed(bytes(range(32)))
BOB = Identity.from_seed(bytes(range(1, 33)))
NOON = 1_763_683_200.0
ADDRESSES = ("tcp://203.0.113.7:7400", "wss://alice.example")
RELAYS = (f"{BOB.id}@tcp://relay.example:7400", "tls://other.example")


def prekey(owner: Identity) -> SignedPrekey:
    return Prekeys(None, owner, lambda: NOON, lambda size: b"\x07" * size).current()


FULL = ContactCard(ALICE.public, ADDRESSES, RELAYS, prekey(ALICE), NOON + 0.25)
BARE = ContactCard(ALICE.public, (), (), None, 0.0)
LINE = encode_card(FULL, ALICE)


def signed(body: bytes, owner: Identity = ALICE) -> str:
    data = body + owner.sign(b"p2pbuf card v1\0" + body)
    return "millpond:" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def body_of(card: ContactCard, prekey_bytes: bytes | None = None, version: int = 1) -> bytes:
    made = int(card.made_at * 1000)
    fields = [version, card.public, card.addresses, card.relays, prekey_bytes, made]
    return msgspec.msgpack.encode(fields)


@pytest.mark.parametrize("card", [FULL, BARE])
def test_a_card_is_one_line_and_back(card: ContactCard) -> None:
    text = encode_card(card, ALICE)
    assert text.isascii() and text.isprintable() and " " not in text
    assert decode_card(text) == card


def test_the_bytes_of_a_card() -> None:
    """The line of a card without anything, made here by hand."""
    body = bytes.fromhex("96 01 c420") + ALICE.public + bytes.fromhex("90 90 c0 00")
    assert encode_card(BARE, ALICE) == signed(body)
    assert decode_card(signed(body)) == BARE


def test_what_mail_programs_do_to_long_lines_does_not_matter() -> None:
    folded = "\r\n ".join(LINE[start : start + 72] for start in range(0, len(LINE), 72))
    assert decode_card(f"\n  {folded}\n") == FULL


def test_the_largest_card_fits() -> None:
    urls = tuple(f"tcp://{number}{'h' * 280}:7400" for number in range(8))
    large = msgspec.structs.replace(FULL, addresses=(), relays=())
    with pytest.raises(ValueError, match="not a host name"):
        encode_card(msgspec.structs.replace(large, addresses=urls), ALICE)
    label = ".".join(["h" * 60] * 4)
    urls = tuple(f"wss://{number}{label}:65535" for number in range(8))
    relays = tuple(f"{BOB.id}@{url}" for url in urls)
    text = encode_card(msgspec.structs.replace(large, addresses=urls, relays=relays), ALICE)
    assert len(text) <= CARD_CHARS_MAX and decode_card(text).relays == relays


@given(st.integers(0, len(LINE) - 1), st.sampled_from("ABCDwxyz0189-_=+/ :\u00e9"))
def test_a_changed_letter_is_no_card(place: int, letter: str) -> None:
    other = LINE[:place] + letter + LINE[place + 1 :]
    if other == LINE:
        return
    with pytest.raises(BadCard):
        decode_card(other)


@given(st.integers(0, len(LINE) - 1))
def test_a_cut_card_is_none(length: int) -> None:
    with pytest.raises(BadCard):
        decode_card(LINE[:length])


@given(st.text(max_size=80) | st.binary(max_size=200).map(signed))
def test_anything_else_is_no_card(text: str) -> None:
    with pytest.raises(BadCard):
        decode_card(text)


def test_nobody_makes_a_card_for_somebody_else() -> None:
    with pytest.raises(ValueError, match="owner"):
        encode_card(FULL, BOB)
    with pytest.raises(BadCard, match="not signed"):
        decode_card(signed(body_of(BARE), BOB))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (body_of(BARE, version=2), "later version"),
        (body_of(msgspec.structs.replace(BARE, addresses=("nope",))), "address"),
        (body_of(msgspec.structs.replace(BARE, relays=("x@tcp://h:1",))), "address"),
        (body_of(BARE) + b"\0", "damaged"),
        (body_of(BARE, b"no prekey"), "prekey is damaged"),
        (body_of(BARE, b"\xc0" * 2000), "prekey is damaged"),
    ],
)
def test_even_its_owner_cannot_make_such_a_card(body: bytes, reason: str) -> None:
    with pytest.raises(BadCard, match=reason):
        decode_card(signed(body))


def test_the_prekey_in_it_is_its_owners() -> None:
    with pytest.raises(BadCard, match="not signed by the card's owner"):
        decode_card(encode_card(msgspec.structs.replace(FULL, prekey=prekey(BOB)), ALICE))
    longer = msgspec.structs.replace(prekey(ALICE), good_until=NOON * 2)
    with pytest.raises(BadCard, match="not signed by the card's owner"):
        decode_card(encode_card(msgspec.structs.replace(FULL, prekey=longer), ALICE))


def test_a_card_is_not_read_to_its_end_if_it_is_too_long() -> None:
    with pytest.raises(BadCard, match="at most"):
        decode_card("millpond:" + "A" * CARD_CHARS_MAX)

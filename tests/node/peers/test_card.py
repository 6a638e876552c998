"""Cards: one line of text that says how somebody can be written to, and is signed."""

from __future__ import annotations

import base64

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.node.peers.card import (
    BadCard,
    ContactCard,
    decode_card,
    encode_card,
    local_addresses,
)
from millpond.node.peers.identity import Identity, verify
from millpond.node.peers.peer import CARD_CHARS_MAX
from millpond.node.peers.prekeys import (
    Prekeys,
    SignedPrekey,
    decode_prekey,
    encode_prekey,
    sign_prekey,
)
from millpond.node.peers.succession import sign_succession

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
TOKEN = bytes(range(16))


def signed(body: bytes, owner: Identity = ALICE, label: bytes = b"p2pbuf card v1\0") -> str:
    data = body + owner.sign(label + body)
    return "millpond:" + base64.urlsafe_b64encode(data).decode().rstrip("=")


def body_of(card: ContactCard, prekey_bytes: bytes | None = None, version: int = 1) -> bytes:
    made = int(card.made_at * 1000)
    fields = [version, card.public, card.addresses, card.relays, prekey_bytes, made]
    return msgspec.msgpack.encode(fields)


SUCCESSION = sign_succession(BOB, ALICE, NOON)
LATER = msgspec.structs.replace(FULL, successions=(SUCCESSION,))


@pytest.mark.parametrize("card", [FULL, LATER])
def test_a_card_has_the_prekey_in_both_forms(card: ContactCard) -> None:
    """Nodes of version 1 read the first seven fields, and a prekey with these five alone."""
    line = encode_card(card, ALICE).removeprefix("millpond:")
    data = base64.urlsafe_b64decode(line + "=" * (-len(line) % 4))
    version, _, _, _, first, _, successions, second = msgspec.msgpack.decode(data[:-64])
    assert version == 2 and tuple(successions) == card.successions
    old = msgspec.msgpack.decode(first)
    assert old.keys() == {"key", "signature", "made_at", "good_until", "proof"}
    dates = old["made_at"].to_bytes(8, "big") + old["good_until"].to_bytes(8, "big")
    assert verify(ALICE.public, old["signature"], b"p2pbuf prekey v1\0" + old["key"])
    assert verify(ALICE.public, old["proof"], b"p2pbuf prekey card v1\0" + old["key"] + dates)
    assert card.prekey is not None and old["key"] == card.prekey.public
    assert decode_prekey(second) == card.prekey == decode_card("millpond:" + line).prekey


def test_the_later_form_of_a_prekey_is_checked_too() -> None:
    """And a card with the old form alone is that of a node of version 1."""
    assert FULL.prekey is not None
    key = FULL.prekey
    old = sign_prekey(ALICE, key.public, key.made_at, key.good_until, version=1)
    fields = [2, ALICE.public, (), (), encode_prekey(old), 0, ()]
    label = b"millpond card v2\0"
    read = decode_card(signed(msgspec.msgpack.encode(fields), label=label))
    assert read.prekey == old
    others = encode_prekey(prekey(BOB))
    for second in (others, b"damaged", others[:-1]):
        with pytest.raises(BadCard):
            decode_card(signed(msgspec.msgpack.encode([*fields, second]), label=label))


@pytest.mark.parametrize("card", [FULL, BARE, LATER])
def test_a_card_is_one_line_and_back(card: ContactCard) -> None:
    text = encode_card(card, ALICE)
    assert text.isascii() and text.isprintable() and " " not in text
    assert decode_card(text) == card


def test_the_bytes_of_a_card() -> None:
    """The line of a card without anything, made here by hand."""
    body = bytes.fromhex("96 01 c420") + ALICE.public + bytes.fromhex("90 90 c0 00")
    assert encode_card(BARE, ALICE) == signed(body)
    assert decode_card(signed(body)) == BARE


def test_the_bytes_of_a_card_with_earlier_keys() -> None:
    """Version 2, with and without the place of the second prekey: what a later version appends is
    passed over."""
    card = msgspec.structs.replace(BARE, successions=(SUCCESSION,))
    rest = (
        bytes.fromhex("02 c420") + ALICE.public + bytes.fromhex("90 90 c0 00 91 c4c8") + SUCCESSION
    )
    label = b"millpond card v2\0"
    assert encode_card(card, ALICE) == signed(b"\x98" + rest + b"\xc0", label=label)
    assert decode_card(signed(b"\x97" + rest, label=label)) == card
    later = signed(b"\x9a" + rest + b"\xc0\xc0\xa5later", label=label)
    assert decode_card(later) == card and card.predecessors == [BOB.public]


def test_a_card_with_a_delivery_token_is_read_by_nodes_that_know_none() -> None:
    """It is the ninth field: nodes of version 2 pass over it, those of version 1 over three."""
    with_token = msgspec.structs.replace(FULL, delivery_token=TOKEN)
    line = encode_card(with_token, ALICE)
    assert decode_card(line) == with_token and TOKEN.hex() not in repr(with_token)
    data = base64.urlsafe_b64decode(line.removeprefix("millpond:") + "==")
    *known, _, _, token = msgspec.msgpack.decode(data[:-64])
    assert (len(known), token) == (6, TOKEN)
    bare = encode_card(msgspec.structs.replace(BARE, delivery_token=TOKEN), ALICE)
    assert decode_card(bare).delivery_token == TOKEN


@pytest.mark.parametrize("token", [b"", TOKEN[:-1], TOKEN + b"x", "a" * 16])
def test_a_delivery_token_has_sixteen_bytes(token: object) -> None:
    fields = [2, ALICE.public, (), (), None, 0, (), None, token]
    with pytest.raises(BadCard, match="damaged"):
        decode_card(signed(msgspec.msgpack.encode(fields), label=b"millpond card v2\0"))


@pytest.mark.parametrize(
    "statements", [(SUCCESSION[:-1],), (sign_succession(ALICE, BOB, NOON),), (SUCCESSION,) * 2]
)
def test_statements_of_other_keys_are_refused(statements: tuple[bytes, ...]) -> None:
    card = msgspec.structs.replace(BARE, successions=statements)
    with pytest.raises(BadCard):
        decode_card(encode_card(card, ALICE))


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


@pytest.mark.parametrize(
    "host",
    "127.0.0.1 127.1 2130706433 0x7f.1 0 0.0.0.0 169.254.1.2 224.0.0.1 [::1] [::] [fe80::1]"
    " [ff02::1] [::ffff:127.0.0.1] localhost LOCALHOST. a.localhost".split(),
)
def test_addresses_of_the_readers_machine_and_link_are_found(host: str) -> None:
    url, relay = f"tcp://{host}:22", f"{BOB.id}@tls://{host}:7400"
    card = ContactCard(ALICE.public, (ADDRESSES[0], url), (RELAYS[0], relay), None, NOON)
    assert local_addresses(decode_card(encode_card(card, ALICE))) == (url, relay)


@pytest.mark.parametrize("host", ["10.0.0.1", "192.168.1.1", "[fd00::1]", "localhost.example", "a"])
def test_other_addresses_lead_to_other_machines(host: str) -> None:
    assert local_addresses(ContactCard(ALICE.public, (f"tcp://{host}",), (), None, NOON)) == ()


def test_a_card_is_not_read_to_its_end_if_it_is_too_long() -> None:
    with pytest.raises(BadCard, match="at most"):
        decode_card("millpond:" + "A" * CARD_CHARS_MAX)

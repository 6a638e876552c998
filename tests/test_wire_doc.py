"""docs/reference/wire-protocol.md says what the codec does: worked bytes, packet types, tags, NACK
codes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millpond.node.peers.identity import Identity
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import (
    BY_CLIENT,
    BY_SERVER,
    Tag,
    decode_auth,
    decode_challenge,
    decode_hello,
    decode_ready,
    encode_auth,
    encode_challenge,
    encode_hello,
    encode_ready,
    transcript,
    without_signature,
)
from millpond.transports.p2p.nacks import CODES, HelloCode

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "reference" / "wire-protocol.md").read_text()
WORKED = re.compile(r"^    (\S.*?)  +([0-9a-f]{8}(?: [0-9a-f]+)+)$", re.MULTILINE)


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def encoded(packet: bytes) -> bytes:
    """The packet read and written again."""
    match packet[0]:
        case p.HELLO:
            return encode_hello(decode_hello(packet))
        case p.CHALLENGE:
            return encode_challenge(decode_challenge(packet))
        case p.AUTH:
            return encode_auth(decode_auth(packet))
        case p.READY:
            return encode_ready(decode_ready(packet))
        case p.MSGX:
            message = p.decode(packet)
            assert isinstance(message, p.Msg)
            attempt = int.from_bytes(packet[9:11], "big")
            assert message.attempt == attempt
            return p.encode_msgx(message)
        case _:
            return p.encode(p.decode(packet))


@pytest.mark.parametrize(
    ("name", "text"), [pytest.param(*found, id=found[0]) for found in WORKED.findall(PAGE)]
)
def test_worked_bytes_are_read_and_written_so(name: str, text: str) -> None:
    wire = bytes.fromhex(text)
    framing = LengthPrefixed(2**20)
    (packet,) = framing.feed(wire)
    assert framing.error is None
    assert framing.frame([encoded(packet)]) == wire


def test_every_kind_of_packet_has_worked_bytes() -> None:
    shown = {bytes.fromhex(text)[4] for _, text in WORKED.findall(section("Worked bytes"))}
    greeting = {p.HELLO, p.CHALLENGE, p.AUTH, p.READY}
    assert shown >= {*range(10), *greeting, *p.EXTENSIONS, p.NACK} - {p.ADMIN_REPLY}


def test_ps_01_the_worked_proofs_are_those_of_the_keys_that_the_page_names() -> None:
    packets = {name: bytes.fromhex(text)[4:] for name, text in WORKED.findall(PAGE)}
    hello, challenge = packets["HELLO chat/1, with an identity"], packets["CHALLENGE to that"]
    signed = transcript(hello, without_signature(challenge))
    node, client = Identity.from_seed(b"\x01" * 32), Identity.from_seed(b"\x02" * 32)
    assert decode_hello(hello).public_key == client.public
    told = decode_challenge(challenge)
    assert (told.public_key, told.signature) == (node.public, node.sign(BY_SERVER + signed))
    assert decode_auth(packets["AUTH to that"]).signature == client.sign(BY_CLIENT + signed)


def test_every_type_is_in_the_packet_tables() -> None:
    shown = {int(number, 16) for number in re.findall(r"^\| (\w\w) \|", section("Packets"), re.M)}
    assert shown == {*range(10), p.HELLO, p.CHALLENGE, p.AUTH, p.READY, *p.EXTENSIONS, p.NACK}


def test_every_tag_is_in_the_table() -> None:
    shown = {int(number, 16) for number in re.findall(r"^\| (\w\w) \|", section("Handshake"), re.M)}
    assert shown == set(Tag)


def test_every_code_is_in_the_registry() -> None:
    rows = re.findall(r"^\| (\w\w) \| ([A-Z_, ]+) \|", section("NACK"), re.M)
    shown = {name: int(number, 16) for number, names in rows for name in names.split(", ")}
    assert shown == {code.name: byte for code, byte in CODES.items()}
    refusals = " ".join(section("NACK").split("For a HELLO")[1].partition("\n\n")[0].split())
    for code in HelloCode:
        assert f"{code:02x} {code.name.lower().replace('_', ' ')}" in refusals

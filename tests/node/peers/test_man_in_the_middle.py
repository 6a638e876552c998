"""Somebody between a client and a node who alters what they say: neither goes on (PS-01, 3b).

The node's half on a recorded wire, the client's half beside it, and every alteration in between.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.actors.messages import Role
from millpond.node.client.errors import PeerMismatch
from millpond.node.peers.authentication import Credentials, MutualAuth
from millpond.transports.errors import MalformedHandshake
from millpond.transports.p2p.challenge import ChallengeRate
from millpond.transports.p2p.handshake import Hello
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig
from tests.transports.p2p.identity_packets import (
    ALICE,
    CERTIFICATE_HASH,
    MALLORY,
    NODE,
    NONCE,
    SIGNATURE,
    auth,
    challenge,
    tags_of,
)

pytestmark = pytest.mark.wire

Alter = Callable[[bytes], bytes]
HASH = b"h" * 32
WANTED = Hello(channel=b"chat/1", token=b"secret", role=Role.BOTH, keep_alive_ms=20_000)
HELLO_TAGS = [p.CHANNEL, p.PUBLIC_KEY, p.NONCE, p.ROLE, p.TOKEN, p.KEEP_ALIVE, CERTIFICATE_HASH]
CHALLENGE_TAGS = [p.PUBLIC_KEY, p.NONCE, SIGNATURE, CERTIFICATE_HASH]


def as_it_is(packet: bytes) -> bytes:
    return packet


class Middle:
    """Carries the handshake of a client that expects NODE, under TLS, and alters it on the way."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.node.services.signer = NODE
        self.rig.node.services.certificate_hash = HASH
        self.rig.node.registry._challenges = ChallengeRate(10**6, 1)

    def carry(self, on_hello: Alter = as_it_is, on_challenge: Alter = as_it_is) -> bool:
        """Whether both ends think that they know each other."""
        client = MutualAuth(Credentials(ALICE, NODE.public, None, lambda: NONCE), WANTED, HASH)
        line = self.rig.connect()
        line.wire.secure = True
        try:
            return self._carry(client, line, on_hello, on_challenge)
        finally:
            line.connection.close()
            line.end()

    def _carry(
        self, client: MutualAuth, line: RecordedConnection, on_hello: Alter, on_challenge: Alter
    ) -> bool:
        for answer in line.ask(on_hello(client.packet)):
            if answer[0] != 0x81:
                continue
            try:
                proof = client.answer(on_challenge(answer))
            except (MalformedHandshake, PeerMismatch):
                continue
            line.say(proof)
        is_in = any(each[0] == 0x83 for each in line.take_packets())
        return is_in and client.peer == NODE.public

    @property
    def identified(self) -> int:
        return self.rig.node.services.counters.identified


def flipped(place: int, bit: int) -> Alter:
    def alter(packet: bytes) -> bytes:
        raw = bytearray(packet)
        raw[place] ^= 1 << bit
        return bytes(raw)

    return alter


def test_what_nobody_alters_succeeds() -> None:
    middle = Middle()
    assert middle.carry() and middle.identified == 1


def test_no_bit_of_a_hello_can_be_flipped() -> None:
    middle = Middle()
    size = len(MutualAuth(Credentials(ALICE), WANTED, HASH).packet)
    for place in range(size):
        assert not any(middle.carry(on_hello=flipped(place, bit)) for bit in range(8)), place
    assert middle.identified == 0


def test_no_bit_of_a_challenge_can_be_flipped() -> None:
    middle = Middle()
    size = len(challenge(b"", tags={CERTIFICATE_HASH: HASH}))
    for place in range(size):
        assert not any(middle.carry(on_challenge=flipped(place, bit)) for bit in range(8)), place
    assert middle.identified == 0


def without(tag: int, start: int) -> Alter:
    def alter(packet: bytes) -> bytes:
        kept = [p.tlv(*each) for each in tags_of(packet, start) if each[0] != tag]
        return packet[:start] + b"".join(kept)

    return alter


def with_another(tag: int, start: int) -> Alter:
    """The same tag, with as many other bytes."""

    def alter(packet: bytes) -> bytes:
        changed = [
            (each, bytes(byte ^ 3 for byte in value) if each == tag else value)
            for each, value in tags_of(packet, start)
        ]
        return packet[:start] + b"".join(p.tlv(*each) for each in changed)

    return alter


def twice(tag: int, start: int) -> Alter:
    def alter(packet: bytes) -> bytes:
        return packet + p.tlv(tag, dict(tags_of(packet, start))[tag])

    return alter


def longer(tag: int, start: int) -> Alter:
    """One byte more, and its length with it."""

    def alter(packet: bytes) -> bytes:
        changed = [
            (each, value + b"\x01" if each == tag else value)
            for each, value in tags_of(packet, start)
        ]
        return packet[:start] + b"".join(p.tlv(*each) for each in changed)

    return alter


@pytest.mark.parametrize("change", [without, with_another, twice, longer])
@pytest.mark.parametrize("tag", HELLO_TAGS)
def test_no_tag_of_a_hello_can_be_changed(tag: int, change: Callable[[int, int], Alter]) -> None:
    middle = Middle()
    assert not middle.carry(on_hello=change(tag, 8))
    assert middle.identified == 0


@pytest.mark.parametrize("change", [without, with_another, twice, longer])
@pytest.mark.parametrize("tag", CHALLENGE_TAGS)
def test_no_tag_of_a_challenge_can_be_changed(
    tag: int, change: Callable[[int, int], Alter]
) -> None:
    middle = Middle()
    assert not middle.carry(on_challenge=change(tag, 2))
    assert middle.identified == 0


@pytest.mark.parametrize("tail", [p.tlv(0x80, b"agent/1"), p.tlv(0xFE, b""), p.tlv(0x0B, b"\x01")])
def test_nothing_can_be_added_not_even_what_is_skipped(tail: bytes) -> None:
    middle = Middle()
    assert not middle.carry(on_hello=lambda packet: packet + tail)
    assert not middle.carry(on_challenge=lambda packet: packet + tail)
    assert middle.identified == 0


def test_tags_cannot_change_places() -> None:
    middle = Middle()

    def turned(start: int) -> Alter:
        def alter(packet: bytes) -> bytes:
            tags = [p.tlv(*each) for each in reversed(tags_of(packet, start))]
            return packet[:start] + b"".join(tags)

        return alter

    assert not middle.carry(on_hello=turned(8))
    assert not middle.carry(on_challenge=turned(2))
    assert middle.identified == 0


def test_a_challenge_cut_short_anywhere_is_not_answered() -> None:
    middle = Middle()
    for size in range(1, len(challenge(b"", tags={CERTIFICATE_HASH: HASH}))):
        assert not middle.carry(on_challenge=lambda packet, size=size: packet[:size]), size
    assert middle.identified == 0


def test_the_middle_cannot_answer_with_a_challenge_of_its_own() -> None:
    middle = Middle()
    received: list[bytes] = []

    def own(answer: bytes) -> bytes:
        return challenge(received[-1], MALLORY, tags={CERTIFICATE_HASH: HASH})

    def hear(packet: bytes) -> bytes:
        received.append(packet)
        return packet

    assert not middle.carry(hear, own)
    assert middle.identified == 0


def test_the_middle_cannot_put_its_own_key_into_the_hello_and_prove_it() -> None:
    """The client would be taken for somebody else: it sees that the node signed another HELLO."""
    middle = Middle()
    line = middle.rig.connect()
    client = MutualAuth(Credentials(ALICE, NODE.public), Hello(channel=b"chat/1"), None)
    changed = client.packet.replace(ALICE.public, MALLORY.public)
    (answer,) = line.ask(changed)
    with pytest.raises(PeerMismatch, match="cannot prove"):
        client.answer(answer)
    assert line.ask(auth(changed, answer, MALLORY))[0][0] == 0x83, "it is let in as itself"


def test_a_proof_made_for_one_node_is_no_proof_for_another() -> None:
    """A node that Alice dials passes her HELLO on to another, to be let in there in her name."""
    middle = Middle()
    line = middle.rig.connect()
    client = MutualAuth(Credentials(ALICE, MALLORY.public), Hello(channel=b"chat/1"), None)
    (answer,) = line.ask(client.packet)
    with pytest.raises(PeerMismatch):
        client.answer(answer)
    line.say(client.answer(challenge(client.packet, MALLORY, nonce=dict(tags_of(answer))[p.NONCE])))
    middle.rig.advance(1)
    assert line.take_packets() == [p.AUTHENTICATION_FAILED, p.ABORT]

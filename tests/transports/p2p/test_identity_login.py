"""The node's side of HELLO, CHALLENGE, AUTH, READY: login, and every attack on it (PS-01).

On recorded wires, in virtual time; the client's half is `tests.transports.p2p.identity_packets`.
"""

from __future__ import annotations

import pytest

from millpond.actors.messages import Rights
from millpond.transports.server.interface import Principal
from tests.conformance import packets as p
from tests.transports.p2p.identity_packets import (
    ALICE,
    BOB,
    MALLORY,
    NODE,
    NONCE,
    SIGNATURE,
    auth,
    challenge,
    hello,
    tags_of,
)
from tests.transports.p2p.identity_rig import Door, challenged, ends_refused, is_ready, prove, rig

pytestmark = pytest.mark.wire


def test_ps_01_bytes_of_the_whole_handshake() -> None:
    server = rig()
    server.node.services.nonce = lambda: NONCE[::-1]
    line, first = server.connect(), hello()
    assert line.ask(first) == [challenge(first)]
    (ready,) = line.ask(auth(first, challenge(first)))
    assert ready[0] == 0x83 and p.read_ready(ready)[1][p.MODE] == p.PAIR


def test_a_proved_key_is_the_identity_that_access_checks() -> None:
    door = Door(**{ALICE.public.hex(): Rights.CHANNEL})
    server = rig(door)
    line = server.connect("192.0.2.7")
    line.wire.secure = True
    assert is_ready(prove(line, first=hello(tags={p.TOKEN: b"also a token"})))
    (principal,) = [each for each in door.principals if each.identity]
    port = principal.port
    assert principal == Principal(b"also a token", ALICE.public, "192.0.2.7", "p2p", port=port)
    assert line.connection._admission is not None
    assert line.connection._admission.join.identity == ALICE.public
    assert line.ask(p.put(1, b"x"))[0][0] == 7
    assert server.node.services.counters.identified == 1


def test_rights_of_a_key_are_enforced() -> None:
    server = rig(Door(**{ALICE.public.hex(): Rights.PUT, BOB.public.hex(): Rights.LIST}))
    alice, bob = server.connect(), server.connect()
    assert is_ready(prove(alice, ALICE)) and is_ready(prove(bob, BOB))
    assert alice.ask(p.list_()) == [p.nack(8, 0xF6)]
    assert bob.ask(p.put(1, b"x")) == [p.nack(6, 0xF6, p.u32(1))]


def test_a_client_without_identity_logs_in_as_before() -> None:
    server = rig()
    assert is_ready(server.connect().ask(p.hello(b"chat/1")))
    assert server.node.services.counters.identified == 0


def test_a_replayed_hello_and_auth_prove_nothing() -> None:
    server = rig()
    first = hello()
    line = server.connect()
    proof = auth(first, challenged(line, first))
    assert is_ready(line.ask(proof))
    replay = server.connect()
    challenged(replay, first)
    replay.say(proof)
    assert ends_refused(server, replay)


def test_a_reflected_challenge_proves_nothing() -> None:
    """Its signature sent back, as anybody's and as the node's own."""
    server = rig()
    for key in (MALLORY, NODE):
        line, first = server.connect(), hello(key)
        told = dict(tags_of(challenged(line, first)))
        line.say(b"\x82" + told[SIGNATURE])
        assert ends_refused(server, line)


def test_the_nodes_own_key_is_refused_even_with_a_proof() -> None:
    server = rig()
    line = server.connect()
    assert prove(line, NODE) == [] and ends_refused(server, line)


def test_swapped_roles_prove_nothing() -> None:
    server = rig()
    line, first = server.connect(), hello()
    line.say(auth(first, challenged(line, first), role=b"S"))
    assert ends_refused(server, line)


@pytest.mark.parametrize("claimed", [ALICE.public, bytes(32), b"\x01" + bytes(31), b"\xff" * 32])
def test_a_key_with_a_signature_of_another_is_refused(claimed: bytes) -> None:
    """Also those of low order, for which anybody can make a signature, and no keys at all."""
    server = rig()
    first = hello(tags={p.PUBLIC_KEY: claimed})
    for forged in (None, b"\x82" + bytes(64), b"\x82" + b"\x01" + bytes(63)):
        line = server.connect()
        proof = forged or auth(first, challenged(line, first), MALLORY)
        if forged:
            challenged(line, first)
        line.say(proof)
        assert ends_refused(server, line)


def test_a_proof_for_another_challenge_is_refused() -> None:
    server = rig()
    first = hello()
    line, other = server.connect(), server.connect()
    challenged(line, first)
    line.say(auth(first, challenged(other, first)))
    assert ends_refused(server, line)


@pytest.mark.parametrize("place", range(65))
def test_an_auth_with_any_bit_flipped_is_refused(place: int) -> None:
    server = rig()
    for bit in (0, 7) if place else (6,):
        line, first = server.connect(), hello()
        proof = bytearray(auth(first, challenged(line, first)))
        proof[place] ^= 1 << bit
        line.say(bytes(proof))
        if place:
            assert ends_refused(server, line)
        else:
            assert line.take_packets() == [], "no AUTH, so it is dropped"


def test_a_truncated_hello_logs_in_no_client() -> None:
    server = rig()
    whole = hello()
    for size in range(1, len(whole)):
        line, cut = server.connect(), whole[:size]
        answers = line.ask(cut, auth(cut, b"\x81\x01"))
        if size < 5:
            assert answers == [], "not known for a HELLO"
        elif size == 8:
            assert is_ready(answers), "a whole one, that names nobody"
        elif size == 8 + len(p.tlv(p.CHANNEL, b"chat/1")):
            assert is_ready(answers), "and one with a channel"
        else:
            assert answers == [p.MALFORMED_HELLO, p.ABORT] and line.wire.closed
    assert server.node.services.counters.identified == 0


def test_an_auth_of_another_length_is_malformed() -> None:
    for change in (-64, -1, 1, 64):
        server = rig()
        line, first = server.connect(), hello()
        proof = auth(first, challenged(line, first)) + bytes(64)
        assert line.ask(proof[: 65 + change]) == [p.MALFORMED_HELLO, p.ABORT]
        assert line.wire.closed


def test_a_connection_that_ends_at_any_byte_of_the_handshake_leaves_nothing_behind() -> None:
    server = rig()
    first = p.framed(hello())
    for size in range(len(first) + 4 + 65):
        line = server.connect()
        line.feed(first[:size])
        if size > len(first):
            told = line.take_packets()[0]
            line.feed(p.framed(auth(hello(), told))[: size - len(first)])
        assert all(answer[0] == 0x81 for answer in line.take_packets())
        line.eof()
        line.end()
    assert not server.node.registry.connections and not server.node.registry._before_handshake
    assert server.node.services.counters.identified == 0


def test_the_handshake_may_come_in_any_pieces() -> None:
    server = rig()
    line = server.connect()
    for byte in p.framed(hello()):
        line.feed(bytes((byte,)))
    (told,) = line.take_packets()
    for byte in p.framed(auth(hello(), told)):
        line.feed(bytes((byte,)))
    assert is_ready(line.take_packets())


def test_ps_01_a_key_without_a_nonce_is_malformed() -> None:
    line = rig().connect()
    key_alone = p.hello(b"chat/1", {p.PUBLIC_KEY: ALICE.public})
    assert line.ask(key_alone) == [p.MALFORMED_HELLO, p.ABORT]


def test_an_unexpected_auth_is_dropped() -> None:
    server = rig()
    line, first = server.connect(), hello()
    assert line.ask(auth(first, b"\x81\x01")) == []
    proof = auth(first, challenged(line, first))
    assert is_ready(line.ask(proof))
    assert line.ask(proof, p.PING, auth(first, b"\x81\x01", MALLORY)) == [p.PONG]


def test_two_proofs_the_first_counts() -> None:
    server = rig()
    line, first = server.connect(), hello()
    told = challenged(line, first)
    line.say(auth(first, told, MALLORY), auth(first, told))
    assert ends_refused(server, line)


def test_ps_08_packets_before_ready_are_dropped() -> None:
    """3b: requests, and a HELLO without the identity."""
    server = rig()
    line, first = server.connect(), hello()
    told = challenged(line, first)
    early = (p.put(1, b"early"), p.PING, p.list_(), p.hello(b"chat/1"), hello(BOB), b"\x04short")
    assert line.ask(*early) == []
    assert is_ready(line.ask(auth(first, told)))
    assert line.ask(p.list_()) == [p.list_ack()]
    assert line.connection._admission.join.identity == ALICE.public


def test_packets_behind_auth_in_the_same_read_are_handled() -> None:
    line, first = rig().connect(), hello()
    answers = line.ask(auth(first, challenged(line, first)), p.put(1, b"x"), p.PING)
    assert sorted(answer[0] for answer in answers) == [1, 7, 0x83]


@pytest.mark.parametrize("farewell", [p.GOODBYE, p.ABORT])
def test_a_goodbye_instead_of_a_proof_closes(farewell: bytes) -> None:
    server = rig()
    line, first = server.connect(), hello()
    told = challenged(line, first)
    line.say(farewell, auth(first, told))
    assert line.wire.closed and line.take_packets() == []


def test_ps_07_a_second_hello_after_ready_is_malformed_and_changes_nothing() -> None:
    line = rig().connect()
    prove(line)
    assert line.ask(hello(BOB)) == [p.MALFORMED_HELLO]
    assert line.connection._admission.join.identity == ALICE.public

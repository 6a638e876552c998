"""Refused identities all look the same (PA-39, PS-08); deadlines, certificates and floods (3b).

On recorded wires, in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millpond.actors.messages import Rights
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig
from tests.transports.p2p.identity_packets import (
    ALICE,
    CERTIFICATE_HASH,
    MALLORY,
    auth,
    hello,
    tags_of,
)
from tests.transports.p2p.identity_rig import Door, challenged, ends_refused, is_ready, prove, rig

pytestmark = pytest.mark.wire

HASH, OTHER_HASH = b"h" * 32, b"i" * 32

Refusal = Callable[[Rig, RecordedConnection], None]


def _bad_proof(server: Rig, line: RecordedConnection) -> None:
    line.say(auth(hello(), challenged(line, hello()), MALLORY))


def _unknown_key(server: Rig, line: RecordedConnection) -> None:
    assert prove(line, MALLORY) == []


def _unknown_token(server: Rig, line: RecordedConnection) -> None:
    line.say(p.hello(b"chat/1", {p.TOKEN: b"guess"}))


def _no_channel_of_theirs(server: Rig, line: RecordedConnection) -> None:
    assert prove(line, MALLORY, hello(MALLORY, b"nobody/knows")) == []


def _no_identity_here(server: Rig, line: RecordedConnection) -> None:
    server.node.services.signer = None
    line.say(hello())


def _another_certificate(server: Rig, line: RecordedConnection) -> None:
    assert prove(line, first=hello(tags={CERTIFICATE_HASH: HASH})) == []


REFUSALS = [
    _bad_proof,
    _unknown_key,
    _unknown_token,
    _no_channel_of_theirs,
    _no_identity_here,
    _another_certificate,
]


@pytest.mark.parametrize("refusal", REFUSALS)
def test_pa_39_all_refusals_look_the_same(refusal: Refusal) -> None:
    """PS-08: the same bytes after the same delay, and nothing that comes meanwhile is answered."""
    server = rig(Door(**{ALICE.public.hex(): Rights.ALL}))
    line = server.connect()
    refusal(server, line)
    assert line.ask(p.PING, p.put(1, b"x"), hello(), p.hello(b"chat/1")) == []
    assert ends_refused(server, line)


def test_3b_the_whole_handshake_has_5_seconds() -> None:
    server = rig(default_channel="")
    line = server.connect()
    server.advance(4)
    challenged(line, hello())
    server.advance(0.99)
    assert not line.wire.is_over
    server.advance(0.02)
    assert line.take_packets() == [p.ABORT] and line.wire.closed


def test_a_client_that_was_silent_for_long_has_5_seconds_from_its_hello() -> None:
    server = rig()
    line = server.connect()
    server.advance(19)
    challenged(line, hello())
    server.advance(4.9)
    assert not line.wire.is_over
    server.advance(0.2)
    assert line.take_packets() == [p.ABORT] and line.wire.closed


# TLS: tag 0d.


def _secured(server: Rig, certificate_hash: bytes | None = HASH) -> RecordedConnection:
    server.node.services.certificate_hash = certificate_hash
    line = server.connect()
    line.wire.secure = True
    return line


def test_3b_under_tls_the_challenge_names_the_certificate() -> None:
    server = rig()
    line, first = _secured(server), hello(tags={CERTIFICATE_HASH: HASH})
    told = challenged(line, first)
    assert dict(tags_of(told))[CERTIFICATE_HASH] == HASH
    assert is_ready(line.ask(auth(first, told)))


@pytest.mark.parametrize("seen", [{}, {CERTIFICATE_HASH: OTHER_HASH}])
def test_3b_another_certificate_is_refused(seen: p.Tags) -> None:
    server = rig()
    line = _secured(server)
    assert prove(line, first=hello(tags=seen)) == [] and ends_refused(server, line)


def test_3b_a_certificate_that_the_node_does_not_show_is_refused() -> None:
    """A proxy that ends TLS in front of the node is a man in the middle."""
    server = rig()
    server.node.services.certificate_hash = HASH
    line, first = server.connect(), hello(tags={CERTIFICATE_HASH: HASH})
    told = challenged(line, first)
    assert CERTIFICATE_HASH not in dict(tags_of(told))
    line.say(auth(first, told))
    assert ends_refused(server, line)


def test_3b_a_new_certificate_does_not_break_handshakes_in_progress() -> None:
    """The certificate that the connection was shown counts."""
    server = rig()
    line, first = _secured(server), hello(tags={CERTIFICATE_HASH: HASH})
    server.node.services.certificate_hash = OTHER_HASH
    assert is_ready(prove(line, first=first))


# Floods.


def test_challenges_are_limited_for_one_address_and_in_all() -> None:
    server = rig(connections_max=10_000, allow_plain_peers=True)

    def answers(address: str, count: int) -> list[bytes]:
        received = [server.connect(address).ask(hello()) for _ in range(count)]
        return [b"".join(each)[:3] for each in received]

    assert [each[0] for each in answers("192.0.2.1", 20)] == [0x81] * 20
    assert answers("192.0.2.1", 2) == [p.TOO_MANY_CONNECTIONS] * 2
    for last in range(2, 11):
        assert answers(f"192.0.2.{last}", 20)[-1][0] == 0x81
    assert answers("192.0.2.99", 1) == [p.TOO_MANY_CONNECTIONS], "200 in all"
    assert answers("127.0.0.1", 1) == [p.TOO_MANY_CONNECTIONS]
    assert is_ready(server.connect().ask(p.hello(b"chat/1"))), "others are served"
    counters = server.node.services.counters
    assert (counters.challenged, counters.challenges_refused) == (200, 4)
    server.advance(1)
    assert answers("192.0.2.1", 1)[0][0] == 0x81


def test_this_machine_is_held_to_the_limit_of_all_alone() -> None:
    server = rig()
    lines = [server.connect() for _ in range(200)]
    assert all(line.ask(hello())[0][0] == 0x81 for line in lines)


def test_over_the_limit_the_connection_ends_at_once() -> None:
    server = rig(allow_plain_peers=True)
    for _ in range(20):
        server.connect("192.0.2.1").ask(hello())
    line = server.connect("192.0.2.1")
    assert line.ask(hello()) == [p.TOO_MANY_CONNECTIONS, p.ABORT] and line.wire.closed

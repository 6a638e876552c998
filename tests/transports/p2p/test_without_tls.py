"""Identities over lines without TLS: proved on this machine, refused to others (PS-01)."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.transports.server.refusals import Refusal
from tests.conformance import packets as p
from tests.conformance.rig import Rig
from tests.transports.p2p.identity_packets import NODE, hello

pytestmark = pytest.mark.wire

HERE, THERE = ("127.0.0.1", "::1"), ("203.0.113.7", "2001:db8::7", "169.254.1.1", "")
TLS_REQUIRED = b"\xff\x80\xf8"
CHALLENGE = 0x81


def rig(**settings: Any) -> Rig:
    found = Rig(**settings)
    found.node.services.signer = NODE
    return found


@pytest.mark.parametrize("host", THERE)
def test_another_machine_is_asked_for_tls(host: str) -> None:
    """Before the node has signed anything, and before it looks at rights."""
    node = rig()
    assert node.connect(host).ask(hello()) == [TLS_REQUIRED, p.ABORT]
    counters = node.node.services.counters
    assert counters.reasons == {Refusal.WITHOUT_TLS.value: 1}
    assert counters.challenged == 0


@pytest.mark.parametrize("host", HERE)
def test_this_machine_needs_none(host: str) -> None:
    [answer] = rig().connect(host).ask(hello())
    assert answer[0] == CHALLENGE


@pytest.mark.parametrize("host", THERE)
def test_with_tls_everybody_may_prove_an_identity(host: str) -> None:
    line = rig().connect(host)
    line.wire.secure = True
    [answer] = line.ask(hello())
    assert answer[0] == CHALLENGE


def test_plain_peers_are_allowed_where_that_is_configured() -> None:
    [answer] = rig(allow_plain_peers=True).connect(THERE[0]).ask(hello())
    assert answer[0] == CHALLENGE


def test_clients_without_an_identity_are_not_asked() -> None:
    """They have the rights that the listener gives them, if any: here everybody has."""
    [answer] = rig(insecure_public=True).connect(THERE[0]).ask(p.hello(b"chat/1"))
    p.read_ready(answer)

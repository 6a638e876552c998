"""A node with an identity on recorded wires, and what tests of handshakes do with it."""

from __future__ import annotations

from typing import Any

from millpond.actors.messages import Rights
from millpond.node.access.policy import AccessPolicy
from millpond.transports.server.interface import Principal
from tests.conformance import packets as p
from tests.conformance.rig import RecordedConnection, Rig
from tests.transports.p2p.identity_packets import ALICE, NODE, Key, auth, hello, is_signed

REFUSED = [p.AUTHENTICATION_FAILED, p.ABORT]
REFUSAL_S = 0.2


class Door(AccessPolicy):
    """Grants these keys rights in every channel, and no other client."""

    def __init__(self, **keys: Rights) -> None:
        super().__init__({})
        self.principals: list[Principal] = []
        self._keys = keys

    def authorize(self, principal: Principal, channel: bytes) -> Rights | None:
        self.principals.append(principal)
        return self._keys.get(principal.identity.hex()) if principal.identity else None


def rig(door: AccessPolicy | None = None, **settings: Any) -> Rig:
    """A node with an identity."""
    rig = Rig(**settings)
    rig.node.services.signer = NODE
    if door is not None:
        rig.node.services.authorize = door.authorize
    return rig


def challenged(line: RecordedConnection, first: bytes) -> bytes:
    (answer,) = line.ask(first)
    assert is_signed(first, answer, NODE.public)
    return answer


def prove(line: RecordedConnection, key: Key = ALICE, first: bytes | None = None) -> list[bytes]:
    """Send HELLO and AUTH; gives the packets of the node."""
    first = first or hello(key)
    return line.ask(auth(first, challenged(line, first), key))


def is_ready(answers: list[bytes]) -> bool:
    return bool(answers) and answers[0][0] == 0x83


def ends_refused(rig: Rig, line: RecordedConnection) -> bool:
    """Nothing for the delay, then the same bytes as for everybody (PA-39)."""
    assert line.take_packets() == [] and not line.wire.is_over
    rig.advance(REFUSAL_S - 0.001)
    assert line.take_packets() == [] and not line.wire.is_over
    rig.advance(0.002)
    return line.take_packets() == REFUSED and line.wire.closed

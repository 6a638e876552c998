"""Connections of the node itself have the node's clock and its chance, and no other."""

from __future__ import annotations

from pathlib import Path
from random import Random

from millpond.node.outbox.dialer import PeerDialer
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.presence import ONLINE_S, LastSeen, Presence
from millpond.node.outbox.routes import Route
from tests.node.outbox.peer_nodes import PeerNode

NONCE_BYTES = 32


class Clock:
    """Stands still."""

    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


async def test_a_peer_that_we_dialled_was_seen_by_the_nodes_own_clock(tmp_path: Path) -> None:
    """Wire.md 3f: whoever was silent for 30 s, as this node counts them, is not here."""
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice)
    clock, asked = Clock(), list[int]()

    def entropy(count: int) -> bytes:
        asked.append(count)
        return bytes(count)

    presence = Presence(clock)
    dialing = PeerDialer(alice.identity, alice.book, presence, clock, Random(1), entropy)
    async with bob.node():
        place = Route(bob.url, bob.public, is_relay=False)
        async with dialing(place, mailbox_of(alice.public), "consumer") as joined:
            assert joined.silent_s == 0.0
            assert presence.last_seen(bob.public) == LastSeen(True, 1000.0)
            clock.s += ONLINE_S
            assert joined.silent_s == ONLINE_S
            assert presence.last_seen(bob.public) == LastSeen(False, 1000.0)
    assert NONCE_BYTES in asked

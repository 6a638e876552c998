"""Presence of peers: connections either way, and their last activity (docs/internals/peers.md)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millpond.actors.messages import Attach, Port, Reply, Role
from millpond.node.outbox.presence import ONLINE_S, LastSeen, Presence

BOB, CAROL = b"b" * 32, b"c" * 32
MAILBOX = b"mail/bob"


class Door(Port):
    def __init__(self, received_at: float) -> None:
        self.number = 1
        self.received_at = received_at

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None: ...

    def flush(self) -> None: ...


class Clock:
    def __init__(self) -> None:
        self.s = 1000.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def join(identity: bytes | None = BOB, role: Role = Role.CONSUMER) -> Attach:
    return Attach(role=role, push=True, identity=identity)


def test_a_peer_is_here_while_any_connection_shows_life(clock: Clock) -> None:
    presence = Presence(clock)
    changes: list[bytes] = []
    presence.on_change.append(changes.append)
    assert presence.last_seen(BOB) == LastSeen(False, None)
    door, other = Door(clock.s), Door(clock.s)
    presence.attached(MAILBOX, door, join())
    presence.attached(b"x", other, join())
    assert presence.last_seen(BOB) == LastSeen(True, clock.s) and changes == [BOB]
    clock.s += 10
    other.received_at = clock.s
    presence.detached(b"x", other)
    assert presence.last_seen(BOB) == LastSeen(True, 1000.0)
    presence.detached(MAILBOX, door)
    assert presence.last_seen(BOB) == LastSeen(False, 1010.0)
    assert changes == [BOB, BOB]


def test_a_silent_connection_does_not_say_that_somebody_is_here(clock: Clock) -> None:
    presence, door = Presence(clock), Door(clock.s)
    presence.attached(MAILBOX, door, join())
    clock.s += ONLINE_S
    assert presence.last_seen(BOB) == LastSeen(False, 1000.0)
    door.received_at = clock.s
    assert presence.last_seen(BOB) == LastSeen(True, clock.s)


def test_connections_of_ours_count_as_well(clock: Clock) -> None:
    presence, line = Presence(clock), object()
    presence.connected(CAROL, line, lambda: clock.s - 5)
    assert presence.last_seen(CAROL) == LastSeen(True, 995.0)
    presence.disconnected(CAROL, line)
    presence.disconnected(CAROL, line)
    assert presence.last_seen(CAROL) == LastSeen(False, 995.0)


def test_only_the_peer_itself_takes_its_mail(clock: Clock) -> None:
    """Not one who puts, not who is anonymous, and not somebody else in the same channel."""
    presence, door = Presence(clock), Door(clock.s)
    notified: list[bytes] = []
    presence.on_fetching.append(notified.append)
    for stranger in (join(role=Role.PRODUCER), join(None), join(CAROL)):
        presence.attached(MAILBOX, Door(clock.s), stranger)
    assert not presence.is_fetching(BOB, MAILBOX)
    notified.clear()
    presence.attached(MAILBOX, door, join())
    assert presence.is_fetching(BOB, MAILBOX) and notified == [BOB]
    presence.detached(MAILBOX, door)
    assert not presence.is_fetching(BOB, MAILBOX) and notified == [BOB, BOB]

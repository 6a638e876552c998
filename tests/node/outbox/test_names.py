"""Names in the addresses of peers: whoever made a card controls what they lead to."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.node.ip import is_own
from millpond.node.outbox.dialer import LeadsHere, PeerDialer, resolve
from millpond.node.outbox.mailbox import mailbox_of
from millpond.node.outbox.presence import Presence
from millpond.node.outbox.routes import Route, relay_routes, routes_to
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from tests.node.outbox.peer_nodes import PeerNode

pytestmark = pytest.mark.anyio

NAME = "bob.invalid"
"""No resolver of a system knows it (RFC 6761)."""


class Names:
    """The addresses of a name, one answer after the other."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        return self.answers.pop(0)


class Pair:
    def __init__(self, folder: Path) -> None:
        self.alice, self.bob = PeerNode(folder, "alice"), PeerNode(folder, "bob")
        self.alice.knows(self.bob)
        self.bob.knows(self.alice)
        self.port = int(self.bob.address.rpartition(":")[2])

    def route(self, *, allows_local: bool) -> Route:
        return Route(f"tcp://{NAME}:{self.port}", self.bob.public, False, allows_local)

    def dialer(self, names: Names) -> PeerDialer:
        return PeerDialer(
            self.alice.identity,
            self.alice.book,
            Presence(time.time),
            time.monotonic,
            Random(1),
            os.urandom,
            resolver=names,
        )


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


@pytest.mark.parametrize(
    "number", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "169.254.169.254", "fe80::1%2"]
)
async def test_a_name_that_leads_to_this_machine_or_link_is_not_dialled(
    pair: Pair, number: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody there hears a HELLO, and the log says it once."""
    names = Names([number], [number])
    dialer, own = pair.dialer(names), mailbox_of(pair.alice.public)
    with socket.create_server(("127.0.0.1", pair.port)) as listener:
        listener.setblocking(False)
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                with pytest.raises(OSError, match="leads to this machine") as told:
                    async with dialer(pair.route(allows_local=False), own, "consumer"):
                        pass
                assert isinstance(told.value.__cause__ or told.value, LeadsHere)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert names.asked == [NAME, NAME]
    assert [number in each for each in caplog.messages] == [True]


async def test_an_own_number_of_this_machine_is_no_other_machine(pair: Pair) -> None:
    """Not only loopback: services of this machine listen at its numbers in networks as well."""
    numbers = {str(each[4][0]) for each in socket.getaddrinfo(socket.gethostname(), 0)}
    for number in numbers:
        assert is_own(number)
    assert is_own("127.0.0.1") and not is_own("203.0.113.7") and not is_own(NAME)


async def test_a_name_that_may_lead_here_is_resolved_once_and_dialled(pair: Pair) -> None:
    """The connection is made to the number that was checked: a second answer counts for nothing."""
    names = Names(["127.0.0.1"], ["203.0.113.7"])
    own = mailbox_of(pair.alice.public)
    async with pair.bob.node():
        async with pair.dialer(names)(pair.route(allows_local=True), own, "consumer") as channel:
            assert await channel.list() == []
    assert names.asked == [NAME]


async def test_the_next_number_of_a_name_is_tried(pair: Pair) -> None:
    names = Names(["127.0.0.99", "127.0.0.1"])  # nothing listens at the first one
    own = mailbox_of(pair.alice.public)
    async with pair.bob.node():
        async with pair.dialer(names)(pair.route(allows_local=True), own, "consumer") as channel:
            assert await channel.list() == []


async def test_numbers_of_other_machines_are_left_of_a_name_that_leads_to_both(pair: Pair) -> None:
    names = Names(["127.0.0.1", "192.0.2.1"])
    route, own = pair.route(allows_local=False), mailbox_of(pair.alice.public)
    async with pair.bob.node() as there:
        with suppress(OSError, TimeoutError), anyio.fail_after(0.5):
            async with pair.dialer(names)(route, own, "consumer"):
                raise AssertionError("192.0.2.1 is nobody's")
        assert there.registry.counters.challenged == 0


async def test_the_resolver_of_the_system_gives_numbers() -> None:
    assert "127.0.0.1" in await resolve("localhost", 7400)
    with pytest.raises(OSError):
        await resolve(NAME, 7400)
    with pytest.raises(OSError):
        await resolve("a" * 64 + ".example", 7400)


def test_what_a_person_has_allowed_stays_with_the_peer_and_its_relays(tmp_path: Path) -> None:
    book = AddressBook(tmp_path / "peers.toml", lambda: 1000.0)
    url, relay = "tls://bob.example:7400", "tls://rita.example:7400"
    book.add(Peer("rita", PeerNode(tmp_path, "rita").public, Trust.RELAY, (relay,), (), 0.0))
    person = PeerNode(tmp_path, "bob")
    for allowed in (False, True):
        new = Peer("bob", person.public, Trust.ADDED, (url,), (relay,), 0.0, "", allowed)
        peer = book.update(new)
        read = AddressBook(tmp_path / "peers.toml", lambda: 1000.0).by_name("bob")
        assert read == peer and peer.allows_local is allowed
        assert [each.allows_local for each in routes_to(peer, book)] == [allowed, allowed]
    again = Peer("bob", person.public, Trust.ADDED, (url,), (relay,), 0.0)
    assert book.update(again).allows_local
    assert [each.allows_local for each in relay_routes("rita", book)] == [False]

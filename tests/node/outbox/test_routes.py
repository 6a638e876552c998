"""Routes to a peer, and the retry delay when none of them answers."""

from __future__ import annotations

from random import Random

import pytest

from millpond.node.outbox.routes import (
    DELAY_S_MAX,
    RedialDelay,
    Route,
    may_serve,
    relay_routes,
    routes_to,
    unused_relays,
)
from millpond.node.peers.address_book import AddressBook, Peer, Trust
from millpond.node.peers.identity import Identity, peer_id

RITA, SVEN, BOB, HOME_KEY = (Identity.from_seed(bytes((each,)) * 32).public for each in range(4))
HOME, RITAS, SVENS = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tls://127.0.0.1:3"


@pytest.fixture
def book() -> AddressBook:
    book = AddressBook()
    book.add(Peer("rita", RITA, Trust.RELAY, (RITAS,), (), 0.0))
    book.add(Peer("sven", SVEN, Trust.PINNED, (SVENS,), (), 0.0))
    return book


def bob(*relays: str, addresses: tuple[str, ...] = (HOME,)) -> Peer:
    return Peer("bob", BOB, Trust.ADDED, addresses, relays, 0.0)


def test_the_peer_itself_comes_first_and_then_its_relays(book: AddressBook) -> None:
    text = f"{peer_id(SVEN)}@{SVENS}"
    assert list(routes_to(bob("rita", text), book)) == [
        Route(HOME, BOB, False),
        Route(RITAS, RITA, True),
        Route(SVENS, SVEN, True),
    ]


def test_a_relay_by_its_address_has_to_be_whom_we_know_there(book: AddressBook) -> None:
    """Else any relay of ours."""
    assert list(relay_routes(RITAS, book)) == [Route(RITAS, RITA, True)]
    assert list(relay_routes(HOME, book)) == [Route(HOME, None, True)]
    assert list(relay_routes(peer_id(RITA), book)) == [Route(RITAS, RITA, True)]


def test_a_relay_with_a_new_key_is_not_looked_for_by_its_old_one(book: AddressBook) -> None:
    """The old one stays in the book, blocked, and with its address."""
    book.block("rita")
    book.add(Peer("new rita", BOB, Trust.RELAY, (RITAS,), (), 0.0))
    assert list(relay_routes(RITAS, book)) == [Route(RITAS, BOB, True)]
    assert list(relay_routes("new rita", book)) == [Route(RITAS, BOB, True)]
    assert list(relay_routes("rita", book)) == []
    assert list(relay_routes(f"{peer_id(RITA)}@{RITAS}", book)) == []


def test_whoever_is_pinned_only_is_not_whom_we_know_at_an_address(book: AddressBook) -> None:
    assert list(relay_routes(SVENS, book)) == [Route(SVENS, None, True)]


def test_a_contact_is_no_relay_and_a_relay_no_contact(book: AddressBook) -> None:
    book.add(Peer("carol", BOB, Trust.VERIFIED, (HOME,), (), 0.0))
    assert list(relay_routes("carol", book)) == []
    assert list(relay_routes(HOME, book)) == [Route(HOME, None, True)]
    for is_relay in (True, False):
        assert may_serve(book, RITA, Route(RITAS, RITA, is_relay)) is is_relay
        assert may_serve(book, BOB, Route(HOME, BOB, is_relay)) is not is_relay
        assert not may_serve(book, SVEN, Route(SVENS, SVEN, is_relay))


def test_relays_that_are_named_and_not_used_are_found(book: AddressBook) -> None:
    book.add(bob(f"{peer_id(RITA)}@{RITAS}", f"{peer_id(SVEN)}@{SVENS}"))
    via = ("rita", "sven", f"{peer_id(RITA)}@{RITAS}", "tcp://127.0.0.1:9", "bob")
    assert list(unused_relays(via, book, HOME_KEY)) == ["sven", "bob", f"{peer_id(SVEN)}@{SVENS}"]


def test_a_relay_is_none_of_its_own_routes(book: AddressBook) -> None:
    own = f"{peer_id(HOME_KEY)}@{HOME}"
    peer = bob(f"{peer_id(RITA)}@{RITAS}", own, addresses=())
    book.add(peer)
    assert list(unused_relays((), book, HOME_KEY)) == []
    assert list(unused_relays((), book, SVEN)) == [own]
    assert list(routes_to(peer, book, HOME_KEY)) == [Route(RITAS, RITA, True)]


@pytest.mark.parametrize("text", ["nobody", "sven", "not-an-id@tcp://127.0.0.1:1", ""])
def test_a_relay_that_cannot_be_one_is_no_place(book: AddressBook, text: str) -> None:
    """A peer that is pinned and not confirmed yet is no relay of ours."""
    assert list(relay_routes(text, book)) == []


def test_retry_delays_grow_up_to_five_minutes_and_differ_between_nodes() -> None:
    delay, other = RedialDelay(Random(1)), RedialDelay(Random(2))
    delays = [delay.next_s() for _ in range(12)]
    for number, rest_s in enumerate(delays):
        ceiling_s = min(DELAY_S_MAX, 2.0**number)
        assert ceiling_s / 2 <= rest_s <= ceiling_s
    assert delays != [other.next_s() for _ in range(12)]
    delay.reset()
    assert delay.next_s() <= 1.0

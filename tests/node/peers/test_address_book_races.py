"""Concurrent changes of one peer book by threads and processes: no removed key comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from millpond.node.peers.address_book import (
    AddressBook,
    DuplicatePeer,
    KeyChanged,
    Peer,
    PeerBlocked,
    Trust,
)
from millpond.node.peers.address_book_toml import parse_address_book
from millpond.node.peers.identity import Identity, peer_id

HERE = "tcp://203.0.113.7:7400"
PLACE = "203.0.113.7:7400"
NOON = 1_763_683_200.0


def key(number: int) -> bytes:
    return Identity.from_seed(number.to_bytes(32, "big")).public


BOB, CAROL, MALLORY = key(1), key(2), key(3)


def peer(name: str, public: bytes, trust: Trust = Trust.ADDED) -> Peer:
    return Peer(name, public, trust, (), (), NOON)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "peers.toml"


@pytest.fixture
def books(path: Path) -> tuple[AddressBook, AddressBook]:
    """A node's, which has not looked at the file again, and that of a command."""
    there = AddressBook(path, lambda: NOON)
    there.add(peer("bob", BOB))
    return AddressBook(path, lambda: NOON), there


Books = tuple[AddressBook, AddressBook]


def in_the_middle_of_reading(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Another thread's work, between the reading of the old text and its taking effect; once."""
    todo = [happens]

    def parsed(text: str) -> list[Peer]:
        found = list(parse_address_book(text))
        if todo:
            todo.pop()()
        return found

    monkeypatch.setattr("millpond.node.peers.address_book.parse_address_book", parsed)


def test_a_key_that_is_revoked_while_the_file_is_read_stays_so(
    books: Books, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = books
    there.add(peer("carol", CAROL))
    changed: list[Peer] = []
    in_the_middle_of_reading(monkeypatch, lambda: changed.append(here.block("bob")))
    here.reload()
    here.reload()
    assert not here.is_contact(BOB)
    here.add(peer("dave", key(4)))
    assert not AddressBook(path).is_contact(BOB)


def test_of_two_threads_that_read_the_later_text_counts(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = books
    there.add(peer("carol", CAROL))

    def meanwhile() -> None:
        there.block("bob")
        assert here.reload() and not here.is_contact(BOB)

    in_the_middle_of_reading(monkeypatch, meanwhile)
    here.reload()
    here.reload()
    assert not here.is_contact(BOB)


def test_who_has_not_heard_of_a_revocation_cannot_undo_it(books: Books, path: Path) -> None:
    here, there = books
    there.block("bob")
    assert here.is_contact(BOB)
    with pytest.raises(PeerBlocked):
        here.accept("bob")
    here, _ = AddressBook(path, lambda: NOON), there.accept("bob", replace=True)
    there.block("bob")
    with pytest.raises(PeerBlocked):
        here.replace("bob", peer("bob", BOB))
    assert not AddressBook(path).is_contact(BOB)
    there.replace("bob", peer("robert", BOB, Trust.BLOCKED))


@pytest.mark.parametrize("public", [None, BOB])
def test_what_was_confirmed_is_the_key_that_was_seen(path: Path, public: bytes | None) -> None:
    """The name stands for another key by now: whoever met us in between chose that one."""
    there = AddressBook(path, lambda: NOON)
    there.pin(BOB, HERE)
    here = AddressBook(path, lambda: NOON)
    there.remove(PLACE)
    there.pin(MALLORY, HERE)
    with pytest.raises(KeyChanged) as told:
        here.accept(PLACE, public)
    assert (told.value.peer.public, told.value.public) == (BOB, MALLORY)
    assert not AddressBook(path).is_contact(MALLORY)


def test_of_two_keys_that_are_met_at_one_place_the_first_is_pinned(path: Path) -> None:
    here, there = AddressBook(path, lambda: NOON), AddressBook(path, lambda: NOON)
    there.pin(BOB, HERE)
    with pytest.raises(KeyChanged):
        here.pin(MALLORY, HERE)
    assert AddressBook(path).by_public(MALLORY) is None


def test_an_id_is_revoked_whatever_its_name_has_become(books: Books, path: Path) -> None:
    here, there = books
    there.replace("bob", peer("rob", BOB))
    there.add(peer("bob", CAROL))
    assert here.block(peer_id(BOB)).name == "rob"
    assert AddressBook(path).is_contact(CAROL) and not AddressBook(path).is_contact(BOB)


def test_news_are_told_even_if_they_come_with_a_change_that_is_refused(books: Books) -> None:
    """Else whoever closes connections of revoked keys would not hear of it at all."""
    here, there = books
    received: list[bool] = []
    here.on_change(lambda: received.append(here.is_contact(BOB)))
    there.block("bob")
    with pytest.raises(DuplicatePeer):
        here.add(peer("robert", BOB))
    assert received == [False] and not here.reload()

"""The peer book: who is known, what a changed key does, and `peers.toml` under several hands."""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from threading import Thread

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.node.peers.address_book import (
    AddressBook,
    BadPeer,
    BookFull,
    BookUnreadable,
    DuplicatePeer,
    KeyChanged,
    Peer,
    PeerBlocked,
    PeerNotFound,
    Trust,
)
from millpond.node.peers.address_book_file import AddressBookFile, BookBusy
from millpond.node.peers.address_book_toml import format_address_book, parse_address_book
from millpond.node.peers.identity import Identity

HERE = "tcp://203.0.113.7:7400"
NOON = 1_763_683_200.0


def key(number: int) -> bytes:
    return Identity.from_seed(number.to_bytes(32, "big")).public


BOB, CAROL = key(1), key(2)


def peer(name: str = "bob", public: bytes = BOB, **parts: object) -> Peer:
    plain = Peer(name, public, Trust.ADDED, (HERE,), (), NOON)
    return msgspec.structs.replace(plain, **parts)


class Watch:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "peers.toml"


@pytest.fixture(params=["file", "memory"])
def book(request: pytest.FixtureRequest, path: Path) -> AddressBook:
    return AddressBook(path if request.param == "file" else None, Watch())


def test_a_peer_is_found_by_name_and_key(book: AddressBook) -> None:
    bob = book.add(peer())
    assert list(book.peers) == [bob] and len(book) == 1
    assert book.by_name("bob") == book.by_public(BOB) == bob
    assert book.resolve("bob") == book.resolve(bob.id) == bob
    assert book.is_contact(BOB) and not book.is_contact(CAROL)
    for nobody in ("carol", "", "Bob", peer(public=CAROL).id, "a/b!"):
        assert book.resolve(nobody) is None


def test_a_name_is_the_same_in_any_unicode_spelling(book: AddressBook) -> None:
    book.add(peer("Ren\u00e9e"))
    assert book.by_name("Rene\u0301e") is not None
    with pytest.raises(DuplicatePeer):
        book.add(peer("Rene\u0301e", CAROL))


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": name}
        for name in ("", "a/b", "a!", "a\0", "a\n", " a", "a ", "x" * 65, "\u202ebob", peer().id)
    ]
    + [{"public": BOB[:-1]}, {"public": bytes(32)}, {"added_at": -1.0}, {"added_at": float("nan")}]
    + [{"addresses": (url,)} for url in ("", "nope", "http://h:1", "tcp://h:0", "tcp://h/\n")]
    + [{"addresses": tuple(f"tcp://h:{port}" for port in range(1, 10))}, {"card": "two\nlines"}]
    + [{"relays": (text,)} for text in ("carol", "abc@tcp://h:1", "@tcp://h:1", "tcp://a@h:1")],
)
def test_what_cannot_be_a_peer(book: AddressBook, wrong: dict[str, object]) -> None:
    with pytest.raises(BadPeer):
        book.add(peer(**wrong))
    assert len(book) == 0


def test_names_and_keys_are_given_once(book: AddressBook) -> None:
    book.add(peer())
    with pytest.raises(DuplicatePeer, match="'bob'"):
        book.add(peer(public=CAROL))
    with pytest.raises(DuplicatePeer, match="'bob'"):
        book.add(peer("robert"))
    book.add(peer("carol", CAROL))
    with pytest.raises(DuplicatePeer):
        book.replace("carol", peer("bob", CAROL))
    assert [each.name for each in book.peers] == ["bob", "carol"]


def test_replace_and_remove(book: AddressBook) -> None:
    book.add(peer())
    book.add(peer("carol", CAROL))
    book.replace("bob", peer("rob", addresses=()))
    assert [each.name for each in book.peers] == ["rob", "carol"]
    book.remove(peer().id)
    assert [each.name for each in book.peers] == ["carol"]
    for change in (book.remove, book.block, book.verify, book.make_relay, book.accept):
        with pytest.raises(PeerNotFound):
            change("bob")
    with pytest.raises(PeerNotFound):
        book.replace("bob", peer())


def test_each_level_says_what_a_person_did(book: AddressBook) -> None:
    book.add(peer())
    assert book.is_contact(BOB) and not book.is_relay(BOB)
    assert book.verify("bob").trust is Trust.VERIFIED and book.is_contact(BOB)
    assert book.accept("bob").trust is Trust.VERIFIED
    assert book.make_relay("bob").trust is Trust.RELAY
    assert book.is_relay(BOB) and not book.is_contact(BOB)
    assert book.accept("bob").trust is Trust.RELAY
    with pytest.raises(BadPeer, match="relay"):
        book.verify("bob")
    book.block("bob")
    assert not book.is_relay(BOB) and not book.is_contact(BOB)
    for change in (book.verify, book.make_relay, book.accept):
        with pytest.raises(PeerBlocked):
            change("bob")


def test_a_new_key_is_not_verified_and_that_of_a_relay_stays_one(book: AddressBook) -> None:
    book.add(peer(trust=Trust.VERIFIED))
    assert book.accept("bob", CAROL, replace=True).trust is Trust.ADDED
    book.make_relay("bob")
    assert book.accept("bob", key(3), replace=True).trust is Trust.RELAY
    book.add(peer("dave", key(4), trust=Trust.RELAY, addresses=()))
    with pytest.raises(DuplicatePeer, match="dave"):
        book.accept("bob", key(4), replace=True)


def test_an_update_keeps_what_it_does_not_say(book: AddressBook) -> None:
    assert book.update(peer(card="millpond:x")) == peer(card="millpond:x")
    book.verify("bob")
    told = book.update(peer(addresses=(), relays=("tcp://r:1",), added_at=NOON + 1))
    assert told == peer(trust=Trust.VERIFIED, card="millpond:x", relays=("tcp://r:1",))
    assert book.update(peer(trust=Trust.RELAY)).trust is Trust.RELAY
    assert book.update(peer()).trust is Trust.ADDED
    with pytest.raises(KeyChanged):
        book.update(peer(public=CAROL))
    with pytest.raises(DuplicatePeer):
        book.update(peer("robert"))
    book.block("bob")
    with pytest.raises(PeerBlocked):
        book.update(peer())


def test_who_is_met_first_is_pinned_and_no_contact(book: AddressBook) -> None:
    met = book.pin(BOB, HERE)
    assert met.is_new and met.peer.trust is Trust.PINNED and met.peer.name == "203.0.113.7:7400"
    assert not book.is_contact(BOB)
    assert book.pin(BOB, HERE) == type(met)(met.peer, is_new=False)
    assert book.accept(met.peer.name).trust is Trust.ADDED and book.is_contact(BOB)


def test_another_key_where_one_is_known_is_loud(book: AddressBook) -> None:
    """By any scheme; and also when the other key is a known peer's."""
    book.add(peer())
    book.add(peer("carol", CAROL, addresses=("tcp://203.0.113.8:7400",)))
    for stranger, address in ((key(3), "tls://203.0.113.7"), (CAROL, HERE)):
        with pytest.raises(KeyChanged, match="'bob'") as told:
            book.pin(stranger, address)
        assert (told.value.peer.public, told.value.public) == (BOB, stranger)
    assert book.pin(CAROL, "tcp://elsewhere:7400").peer.name == "carol"
    pinned = book.pin(key(4), "tcp://Elsewhere:7400")
    with pytest.raises(KeyChanged):
        book.pin(key(5), "ws://elsewhere:7400")
    assert pinned.peer.name == "elsewhere:7400" and len(book) == 3
    with pytest.raises(BadPeer):
        book.pin(key(5), "elsewhere")


def test_revoked_does_not_come_back_by_itself(book: AddressBook) -> None:
    book.add(peer())
    assert book.block("bob").trust is Trust.BLOCKED
    assert not book.is_contact(BOB)
    for address in (HERE, "tcp://elsewhere:1"):
        with pytest.raises(PeerBlocked, match="'bob'"):
            book.pin(BOB, address)
    with pytest.raises(KeyChanged):
        book.pin(CAROL, HERE)
    with pytest.raises(PeerBlocked):
        book.accept("bob")
    assert not book.is_contact(BOB)
    assert book.accept("bob", replace=True).trust is Trust.ADDED
    assert book.is_contact(BOB)


def test_another_key_is_taken_only_on_demand(book: AddressBook) -> None:
    book.add(peer())
    with pytest.raises(KeyChanged) as told:
        book.accept("bob", CAROL)
    assert (told.value.peer.public, told.value.public) == (BOB, CAROL)
    assert book.is_contact(BOB) and not book.is_contact(CAROL)
    new = book.accept("bob", CAROL, replace=True)
    assert (new.name, new.addresses) == ("bob", (HERE,))
    assert book.is_contact(CAROL) and not book.is_contact(BOB)
    old = book.by_public(BOB)
    assert old is not None and (old.name, old.trust) == ("bob (old 1)", Trust.BLOCKED)
    with pytest.raises(PeerBlocked):
        book.pin(BOB, "tcp://elsewhere:1")


def test_back_to_the_old_key_and_to_one_that_was_pinned(book: AddressBook) -> None:
    book.add(peer("x" * 64))
    book.accept("x" * 64, CAROL, replace=True)
    book.accept("x" * 64, BOB, replace=True)
    assert book.is_contact(BOB) and not book.is_contact(CAROL)
    book.pin(key(3), "tcp://new-phone:7400")
    book.accept("x" * 64, key(3), replace=True)
    assert sorted(each.trust.value for each in book.peers) == ["added", "blocked", "blocked"]
    book.add(peer("carol", key(4)))
    with pytest.raises(DuplicatePeer, match="carol"):
        book.accept("x" * 64, key(4), replace=True)


def test_there_is_a_limit(book: AddressBook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.node.peers.address_book.PEERS_MAX", 3)
    for number in range(1, 4):
        book.add(peer(f"peer {number}", key(number)))
    with pytest.raises(BookFull):
        book.pin(key(9), "tcp://elsewhere:1")
    assert len(book) == 3 and book.by_public(key(9)) is None


def test_who_asked_hears_of_each_change(book: AddressBook) -> None:
    received: list[int] = []
    book.on_change(lambda: received.append(len(book)))
    book.add(peer())
    book.pin(CAROL, "tcp://elsewhere:1")
    book.pin(CAROL, "tcp://elsewhere:1")
    book.block("bob")
    book.remove("bob")
    assert received == [1, 2, 2, 1]


def test_it_is_kept_for_people_to_read(path: Path) -> None:
    book = AddressBook(path)
    carol = peer("carol", CAROL).id
    full = peer(
        'say "hi" \\ \u00e9', relays=("tls://relay:1", f"{carol}@tcp://r:2"), card="millpond:x"
    )
    book.add(full)
    book.add(peer("carol", CAROL, trust=Trust.BLOCKED, addresses=(), added_at=0.0))
    assert list(AddressBook(path).peers) == list(book.peers)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first, second = tomllib.loads(path.read_text())["peer"]
    assert first["name"] == full.name and first["key"] == full.id
    assert first["added"] == datetime.fromtimestamp(NOON, UTC)
    assert second["trust"] == "blocked" and "addresses" not in second


@pytest.mark.parametrize(
    ("first", "second"), [("trusted", "added"), ("pinned", "pinned"), ("revoked", "blocked")]
)
def test_a_book_of_version_1_is_read_and_written_as_version_2(
    path: Path, first: str, second: str
) -> None:
    path.write_text(f'format = 1\n[[peer]]\nname = "bob"\nkey = "{peer().id}"\ntrust = "{first}"\n')
    path.chmod(0o600)
    book = AddressBook(path)
    assert [each.trust.value for each in book.peers] == [second]
    book.add(peer("carol", CAROL))
    written = tomllib.loads(path.read_text())
    assert written["format"] == 2
    assert [each["trust"] for each in written["peer"]] == [second, "added"]
    assert list(AddressBook(path).peers) == list(book.peers)


def test_what_people_write_by_hand_is_taken(path: Path) -> None:
    path.write_text(f'[[peer]]\nname = "Bob"\nkey = "{peer().id}"\ntrust = "trusted"\n')
    path.chmod(0o644)
    assert AddressBook(path).is_contact(BOB)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("peer = 1", "peer"),
        ("[[peer]]\nname = \n", "line 2"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'very'", "trust"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'", "trust"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'trusted'\nadress = 'x'", "adress"),
        ("[[peer]]\nname = 'b/'\nkey = 'KEY'\ntrust = 'trusted'", "b/"),
        ("[[peer]]\nname = 'b'\nkey = 'abc'\ntrust = 'trusted'", "abc"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'trusted'\nadded = 2020-01-01", "added"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'trusted'\n" * 2, "already"),
        ("format = 3", "format"),
        ("format = 2\n[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'trusted'", "trust"),
        ("[[peer]]\nname = 'b'\nkey = 'KEY'\ntrust = 'verified'", "trust"),
        ("a = " + "[" * 5000, "nested"),
    ],
)
def test_a_damaged_file_is_refused(path: Path, text: str, reason: str) -> None:
    path.write_text(text.replace("KEY", peer().id))
    path.chmod(0o600)
    with pytest.raises(BookUnreadable, match=reason) as told:
        AddressBook(path)
    assert str(path) in str(told.value)


def test_a_file_that_others_may_write_is_refused(path: Path) -> None:
    AddressBook(path).add(peer())
    for mode in (0o620, 0o602):
        path.chmod(mode)
        with pytest.raises(BookUnreadable, match="chmod 600"):
            AddressBook(path)
    path.chmod(0o600)
    path.write_bytes(b"\xff")
    with pytest.raises(BookUnreadable):
        AddressBook(path)


def test_a_change_by_others_is_noticed_within_a_second(path: Path) -> None:
    watch = Watch()
    here, other = AddressBook(path, watch), AddressBook(path)
    received: list[int] = []
    here.on_change(lambda: received.append(1))
    other.add(peer())
    watch.time += 0.5
    assert not here.is_contact(BOB)
    watch.time += 0.5
    assert here.is_contact(BOB) and received == [1]
    assert not here.reload()
    other.block("bob")
    assert here.reload() and not here.is_contact(BOB)
    other.accept("bob", replace=True)
    watch.time -= 3600
    assert here.is_contact(BOB)
    path.unlink()
    watch.time += 1
    assert not here.is_contact(BOB) and len(here) == 0


def test_a_file_that_becomes_unreadable_changes_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watch = Watch()
    book = AddressBook(path, watch)
    book.add(peer())
    whole = path.read_text()
    path.write_text(whole + "[[peer")
    with pytest.raises(BookUnreadable):
        book.reload()
    with caplog.at_level(logging.ERROR):
        path.write_text(whole + "[[peer]")
        for _ in range(3):
            watch.time += 2
            assert book.is_contact(BOB)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    with pytest.raises(BookUnreadable):
        book.add(peer("carol", CAROL))
    assert path.read_text() == whole + "[[peer]"
    path.write_text(whole)
    book.add(peer("carol", CAROL))
    assert [each.name for each in AddressBook(path).peers] == ["bob", "carol"]


def test_several_writers_lose_nothing(path: Path) -> None:
    """Each has read the file before the others wrote."""
    books = [AddressBook(path) for _ in range(4)]

    def write(first: int) -> None:
        for number in range(first, first + 5):
            books[first % 4].add(peer(f"peer {number}", key(number), addresses=()))

    threads = [Thread(target=write, args=(first,)) for first in (8, 13, 18, 23)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {each.name for each in AddressBook(path).peers} == {f"peer {n}" for n in range(8, 28)}


def test_who_never_gives_the_lock_back_stops_nobody_for_good(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.peers.address_book_file.LOCK_WAIT_S", 0.05)
    book = AddressBook(path)
    with AddressBookFile(path).locked(), pytest.raises(BookBusy):
        book.add(peer())
    assert len(book) == 0
    book.add(peer())
    assert book.is_contact(BOB)


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_old_file(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    book = AddressBook(path)
    book.add(peer())
    before = path.read_bytes()

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync") if step == "fsync" else (Path, "replace")), fails)
        with pytest.raises(OSError, match="No space"):
            book.block("bob")
    assert path.read_bytes() == before and book.is_contact(BOB)
    book.block("bob")
    assert not AddressBook(path).is_contact(BOB)


ADDRESSES = st.lists(st.integers(1, 65535).map(lambda port: f"tcp://h:{port}"), max_size=8)


@st.composite
def _peers(draw: st.DrawFn) -> Peer:
    letters = st.characters(exclude_categories=["C", "Z"], exclude_characters="/!")
    name = draw(st.text(letters, min_size=1, max_size=20))
    trust, urls = draw(st.sampled_from(Trust)), draw(ADDRESSES)
    added = draw(st.integers(0, 4_000_000_000_000)) / 1000
    return Peer(name, key(draw(st.integers(0, 99))), trust, tuple(urls), tuple(urls), added)


@settings(max_examples=50)
@given(st.lists(_peers(), max_size=5))
def test_any_peers_are_read_back(peers: list[Peer]) -> None:
    assert parse_address_book(format_address_book(peers)) == peers


@settings(max_examples=100)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda data: data.decode("latin-1")))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_address_book(text)
    except ValueError:
        return
    assert tomllib.loads(text).get("format", 1) == 1

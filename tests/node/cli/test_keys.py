"""`millpond keys` and `millpond peer`: what they print, exit codes, and the files they leave."""

from __future__ import annotations

import io
import json
import stat
import sys
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.card import decode_card
from millpond.node.peers.fingerprint import fingerprint, safety_words
from millpond.node.peers.identity import load_identity, public_key_of
from tests.node.processes import serving
from tests.node.stream_commands import Run, Told, objects

BOB_AT = "tcp://203.0.113.7:7400"


@pytest.fixture
def run(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.delenv("MILLPOND_DATA", raising=False)

    def run(*words: str) -> Told:
        code = main(words)
        out, err = capfdbinary.readouterr()
        return Told(code, out, err.decode())

    return run


class Person:
    """Somebody with a data folder."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run = run
        self.folder = folder
        [made] = objects(self("keys", "new", "--json"))
        self.id: str = made["id"]

    def __call__(self, *words: str) -> Told:
        return self._run(*words, "--data", str(self.folder))

    @property
    def book(self) -> AddressBook:
        return AddressBook(self.folder / "peers.toml")


@pytest.fixture
def alice(run: Run, tmp_path: Path) -> Person:
    return Person(run, tmp_path / "alice")


@pytest.fixture
def bob(run: Run, tmp_path: Path) -> Person:
    return Person(run, tmp_path / "bob")


def test_new_makes_an_identity_once(run: Run, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    told = run("keys", "show", *where)
    assert told.code == 4 and "keys new" in told.err
    made = run("keys", "new", *where)
    identity = load_identity(tmp_path / "data" / "identity.key")
    lines = dict(line.split(None, 1) for line in made.out.decode().splitlines())
    assert lines == {
        "id": identity.id,
        "fingerprint": fingerprint(identity.public),
        "words": safety_words(identity.public),
    }
    assert run("keys", "show", *where).out == made.out
    again = run("keys", "new", *where)
    assert again.code == 1 and "never replaced" in again.err
    assert load_identity(tmp_path / "data" / "identity.key").seed == identity.seed
    assert identity.seed.hex().encode() not in made.out


def test_the_folder_is_that_of_serve_by_default(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert run("keys", "new").code == 0
    assert stat.S_IMODE((tmp_path / "millpond").stat().st_mode) == 0o700
    monkeypatch.setenv("MILLPOND_DATA", str(tmp_path / "other"))
    assert run("keys", "show").code == 4


def test_a_key_that_others_may_read_is_refused(alice: Person) -> None:
    (alice.folder / "identity.key").chmod(0o644)
    told = alice("keys", "show")
    assert told.code == 1 and "chmod 600" in told.err and told.out == b""


def test_two_people_get_to_know_each_other_by_a_card(alice: Person, bob: Person) -> None:
    """The card goes through a pipe once, and by hand once."""
    shown = bob("keys", "show", "--card", "--address", BOB_AT)
    card = decode_card(shown.out.decode())
    assert card.public == public_key_of(bob.id) and card.addresses == (BOB_AT,)
    assert card.prekey is not None
    told = alice("peer", "add", "bob", "--card", shown.out.decode())
    assert told.code == 0 and safety_words(card.public) in told.out.decode()
    assert alice.book.is_trusted(card.public)
    [kept] = alice.book.peers
    assert decode_card(kept.card).prekey == card.prekey
    [known] = objects(alice("keys", "show", "bob", "--json"))
    [own] = objects(bob("keys", "show", "--json"))
    assert own.items() <= known.items()
    assert (known["name"], known["trust"]) == ("bob", "trusted")
    assert objects(alice("peer", "ls", "--json")) == objects(alice("keys", "list", "--json"))
    assert f"bob  trusted  {bob.id}  {BOB_AT}\n" == alice("peer", "ls").out.decode()
    assert fingerprint(card.public) in alice("keys", "list").out.decode()
    [in_json] = objects(bob("keys", "show", "--card", "--json"))
    assert decode_card(in_json["card"]).addresses == ()


def test_a_card_from_a_pipe(alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    line = bob("keys", "show", "--card").out.decode()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line[:70]}\n{line[70:]}\n"))
    assert alice("peer", "add", "bob", "--card", "-").code == 0
    assert alice.book.by_name("bob") is not None


def test_a_relay_may_be_named(alice: Person, bob: Person) -> None:
    told = alice("peer", "add", "carol", "--key", bob.id)
    assert told.code == 0
    other = "e" * 51 + "q"
    told = alice("peer", "add", "dave", "--key", other, "--relay", "carol")
    assert told.code == 2 and "no address of 'carol'" in told.err
    assert alice("peer", "add", "carol", "--key", bob.id, "--address", BOB_AT).code == 0
    assert alice("peer", "add", "dave", "--key", other, "--relay", "carol").code == 0
    dave = alice.book.by_name("dave")
    assert dave is not None and dave.relays == (f"{bob.id}@{BOB_AT}",)
    card = decode_card(alice("keys", "show", "--card", "--relay", "carol").out.decode())
    assert card.relays == dave.relays
    assert alice("peer", "add", "eve", "--key", other, "--relay", "nobody").code == 4


def test_what_is_refused_and_how(alice: Person, bob: Person) -> None:
    card = bob("keys", "show", "--card").out.decode().strip()
    for words_, code, reason in (
        (("peer", "add", "bob", "--key", "abc"), 2, "not a peer id"),
        (("peer", "add", "bob", "--card", card[:-4]), 2, "card"),
        (("peer", "add", "bob", "--key", bob.id, "--address", "nope"), 2, "scheme"),
        (("peer", "add", "a/b", "--key", bob.id), 2, "name"),
        (("peer", "add", "me", "--key", alice.id), 2, "key of this node"),
        (("peer", "add", "bob"), 2, "--key"),
        (("peer", "rm", "bob"), 4, "bob"),
        (("keys", "trust", "bob"), 4, "bob"),
        (("keys", "revoke", "bob"), 4, "bob"),
        (("keys", "show", "bob"), 4, "bob"),
        (("keys", "show", "bob", "--card"), 2, "owner"),
        (("keys", "show", "--address", BOB_AT), 2, "--card"),
    ):
        told = alice(*words_)
        assert (told.code, told.out) == (code, b"") and reason in told.err, words_
    assert not (alice.folder / "peers.toml").exists()


def test_a_changed_key_is_told_loudly(alice: Person, bob: Person, run: Run, tmp_path: Path) -> None:
    other = Person(run, tmp_path / "other")
    assert alice("peer", "add", "bob", "--key", bob.id, "--address", BOB_AT).code == 0
    for command in (("peer", "add"), ("keys", "trust")):
        told = alice(*command, "bob", "--key", other.id)
        assert told.code == 1 and "HAS CHANGED" in told.err
        for person in (bob, other):
            assert person.id in told.err and safety_words(public_key_of(person.id)) in told.err
        assert f"keys trust bob --key {other.id} --replace" in told.err
        assert alice.book.is_trusted(public_key_of(bob.id))
    assert alice("keys", "trust", "bob", "--key", alice.id, "--replace").code == 2
    told = alice("keys", "trust", "bob", "--key", other.id, "--replace")
    assert told.code == 0 and other.id in told.out.decode()
    assert alice.book.is_trusted(public_key_of(other.id))
    assert not alice.book.is_trusted(public_key_of(bob.id))


def test_a_card_with_the_new_key(alice: Person, bob: Person, run: Run, tmp_path: Path) -> None:
    other = Person(run, tmp_path / "other")
    alice("peer", "add", "bob", "--key", bob.id, "--address", BOB_AT)
    card = other("keys", "show", "--card", "--address", "tcp://new.example").out.decode()
    assert alice("keys", "trust", "bob", "--card", card).code == 1
    assert alice("keys", "trust", "bob", "--card", card, "--replace").code == 0
    changed = alice.book.by_name("bob")
    assert changed is not None and changed.addresses == ("tcp://new.example",)
    assert decode_card(changed.card).public == changed.public


def test_pinned_is_trusted_by_name_and_the_words_are_shown(alice: Person, bob: Person) -> None:
    alice.book.pin(public_key_of(bob.id), BOB_AT)
    assert b"pinned" in alice("peer", "ls").out
    told = alice("keys", "trust", "203.0.113.7:7400")
    assert told.code == 0 and safety_words(public_key_of(bob.id)) in told.out.decode()
    assert alice.book.is_trusted(public_key_of(bob.id))


def test_pinned_gets_the_name_that_it_is_added_by(alice: Person, bob: Person) -> None:
    alice.book.pin(public_key_of(bob.id), BOB_AT)
    assert alice("peer", "add", "bob", "--key", bob.id).code == 0
    [peer] = alice.book.peers
    assert (peer.name, peer.addresses) == ("bob", (BOB_AT,))
    assert alice("peer", "add", "rob", "--key", bob.id).code == 1


def test_revoked_comes_back_only_by_replace(alice: Person, bob: Person) -> None:
    alice("peer", "add", "bob", "--key", bob.id)
    [told] = objects(alice("keys", "revoke", "bob", "--json"))
    assert told["trust"] == "revoked" and not alice.book.is_trusted(public_key_of(bob.id))
    for words_ in (("peer", "add", "bob", "--key", bob.id), ("keys", "trust", "bob")):
        refused = alice(*words_)
        assert refused.code == 1 and "--replace" in refused.err
    assert alice("keys", "trust", bob.id, "--replace").code == 0
    assert alice.book.is_trusted(public_key_of(bob.id))
    assert alice("peer", "rm", "bob").code == 0 and len(alice.book) == 0


def test_a_name_in_a_command_to_copy_is_quoted(alice: Person, bob: Person) -> None:
    alice("peer", "add", "b'$(x) b", "--key", bob.id)
    alice("keys", "revoke", "b'$(x) b")
    assert """keys trust 'b'"'"'$(x) b' --replace""" in alice("keys", "trust", "b'$(x) b").err


def test_a_damaged_book_is_told_and_left_alone(alice: Person, bob: Person) -> None:
    book = alice.folder / "peers.toml"
    book.write_text("[[peer")
    book.chmod(0o600)
    for words_ in (("peer", "ls"), ("peer", "add", "bob", "--key", bob.id)):
        told = alice(*words_)
        assert told.code == 1 and str(book) in told.err
    assert book.read_text() == "[[peer"


def test_a_node_that_runs_has_the_same_identity(alice: Person) -> None:
    with serving("--data", str(alice.folder)):
        assert json.loads(alice("keys", "show", "--json").out)["id"] == alice.id
        assert alice("peer", "add", "x", "--key", "e" * 51 + "q").code == 0


@pytest.mark.parametrize("family", ["keys", "peer"])
def test_help_is_there_for_every_command(run: Run, family: str) -> None:
    page = run(family, "--help").out.decode()
    names = {"keys": ("new", "show", "trust", "list", "revoke"), "peer": ("add", "ls", "rm")}
    for name in names[family]:
        assert f"    {name} " in page
        assert b"example" in run(family, name, "--help").out

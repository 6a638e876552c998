"""`millpond keys` and `millpond peer`: what they print, exit codes, and the files they leave."""

from __future__ import annotations

import io
import json
import stat
import sys
import time
from pathlib import Path

import pytest

from millpond.node.cli.main import main
from millpond.node.data_folder import FolderLock
from millpond.node.peers.address_book import AddressBook
from millpond.node.peers.card import ContactCard, decode_card, encode_card
from millpond.node.peers.fingerprint import fingerprint, fingerprint_words
from millpond.node.peers.identity import load_identity, public_key_of
from millpond.node.peers.peer import Trust
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
        "words": fingerprint_words(identity.public),
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
    assert told.code == 0 and fingerprint_words(card.public) in told.out.decode()
    assert alice.book.is_contact(card.public)
    [kept] = alice.book.peers
    assert decode_card(kept.card).prekey == card.prekey
    [known] = objects(alice("keys", "show", "bob", "--json"))
    [own] = objects(bob("keys", "show", "--json"))
    assert own.items() <= known.items()
    assert (known["name"], known["trust"]) == ("bob", "added")
    [listed], [key] = (objects(alice(each, "list", "--json")) for each in ("peer", "keys"))
    assert listed == key | {"version": 1, "unconfirmed": 0}
    line = f"bob  added     {bob.id}  version=1 unconfirmed=0 {BOB_AT}\n"
    assert line == alice("peer", "ls").out.decode()
    assert fingerprint(card.public) in alice("keys", "list").out.decode()
    [in_json] = objects(bob("keys", "show", "--card", "--json"))
    assert decode_card(in_json["card"]).addresses == ()


def test_an_older_card_does_not_bring_old_addresses_back(alice: Person, bob: Person) -> None:
    """P12."""
    cards = [
        bob("keys", "show", "--card", "--address", f"tcp://203.0.113.{number}").out.decode()
        for number in range(3)
    ]
    assert alice("peer", "add", "bob", "--card", cards[1]).code == 0
    for command in (("peer", "add"), ("peer", "relay"), ("keys", "trust")):
        told = alice(*command, "bob", "--card", cards[0])
        assert told.code == 1 and "newer card" in told.err
        [known] = alice.book.peers
        assert (known.addresses, known.trust) == (("tcp://203.0.113.1",), Trust.ADDED)
    for card in cards[1:]:
        assert alice("peer", "add", "bob", "--card", card).code == 0
    assert [each.addresses for each in alice.book.peers] == [("tcp://203.0.113.2",)]


def test_a_card_of_the_future_is_refused(
    alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep all genuine cards out."""
    later = ContactCard(public_key_of(bob.id), (), (), None, time.time() + 7200)
    card = encode_card(later, load_identity(bob.folder / "identity.key"))
    told = alice("peer", "add", "bob", "--card", card)
    assert told.code == 1 and "future" in told.err and len(alice.book) == 0


@pytest.mark.parametrize("option", ["--address", "--relay"])
def test_a_card_leads_to_this_machine_only_if_asked_for(
    alice: Person, bob: Person, option: str
) -> None:
    """P12."""
    card = bob("keys", "show", "--card", option, "tcp://127.0.0.1:22").out.decode()
    for command in (("peer", "add"), ("peer", "relay")):
        told = alice(*command, "bob", "--card", card)
        assert told.code == 2 and "--allow-local-addresses" in told.err
        assert "tcp://127.0.0.1:22" in told.err and len(alice.book) == 0
    assert alice("peer", "add", "bob", "--card", card, "--allow-local-addresses").code == 0
    assert len(alice.book) == 1


def test_contacts_follow_a_key_that_the_old_one_has_signed(alice: Person, bob: Person) -> None:
    alice("peer", "add", "bob", "--key", bob.id, "--address", BOB_AT)
    alice.book.verify("bob")
    rotated = bob("keys", "rotate")
    assert rotated.code == 0 and bob.id in rotated.out.decode()
    [own] = objects(bob("keys", "show", "--json"))
    assert own["id"] != bob.id
    card = bob("keys", "show", "--card").out.decode()
    told = alice("peer", "add", "bob", "--card", card)
    assert told.code == 0 and told.out.startswith(b"bob: added\n")
    assert bob.id in told.err and "has a new key" in told.err and "not verified" in told.err
    new, old = alice.book.by_name("bob"), alice.book.resolve(bob.id)
    assert new is not None and (new.id, new.addresses) == (own["id"], (BOB_AT,))
    assert old is not None and (old.name, old.trust) == ("bob (old 1)", Trust.BLOCKED)
    again = alice("peer", "add", "bob", "--card", card)
    assert again.code == 0 and "new key" not in again.err


def test_a_contact_that_missed_a_rotation_follows_the_next_by_another_command(
    alice: Person, bob: Person
) -> None:
    alice("peer", "relay", "rob", "--key", bob.id)
    for _ in range(2):
        bob("keys", "rotate")
    card = bob("keys", "show", "--card").out.decode()
    told = alice("keys", "trust", "rob", "--card", card)
    assert told.code == 0 and told.out.startswith(b"rob: relay\n") and "new key" in told.err


def test_everybody_else_sees_a_break(alice: Person, bob: Person, run: Run, tmp_path: Path) -> None:
    """A key that was blocked is followed nowhere, and a card without statements by nobody."""
    mallory = Person(run, tmp_path / "mallory")
    alice("peer", "add", "bob", "--key", bob.id)
    forged = mallory("keys", "show", "--card").out.decode()
    told = alice("peer", "add", "bob", "--card", forged)
    assert told.code == 1 and "HAS CHANGED" in told.err
    alice("peer", "block", "bob")
    bob("keys", "rotate")
    card = bob("keys", "show", "--card").out.decode()
    assert alice("peer", "add", "bob", "--card", card).code == 1
    assert [each.trust for each in alice.book.peers] == [Trust.BLOCKED]


def test_the_key_of_a_node_that_runs_is_not_rotated(bob: Person) -> None:
    lock = FolderLock(bob.folder)
    try:
        told = bob("keys", "rotate")
    finally:
        lock.release()
    assert told.code == 1 and "in use" in told.err
    assert objects(bob("keys", "show", "--json"))[0]["id"] == bob.id


def test_a_card_from_a_pipe(alice: Person, bob: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    line = bob("keys", "show", "--card").out.decode()
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line[:70]}\n{line[70:]}\n"))
    assert alice("peer", "add", "bob", "--card", "-").code == 0
    assert alice.book.by_name("bob") is not None


def test_a_relay_may_be_named(alice: Person, bob: Person) -> None:
    told = alice("peer", "add", "carol", "--key", bob.id)
    assert told.code == 0
    other = "e" * 51 + "q"
    assert alice("peer", "relay", "carol").code == 0
    told = alice("peer", "add", "dave", "--key", other, "--relay", "carol")
    assert told.code == 2 and "no address of 'carol'" in told.err
    assert alice("peer", "add", "carol", "--key", bob.id, "--address", BOB_AT).code == 0
    told = alice("peer", "add", "dave", "--key", other, "--relay", "carol")
    assert told.code == 2 and "`millpond peer relay carol`" in told.err
    assert objects(alice("peer", "relay", "carol", "--json"))[0]["trust"] == "relay"
    assert alice("peer", "add", "dave", "--key", other, "--relay", "carol").code == 0
    dave = alice.book.by_name("dave")
    assert dave is not None and dave.relays == (f"{bob.id}@{BOB_AT}",)
    card = decode_card(alice("keys", "show", "--card", "--relay", "carol").out.decode())
    assert card.relays == dave.relays
    assert alice("peer", "add", "eve", "--key", other, "--relay", "nobody").code == 4


def test_a_relay_is_added_as_one_and_a_peer_is_blocked(alice: Person, bob: Person) -> None:
    told = alice("peer", "relay", "carol", "--key", bob.id, "--address", BOB_AT)
    assert told.code == 0 and told.out.startswith(b"carol: relay\n")
    assert alice.book.is_relay(public_key_of(bob.id))
    assert alice("peer", "list").out.decode() == f"carol  relay     {bob.id}  {BOB_AT}\n"
    assert alice("peer", "block", "carol").out.startswith(b"carol: blocked\n")
    assert not alice.book.is_relay(public_key_of(bob.id))
    assert alice("peer", "relay", "carol").code == 1


def test_a_peer_is_verified_by_the_number_that_it_sees(alice: Person, bob: Person) -> None:
    alice("peer", "add", "bob", "--key", bob.id)
    bob("peer", "add", "alice", "--key", alice.id)
    shown = bob("peer", "verify", "alice")
    assert shown.code == 0 and shown.out.endswith(b"\nalice: added\n")
    number = shown.out.decode().rpartition("\nalice")[0]
    [unchanged] = objects(alice("peer", "verify", "bob", "--json"))
    assert unchanged["trust"] == "added" and unchanged["safety_number"].split() == number.split()
    wrong = number.replace("1", "2") if "1" in number else number.replace("2", "1")
    for given, code, reason in ((wrong, 1, "DIFFER"), (number[:-1], 2, "60 digits")):
        told = alice("peer", "verify", "bob", "--number", given)
        assert told.code == code and reason in told.err
        assert [each.trust for each in alice.book.peers] == [Trust.ADDED]
    assert alice("peer", "verify", "bob", "--number", number).out.endswith(b"\nbob: verified\n")
    assert [each.trust for each in alice.book.peers] == [Trust.VERIFIED]
    assert alice("peer", "add", "bob", "--key", bob.id).out.startswith(b"bob: verified\n")


def test_only_contacts_are_verified(alice: Person, bob: Person) -> None:
    alice("peer", "relay", "bob", "--key", bob.id)
    bob("peer", "add", "alice", "--key", alice.id)
    number = bob("peer", "verify", "alice").out.decode().rpartition("\nalice")[0]
    told = alice("peer", "verify", "bob", "--number", number)
    assert told.code == 2 and "relay" in told.err and alice.book.is_relay(public_key_of(bob.id))


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
            assert person.id in told.err and fingerprint_words(public_key_of(person.id)) in told.err
        assert f"keys trust bob --key {other.id} --replace" in told.err
        assert alice.book.is_contact(public_key_of(bob.id))
    assert alice("keys", "trust", "bob", "--key", alice.id, "--replace").code == 2
    told = alice("keys", "trust", "bob", "--key", other.id, "--replace")
    assert told.code == 0 and other.id in told.out.decode()
    assert alice.book.is_contact(public_key_of(other.id))
    assert not alice.book.is_contact(public_key_of(bob.id))


def test_a_card_with_the_new_key(alice: Person, bob: Person, run: Run, tmp_path: Path) -> None:
    other = Person(run, tmp_path / "other")
    alice("peer", "add", "bob", "--key", bob.id, "--address", BOB_AT)
    card = other("keys", "show", "--card", "--address", "tcp://new.example").out.decode()
    assert alice("keys", "trust", "bob", "--card", card).code == 1
    assert alice("keys", "trust", "bob", "--card", card, "--replace").code == 0
    changed = alice.book.by_name("bob")
    assert changed is not None and changed.addresses == ("tcp://new.example",)
    assert decode_card(changed.card).public == changed.public


def test_pinned_is_contact_by_name_and_the_words_are_shown(alice: Person, bob: Person) -> None:
    alice.book.pin(public_key_of(bob.id), BOB_AT)
    assert b"pinned" in alice("peer", "ls").out
    told = alice("keys", "trust", "203.0.113.7:7400")
    assert told.code == 0 and fingerprint_words(public_key_of(bob.id)) in told.out.decode()
    assert alice.book.is_contact(public_key_of(bob.id))


def test_pinned_gets_the_name_that_it_is_added_by(alice: Person, bob: Person) -> None:
    alice.book.pin(public_key_of(bob.id), BOB_AT)
    assert alice("peer", "add", "bob", "--key", bob.id).code == 0
    [peer] = alice.book.peers
    assert (peer.name, peer.addresses) == ("bob", (BOB_AT,))
    assert alice("peer", "add", "rob", "--key", bob.id).code == 1


def test_blocked_comes_back_only_by_replace(alice: Person, bob: Person) -> None:
    alice("peer", "add", "bob", "--key", bob.id)
    [told] = objects(alice("keys", "revoke", "bob", "--json"))
    assert told["trust"] == "blocked" and not alice.book.is_contact(public_key_of(bob.id))
    for words_ in (("peer", "add", "bob", "--key", bob.id), ("keys", "trust", "bob")):
        refused = alice(*words_)
        assert refused.code == 1 and "--replace" in refused.err
    assert alice("keys", "trust", bob.id, "--replace").code == 0
    assert alice.book.is_contact(public_key_of(bob.id))
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
    names = {"keys": ("new", "show", "trust", "ls", "revoke"), "peer": ("add", "ls", "rm")}
    for name in names[family]:
        assert f"    {name} " in page
        assert b"example" in run(family, name, "--help").out


def test_the_delivery_token_is_in_the_card_and_replaced_by_a_command(bob: Person) -> None:
    def token() -> bytes:
        return decode_card(bob("keys", "show", "--card").out.decode()).delivery_token

    first = token()
    assert len(first) == 16 and token() == first
    assert bob("peer", "token").out == b"current token  works until it is replaced\n"
    told = bob("peer", "token", "rotate")
    replaced, current, old = told.out.decode().splitlines()
    assert replaced.startswith("the delivery token is replaced: give contacts the new card")
    assert current == "current token  works until it is replaced"
    assert old.startswith("old token      works until ") and first.hex() not in str(told)
    second = token()
    assert second != first
    newest, older = objects(bob("peer", "token", "--json"))
    assert (newest["current"], newest["until"], older["current"]) == (True, None, False)
    assert abs(older["until"] - time.time() - 30 * 86_400) < 60
    told = bob("peer", "token", "rotate", "--end-old")
    assert told.out == (
        b"the delivery token is replaced: give contacts the new card (millpond keys show --card)\n"
        b"current token  works until it is replaced\n"
    )
    assert token() not in (first, second)
    assert bob("peer", "token", "--end-old").code == 2
    assert stat.S_IMODE((bob.folder / "delivery-tokens").stat().st_mode) == 0o600


def test_a_damaged_file_of_delivery_tokens_is_named(bob: Person) -> None:
    bob("peer", "token")
    (bob.folder / "delivery-tokens").write_text("millpond delivery tokens 2\n")
    for words in (("peer", "token"), ("peer", "token", "rotate"), ("keys", "show", "--card")):
        told = bob(*words)
        assert told.code == 1 and "delivery-tokens: damaged, or of a later version" in told.err


@pytest.mark.parametrize(
    ("where", "of_card", "of_peer"),
    [
        ((), "no address and no relay", "messages wait until bob dials this node"),
        (("--address", "tcp://127.0.0.1:7400"), "no other machine reaches", ""),
        (("--address", "tcp://192.168.1.7:7400"), "only a private network", "private network"),
        (("--address", "tcp://bob.example:7400"), "", ""),
        (("--address", "tcp://8.8.8.8:7400"), "", ""),
    ],
)
def test_a_card_that_does_not_lead_everywhere_says_so(
    alice: Person, bob: Person, where: tuple[str, ...], of_card: str, of_peer: str
) -> None:
    """When it is made, and when it is added."""
    made = bob("keys", "show", "--card", *where)
    added = alice("peer", "add", "bob", "--card", made.out.decode(), "--allow-local-addresses")
    assert (made.code, added.code) == (0, 0)
    for told, expected in ((made, of_card), (added, of_peer)):
        if expected:
            assert told.err.startswith("millpond: warning: ") and expected in told.err
        else:
            assert told.err == ""

"""`--identity` and `--peer` of commands: real nodes and commands as processes (PS-01, 3b)."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copyfile

import pytest

from millpond.node.peers.address_book import AddressBook, Trust
from tests.node.processes import Serving, command, command_here, environment, serving


class Folder:
    """A data folder with an identity."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: str = json.loads(self.says("keys", "new", "--json"))["id"]

    def says(self, *words: str) -> str:
        """The output of a command about the folder."""
        done = command_here(*words, "--data", str(self.path), env=environment())
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def adds(self, name: str, other: Folder) -> None:
        self.says("peer", "add", name, "--key", other.id)

    def asks(
        self, node: Serving, *words: str, code: int = 0, scheme: str = "tcp"
    ) -> tuple[str, str]:
        """Run a command at the node as this identity; gives its output, and its errors."""
        return ask(node, *words, "--identity", str(self.path), code=code, scheme=scheme)

    @property
    def book(self) -> AddressBook:
        return AddressBook(self.path / "peers.toml")


def ask(node: Serving, *words: str, code: int = 0, scheme: str = "tcp") -> tuple[str, str]:
    done = command_here(*words, "--connect", node.urls[scheme], env=environment())
    assert done.returncode == code, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


@pytest.fixture
def alice(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "alice")


@pytest.fixture
def bob(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "bob")


@pytest.mark.parametrize("scheme", ["tcp", "ws"])
def test_a_trusted_identity_comes_in_where_others_do_not(
    alice: Folder, bob: Folder, tmp_path: Path, scheme: str
) -> None:
    """docs/internals/peers.md: what a trusted peer may do; everything else needs a token."""
    tokens = tmp_path / "tokens"
    tokens.write_text("letmein put,list chat/*\n")
    tokens.chmod(0o600)
    bob.adds("alice", alice)
    alice.adds("bob", bob)
    own_box, put = f"mail/{alice.id}", ("put", "chat/1", "x")
    with serving("--data", str(bob.path), "--token-file", str(tokens)) as node:
        known = ("--peer", "bob")
        assert alice.asks(node, "list", own_box, *known, scheme=scheme)[0] == ""
        err = ask(node, "list", own_box, code=5, scheme=scheme)[1]
        assert "--identity" in err
        assert (
            "identity has no rights for" in alice.asks(node, *put, *known, code=5, scheme=scheme)[1]
        )
        with_token = (*put, *known, "--token-file", str(tokens))
        assert alice.asks(node, *with_token, scheme=scheme)[0].strip().isdigit()


def test_the_node_has_to_be_the_peer_that_was_named(alice: Folder, bob: Folder) -> None:
    alice.adds("somebody", Folder(alice.path.parent / "carol"))
    with serving("--data", str(bob.path)) as node:
        key = ("--identity", str(alice.path / "identity.key"))
        out, err = ask(node, "ping", "-c", "1", *key, "--peer", bob.id)
        assert out and not err
        err = alice.asks(node, "ping", "--peer", "somebody", code=1)[1]
        assert f"the node is {bob.id}, not " in err
        err = ask(node, "ping", "-c", "1", *key)[1]
        assert f"the node is {bob.id}; --peer makes sure" in err
        err = bob.asks(node, "ping", "--peer", alice.id, code=1)[1]
        assert "remove --identity" in err


def test_a_new_node_is_pinned_and_another_in_its_place_is_loud(alice: Folder, bob: Folder) -> None:
    ping = ("ping", "-c", "1")
    with serving("--data", str(bob.path)) as node:
        where = node.urls["tcp"].removeprefix("tcp://")
        assert f"not seen before: pinned as '{where}'" in alice.asks(node, *ping)[1]
        assert alice.asks(node, *ping)[1] == ""
        (pinned,) = alice.book.peers
        assert (pinned.name, pinned.trust) == (where, Trust.PINNED)
        assert alice.asks(node, *ping, "--peer", where)[1] == ""
    mallory = Folder(bob.path.parent / "mallory")
    with serving("--data", str(mallory.path), "--p2p", where, "--ws", "127.0.0.1:0") as node:
        err = alice.asks(node, *ping, code=1)[1]
        assert "HAS CHANGED" in err and bob.id in err and mallory.id in err
        assert list(alice.book.peers) == [pinned]
    alice.says("keys", "revoke", where)
    with serving("--data", str(bob.path), "--p2p", where, "--ws", "127.0.0.1:0") as node:
        for known in ((), ("--peer", bob.id)):
            assert "is blocked" in alice.asks(node, *ping, *known, code=1)[1]


def test_streams_are_reached_with_an_identity(alice: Folder, bob: Folder, tmp_path: Path) -> None:
    with serving("--data", str(bob.path)) as node:
        known = ("--identity", str(alice.path), "--peer", bob.id)
        ask(node, "stream", "create", "orders", *known)
        ask(node, "stream", "append", "orders", "one", *known)
        assert ask(node, "stream", "read", "orders", *known)[0] == "one\n"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--peer", "bob"), "--peer needs --identity"),
        (("--identity", "{}/nowhere"), "there is no identity"),
        (("--identity", "{}/open.key"), "--identity: "),
        (("--identity", "{}/alice", "--peer", "nobody"), "there is no peer 'nobody'"),
        (("--identity", "{}/alice/identity.key", "--peer", "bob"), "is not a peer id"),
    ],
)
def test_what_cannot_be_meant_is_told_in_a_line(
    alice: Folder, tmp_path: Path, words: tuple[str, ...], complaint: str
) -> None:
    copyfile(alice.path / "identity.key", tmp_path / "open.key")
    (tmp_path / "open.key").chmod(0o644)
    done = command("ping", *(word.format(tmp_path) for word in words))
    assert done.returncode == 2 and complaint in done.stderr.decode()
    assert len(done.stderr.splitlines()) == 1

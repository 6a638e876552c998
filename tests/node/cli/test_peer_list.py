"""`millpond peer list`: what a running node says of its peers, and what its folder says."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.node.cli.connection import operator_cookie
from tests.node.chat.chat_processes import ChatProcess

UNKNOWN = {"version": 1, "unconfirmed": 0}
WAITING = {"version": 2, "unconfirmed": 1}


@pytest.fixture
def alice(tmp_path: Path) -> ChatProcess:
    """She has the card of Bob, who is away."""
    alice, bob = ChatProcess(tmp_path, "alice"), ChatProcess(tmp_path, "bob")
    alice.meet(bob)
    return alice


def listed(person: ChatProcess) -> dict[str, Any]:
    [peer] = [json.loads(line) for line in person.do("peer", "list", "--json").splitlines()]
    return {name: peer[name] for name in UNKNOWN}


def test_a_stopped_node_and_a_running_one_say_the_same(alice: ChatProcess) -> None:
    assert listed(alice) == UNKNOWN
    with alice.serving():
        alice.do("put", "--to", "bob", "notes", "hello")
        assert listed(alice) == WAITING
        # Somebody reads the folder of a node that runs.
        cookie = alice.folder / "operator.cookie"
        cookie.rename(cookie.with_name("away"))
        assert listed(alice) == WAITING
        cookie.with_name("away").rename(cookie)
    before = sorted(path.name for path in alice.folder.iterdir())
    assert listed(alice) == WAITING
    assert sorted(path.name for path in alice.folder.iterdir()) == before
    assert "version=2 unconfirmed=1 tcp://" in alice.do("peer", "list")


def test_a_running_node_is_asked(alice: ChatProcess) -> None:
    """It knows without its files, and whatever access rules say."""
    rules = alice.folder / "access.conf"
    rules.write_text("# nobody\n")
    rules.chmod(0o600)
    with alice.serving():
        shutil.copy(alice.folder / "operator.cookie", alice.folder / "token")
        alice.do("put", "--to", "bob", "notes", "x", "--token-file", str(alice.folder / "token"))
        (alice.folder / "peers.db").rename(alice.folder / "away")
        try:
            assert listed(alice) == WAITING
        finally:
            (alice.folder / "away").rename(alice.folder / "peers.db")


def test_another_node_at_that_address_is_not_believed(alice: ChatProcess, tmp_path: Path) -> None:
    """A folder that was copied has the cookie of the node that it is a copy of."""
    carol = ChatProcess(tmp_path, "carol")
    with alice.serving():
        alice.do("put", "--to", "bob", "notes", "hello")
        for name in ("operator.cookie", "listeners", "peers.toml"):
            shutil.copy(alice.folder / name, carol.folder)
        assert listed(carol) == UNKNOWN


def test_a_damaged_file_is_named(alice: ChatProcess) -> None:
    (alice.folder / "peers.db").write_bytes(b"no database" * 100)
    assert "peers.db" in alice.do("peer", "list", code=1)


def test_where_the_system_tells_no_users_commands_show_the_cookie_of_their_folder(
    alice: ChatProcess,
) -> None:
    """To the node of the folder, and to nothing else that listens on this machine."""
    port = alice.address.rpartition(":")[2]
    own, default = f"tcp://{alice.address}", {"XDG_DATA_HOME": str(alice.folder.parent)}
    assert operator_cookie(own, alice.env, "darwin") is None
    with alice.serving():
        cookie = (alice.folder / "operator.cookie").read_text().split()[0]
        assert operator_cookie(own, alice.env, "darwin") == cookie
        assert operator_cookie(f"tcp://localhost:{port}", alice.env, "darwin") == cookie
        assert operator_cookie(own, alice.env, "linux") is None
        for other in ("tcp://127.0.0.1:1", f"tcp://203.0.113.7:{port}", f"ws://{alice.address}"):
            assert operator_cookie(other, alice.env, "darwin") is None
        assert operator_cookie(own, default, "darwin") is None
        (alice.folder / "operator.cookie").chmod(0o644)
        assert operator_cookie(own, alice.env, "darwin") is None


@pytest.mark.together("mdns")  # else they find each other
def test_nodes_on_this_network_are_listed_and_added_by_number(tmp_path: Path) -> None:
    near = ("--discover", "--discover-interface", "127.0.0.1")
    carol, dave = ChatProcess(tmp_path, "carol", *near), ChatProcess(tmp_path, "dave", *near)
    assert "no node runs" in carol.do("peer", "discovered", code=1)
    with carol.serving(), dave.serving():
        deadline = time.monotonic() + 60
        while not (rows := carol.do("peer", "discovered", "--json").splitlines()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        [found] = map(json.loads, rows)
        assert found["name"] is None and found["address"] == dave.address
        shown = carol.do("peer", "discovered")
        assert shown == f"1  unverified  {found['id']}  {dave.address}\n"
        carol.do("peer", "discovered", "--add", "2", "dave", code=4)
        carol.do("peer", "discovered", "--add", "1", "dave")
        assert f"dave  added     {found['id']}" in carol.do("peer", "ls")
        while not carol.do("peer", "discovered").startswith("1  dave  "):
            assert time.monotonic() < deadline  # the node looks at its address book every 2 s
            time.sleep(0.1)


def test_a_node_without_discovery_says_what_to_do(alice: ChatProcess) -> None:
    with alice.serving():
        assert "start it with --discover" in alice.do("peer", "discovered", code=1)

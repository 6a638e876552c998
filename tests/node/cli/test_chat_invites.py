"""Invites, verification and blocking by commands and in a dialogue: processes and a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from millpond.node.peers.identity import public_key_of
from millpond.node.peers.safety_number import safety_number
from tests.node.chat.chat_processes import ChatProcess, Terminal

Pair = tuple[ChatProcess, ChatProcess]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Alice and Bob, who do not know each other."""
    folder = tmp_path_factory.mktemp("people")
    alice, bob = ChatProcess(folder, "alice"), ChatProcess(folder, "bob")
    with ExitStack() as stack:
        for each in (alice, bob):
            stack.enter_context(each.serving())
        yield alice, bob


def test_an_invite_is_listed_and_cancelled(pair: Pair) -> None:
    alice, _ = pair
    assert alice.do("chat", "invites") == "there are no open invites\n"
    told = json.loads(alice.do("chat", "invite", "carol", "--for", "1h", "--json"))
    assert (told["peer"], told["reach"], told["relays"]) == ("carol", "machine", [])
    assert alice.do("chat", "invites").startswith("carol  until 20")
    assert alice.do("chat", "invites", "cancel", "carol") == "the invite for carol is cancelled\n"
    alice.do("chat", "invites", "cancel", "carol", code=4)
    for words in (["invite"], ["accept", "x"], ["invites", "end", "x"], ["invite", "x", "y"]):
        alice.do("chat", *words, code=2)
    assert "for 60 s at least" in alice.do("chat", "invite", "carol", "--for", "1", code=1)
    assert "damaged" in alice.do("chat", "accept", "millpond:abc.def", "carol", code=1)


def test_a_dialogue_invites_adds_verifies_and_blocks(pair: Pair) -> None:
    alice, bob = pair
    alice.do("chat", "accept", "-", "bob", typed=bob.do("chat", "invite", "alice").encode())
    with Terminal(alice, "chat", "bob", columns=100) as alices:
        alices.expect("both sides are added")
        alices.type("/invite dora\r")
        alices.expect("▀", "millpond:", "give this link to dora alone", "no other machine")
        alices.type("/add nonsense dora\r")
        alices.expect("not added:")
        alices.type("/verify\r")
        alices.expect("▀", "sees the same number", "or have the code above scanned")
        alices.type("/verify 12345\r")
        alices.expect("--- ")
        ids = [json.loads(each.do("keys", "show", "--json"))["id"] for each in (alice, bob)]
        number = safety_number(*map(public_key_of, ids))
        alices.type(f"/verify {number}\r")
        alices.expect("bob: verified")
        alices.type("/block\r")
        alices.expect("/block yes")
        alices.type("/block yes\r")
        alices.expect("bob is blocked")
        assert alices.left() == 0
    assert "blocked" in alice.do("peer", "ls")
    assert bob.do("chat").startswith("alice is ")

"""`millpond chat requests`, at a node that is a process."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import conversation_stream
from millpond.node.outbox.relayed_message import (
    RelayedMessage,
    encode_relayed_message,
    relayed_deadline,
)
from millpond.node.peers.identity import FILE_NAME, Identity, load_or_create
from millpond.node.peers.keyring import PREKEYS_FOLDER
from millpond.node.peers.prekeys import Prekeys
from millpond.node.peers.sealed_message import seal_message
from tests.node.chat.chat_processes import PATIENCE_S, ChatProcess
from tests.node.outbox.peer_nodes import message


@pytest.fixture(scope="module")
def bob(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChatProcess]:
    """Bob, whose node keeps message requests."""
    bob = ChatProcess(tmp_path_factory.mktemp("people"), "bob")
    with bob.serving():
        yield bob


def write_to(bob: ChatProcess, stranger: Identity, said: str) -> None:
    """Leave a chat message in the mailbox of Bob's node, as his relay would."""
    identity = load_or_create(bob.folder / FILE_NAME, os.urandom)
    prekeys = Prekeys(bob.folder / PREKEYS_FOLDER, identity, time.time, os.urandom)
    clear = encode_payload(Text("5f3a9c01", 1, int(time.time() * 1000), said))
    content = message(clear, conversation_stream(stranger.public))
    sealed = seal_message(
        content,
        sender=stranger,
        recipient=identity.public,
        prekey=prekeys.current().public,
        entropy=os.urandom,
    )
    deadline = relayed_deadline(content.deadline / 1000)
    relayed = RelayedMessage(1, deadline, identity.public, b"", sealed)
    bob.do("put", f"mail/{identity.id}", typed=encode_relayed_message(relayed))


def requests(bob: ChatProcess, count: int) -> list[dict[str, Any]]:
    """The requests, once there are so many."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = [json.loads(line) for line in bob.do("chat", "requests", "--json").splitlines()]
        if len(found) == count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_a_request_is_shown_and_accepted(bob: ChatProcess) -> None:
    stranger = Identity.new(os.urandom)
    assert bob.do("chat", "requests") == "there are no message requests\n"
    write_to(bob, stranger, "hello\x1b[2J\nit is me")
    (found,) = requests(bob, 1)
    assert found["id"] == stranger.id and found["texts"][0]["text"] == "hello\x1b[2J\nit is me"
    first, second, third, answers = bob.do("chat", "requests").splitlines()
    assert first == f"{stranger.id} (unknown, not verified)"
    assert second.endswith("  hello\\x1b[2J") and third == "        it is me"
    assert answers.startswith("answer with millpond chat requests accept ID NAME")
    assert bob.do("chat").splitlines()[-1] == "message requests: 1 (millpond chat requests)"
    told = bob.do("chat", "requests", "accept", stranger.id, "carol")
    assert told == "carol: added, not verified (millpond peer verify carol)\n"
    requests(bob, 0)
    text = ""
    deadline = time.monotonic() + PATIENCE_S
    while not text and time.monotonic() < deadline:
        text = bob.do("chat", "carol", "--history", "5")
    assert text == "carol: hello\\x1b[2J\n  it is me\n"
    again = bob.do("chat", "requests", "accept", stranger.id, "carol", code=4)
    assert again.startswith(f"millpond chat: there is no message request of '{stranger.id}'")


def test_a_request_is_refused_or_blocked(bob: ChatProcess) -> None:
    for words, is_blocked in ((["ignore"], False), (["block"], True), (["refuse"], False)):
        stranger = Identity.new(os.urandom)
        write_to(bob, stranger, "hello")
        requests(bob, 1)
        told = bob.do("chat", "requests", *words, stranger.id)
        assert told == f"{stranger.id}: {'blocked' if is_blocked else 'ignored'}\n"
        requests(bob, 0)
        assert (stranger.id in bob.do("peer", "list", "--json")) is is_blocked


def test_a_request_is_not_accepted_under_the_name_of_another_peer(bob: ChatProcess) -> None:
    """That is no change of the other one's key."""
    stranger = Identity.new(os.urandom)
    bob.do("peer", "add", "dave", "--key", Identity.new(os.urandom).id)
    write_to(bob, stranger, "hello")
    requests(bob, 1)
    told = bob.do("chat", "requests", "accept", stranger.id, "dave", code=1)
    assert told == "millpond chat: 'dave' is another peer: choose another name\n"
    requests(bob, 1)
    bob.do("chat", "requests", "refuse", stranger.id)


def test_words_that_make_no_command_are_told(bob: ChatProcess) -> None:
    for words in (
        ["requests", "accept"],
        ["requests", "accept", "x"],
        ["requests", "remove", "x"],
        ["requests", "--block"],
        ["carol", "and", "dave"],
        ["carol", "--block"],
    ):
        bob.do("chat", *words, code=2)
    told = bob.do("chat", "requests", "refuse", "nobody", code=4)
    assert told == (
        "millpond chat: there is no message request of 'nobody'; `millpond chat requests`"
        " lists them\n"
    )

"""Chats of nodes whose folders are encrypted: people notice nothing, and no file has a text."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from millpond.node.chat.records import Kind, State, conversation_stream
from millpond.node.config import ConfigError
from millpond.node.node import Node
from millpond.node.peers.contact_keys import OwnContactKey
from tests.node import encrypted_folders as folders
from tests.node.chat.chat_client import ask, couple, history, received, say, states
from tests.node.chat.test_message_requests import ACCEPT, REFUSE, chat_to, listed, text
from tests.node.outbox.peer_nodes import PeerNode, leave, read, until

pytestmark = pytest.mark.anyio

CLEAR = "the treasure is buried under the old oak"
BEFORE = "it was said before there was a passphrase: " + CLEAR


async def test_both_chat_as_ever_and_no_file_has_a_text(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await say(here, "bob", BEFORE)
        await received(there, alice, 1)
        await states(here, bob, State.DELIVERED)
    needles = [CLEAR.encode()]
    for each in (alice, bob):
        assert folders.files_with(each.folder, needles)
        needles += folders.secrets_of(each.folder)
        folders.encrypt(each.folder)
    file = folders.passphrase_file(tmp_path)
    async with alice.node(passphrase_file=file) as here, bob.node(passphrase_file=file) as there:
        for number in range(5):
            await say(here, "bob", f"{number} {CLEAR}")
        texts = [BEFORE, *(f"{number} {CLEAR}" for number in range(5))]
        assert await received(there, alice, 6) == texts
        await states(here, bob, State.DELIVERED, 6)
        needles += [each.private for each in _contact_keys(here) + _contact_keys(there)]
        left = tmp_path / "left"
        shutil.copytree(bob.folder, left)  # as after a kill
        assert folders.files_with(left, needles) == []
        assert folders.files_with(alice.folder, needles) == []
    for each in (alice, bob):
        assert folders.files_with(each.folder, needles) == []
    for folder in (bob.folder, left):
        config = replace(bob.config, data=str(folder), passphrase_file=file)
        async with Node(config) as there:
            found = [each.text for each in await history(there, alice) if each.kind is Kind.IN]
            assert found == texts


async def test_what_waits_for_a_peer_that_is_away_is_in_no_file(tmp_path: Path) -> None:
    """The history has it, the mailbox, and what is kept until the receipt."""
    alice, bob = couple(tmp_path)
    folders.encrypt(alice.folder)
    file = folders.passphrase_file(tmp_path)
    async with alice.node(passphrase_file=file) as here:
        await say(here, "bob", CLEAR)
        await here.outbox.send(bob.public, b"notes", CLEAR.encode())
        await until(lambda: here.outbox.queued(bob.public) == 2)
        assert folders.files_with(alice.folder, [CLEAR.encode()]) == []
    assert folders.files_with(alice.folder, [CLEAR.encode()]) == []
    async with alice.node(passphrase_file=file), bob.node() as there:
        assert await received(there, alice, 1) == [CLEAR]
        assert await read(there, b"notes") == [CLEAR.encode()]


async def test_a_message_request_waits_over_every_change_of_the_passphrase(
    tmp_path: Path,
) -> None:
    """It is kept as it came, and opened with a key that is encrypted and decrypted meanwhile."""
    bob = PeerNode(tmp_path, "bob", message_requests=True)
    stranger = PeerNode(tmp_path, "stranger")
    needles, file = [CLEAR.encode()], folders.passphrase_file(tmp_path)
    first = chat_to(stranger, bob, text(CLEAR))
    another = chat_to(stranger, bob, text(f"again: {CLEAR}", 2))
    async with bob.node() as there:
        await leave(there, bob.public, first)
        await until(lambda: len(there.peer_services.message_requests) == 1)
    expected = {stranger.identity.id: [CLEAR]}
    folders.encrypt(bob.folder)
    async with bob.node(passphrase_file=file) as there:
        assert await listed(there) == expected
    folders.decrypt(bob.folder)
    async with bob.node() as there:
        assert await listed(there) == expected
    secrets = folders.secrets_of(bob.folder)
    folders.encrypt(bob.folder)
    async with bob.node(passphrase_file=file) as there:
        await leave(there, bob.public, another)
        await until(lambda: there.outbox.queued(bob.public) == 0)
        await ask(there, ACCEPT, id=stranger.identity.id, name="stranger")
        assert await received(there, stranger, 2) == [CLEAR, f"again: {CLEAR}"]
        assert folders.files_with(bob.folder, needles + secrets) == []
    assert folders.files_with(bob.folder, needles + secrets) == []


async def test_a_refused_request_is_in_no_file(tmp_path: Path) -> None:
    bob = PeerNode(tmp_path, "bob", message_requests=True)
    stranger = PeerNode(tmp_path, "stranger")
    relayed = chat_to(stranger, bob, text(CLEAR))
    folders.encrypt(bob.folder)
    file = folders.passphrase_file(tmp_path)
    async with bob.node(passphrase_file=file) as there:
        await leave(there, bob.public, relayed)
        await until(lambda: len(there.peer_services.message_requests) == 1)
        await ask(there, REFUSE, id=stranger.identity.id)
        assert await listed(there) == {}
    async with bob.node(passphrase_file=file) as there:
        await leave(there, bob.public, relayed, 98)
        await until(lambda: there.outbox.context.dropped == {"refused_request": 1})
    assert folders.files_with(bob.folder, [CLEAR.encode()]) == []


async def test_a_new_folder_is_encrypted_from_its_first_start(tmp_path: Path) -> None:
    file = folders.passphrase_file(tmp_path)
    config = replace(
        PeerNode(tmp_path, "alice").config, data=str(tmp_path / "new"), passphrase_file=file
    )
    async with Node(config) as node:
        identity = node.peer_services.keyring.identity
    assert folders.files_with(tmp_path / "new", [identity.seed, identity.seed.hex().encode()]) == []
    async with Node(config) as node:
        assert node.peer_services.keyring.identity.id == identity.id


async def test_a_node_without_the_passphrase_says_what_is_missing(tmp_path: Path) -> None:
    alice = PeerNode(tmp_path, "alice")
    folders.encrypt(alice.folder)
    with pytest.raises(ConfigError, match="encrypted; give the file with its passphrase"):
        await alice.node().__aenter__()
    wrong = folders.passphrase_file(tmp_path, folders.OTHER_PASSPHRASE)
    with pytest.raises(ConfigError, match="the passphrase is wrong"):
        await alice.node(passphrase_file=wrong).__aenter__()
    async with alice.node(passphrase_file=folders.passphrase_file(tmp_path)):
        pass


async def test_with_a_passphrase_a_node_does_not_start_on_a_clear_folder(
    tmp_path: Path,
) -> None:
    alice = PeerNode(tmp_path, "alice")
    with pytest.raises(ConfigError, match="keys passphrase set"):
        await alice.node(passphrase_file=folders.passphrase_file(tmp_path)).__aenter__()
    async with alice.node():
        pass


async def test_a_history_from_elsewhere_is_not_shown(tmp_path: Path) -> None:
    """An attacker that can write to the disk cannot give one chat the records of another."""
    alice, bob = couple(tmp_path)
    folders.encrypt(bob.folder)
    file = folders.passphrase_file(tmp_path)
    async with alice.node() as here, bob.node(passphrase_file=file) as there:
        await say(here, "bob", CLEAR)
        assert await received(there, alice, 1) == [CLEAR]
        store = there._store
        name = b"\0stream\0" + conversation_stream(alice.public)
        chunks = store.read(name, folders.FROM_START)
        assert isinstance(chunks, list) and CLEAR.encode() in chunks[0].data
        raw = store._read(name, folders.FROM_START)
        assert isinstance(raw, list) and CLEAR.encode() not in raw[0].data
        other = b"\0stream\0" + conversation_stream(bob.public)
        assert store.cipher is not None
        assert store.cipher.decrypted(name, raw[0]) == chunks[0]
        assert store.cipher.decrypted(other, raw[0]) is None


def _contact_keys(node: Node) -> list[OwnContactKey]:
    states = node.peer_services.keyring.store.states.values()
    return [key for state in states for key in state.keys.keys]

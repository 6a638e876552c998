"""Notices that somebody writes: to a connected peer that knows them, and in no history
(docs/guides/chat.md)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import UnknownPeer
from millpond.node.chat.conversation_task import ConversationTask
from millpond.node.chat.payloads import Receipt, Typing, encode_payload
from millpond.node.chat.records import State
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from tests.node.chat.chat_client import ask, couple, history, say, states
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, until

pytestmark = pytest.mark.anyio


async def is_typing(node: Node) -> bool:
    (chat,) = (await ask(node, PeerOperation.CHATS))["chats"]
    return bool(chat["typing"])


async def until_typing(node: Node, *, is_on: bool) -> None:
    with anyio.fail_after(DEADLINE_S):
        while True:
            if await is_typing(node) is is_on:
                return
            await anyio.sleep(0.02)


async def befriended(here: Node, there: Node, bob: PeerNode) -> ConversationTask:
    """A message with its receipt, by which each learns what the other understands."""
    await say(here, "bob", "hello")
    await states(here, bob, State.DELIVERED)
    assert not await is_typing(there)
    task = here.peer_services.chat._conversations[bob.public]
    await until(lambda: bool(task._receiver.peer_knows))
    return task


async def test_a_peer_sees_that_somebody_writes_until_the_message_is_there(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await befriended(here, there, bob)
        before = await history(there, alice), await history(here, bob)
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        await until_typing(there, is_on=True)
        assert (await history(there, alice), await history(here, bob)) == before
        await say(here, "bob", "written")
        await until_typing(there, is_on=False)
        with pytest.raises(UnknownPeer):
            await ask(here, PeerOperation.CHAT_TYPING, peer="nobody")


async def test_a_node_that_does_not_know_them_gets_none(tmp_path: Path) -> None:
    """Its receipts do not name the kind: to it a notice would be a message that it cannot read."""
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        task = await befriended(here, there, bob)
        task._receiver.peer_knows = ()
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        await say(here, "bob", "behind it")
        await states(here, bob, State.DELIVERED, 2)
        assert not there.peer_services.chat._conversations[alice.public].is_peer_typing


async def test_one_that_was_told_a_moment_ago_is_not_told_again(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        task = await befriended(here, there, bob)
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        await until_typing(there, is_on=True)
        sent_at = task._sender._typing_sent_at
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        assert task._sender._typing_sent_at == sent_at


async def test_a_clock_that_is_set_back_does_not_let_a_peer_write_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        task = await befriended(here, there, bob)
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        await until_typing(there, is_on=True)
        read = there.peer_services.chat._conversations[alice.public]
        for log in (task._history, read._history):
            now = log.now
            monkeypatch.setattr(log, "now", lambda now=now: now() - 3600)
        assert not read.is_peer_typing
        sent_at = task._sender._typing_sent_at
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        assert task._sender._typing_sent_at < sent_at, "it is told again"


async def test_without_the_setting_nobody_is_told(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice", chat_typing=False), PeerNode(tmp_path, "bob")
    alice.knows(bob)
    bob.knows(alice)
    async with alice.node() as here, bob.node() as there:
        task = await befriended(here, there, bob)
        await ask(here, PeerOperation.CHAT_TYPING, peer="bob")
        assert task._sender._typing_sent_at < 0


async def test_the_bytes_of_a_notice_and_of_what_is_known() -> None:
    assert encode_payload(Typing()) == b'{"kind":"typing"}'
    receipt = Receipt.of_state(State.READ, ["0" * 32], ("typing",))
    assert encode_payload(receipt) == (
        b'{"kind":"receipt","state":"read","of":["00000000000000000000000000000000"],'
        b'"knows":["typing"]}'
    )

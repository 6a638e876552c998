"""Replies, edits, deletions and reactions: texts about another message (docs/guides/chat.md)."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import DataTooLarge, EmptyData, Malformed, NotFound
from millpond.node.chat.actions import DELETED_TEXT, REACTION_BYTES_MAX
from millpond.node.chat.conversation import EARLY_MAX, Conversation
from millpond.node.chat.messages import PREVIEW_CHARS
from millpond.node.chat.payloads import Text
from millpond.node.chat.receiver import KEPT_BYTES_MAX, UNKNOWN_PAYLOAD
from millpond.node.chat.records import Kind, Record, State, conversation_stream
from millpond.node.outbox.messages import PeerOperation
from tests.node.chat.chat_client import ask, couple, history, received, say, states
from tests.node.outbox.peer_nodes import DEADLINE_S

pytestmark = pytest.mark.anyio

LIFE_MS = 1_000_000
FIRST, SECOND = bytes(15) + b"\x01", bytes(15) + b"\x02"


def came(n: int, text: str, action: str = "", about: bytes = b"", *, late: bool = False) -> Record:
    fields = {"action": action, "about": about.hex(), "late": late}
    return Record(1, Kind.IN, 5, f"{n:032x}", text, None, n, "bbbbbbbb", 5, **fields)  # type: ignore[arg-type]


async def test_both_have_what_is_about_a_message(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await say(here, "bob", "helo", uuid=FIRST)
        await say(here, "bob", "hello", action="edit", about=FIRST)
        await received(there, alice, 2)
        await say(there, "alice", "hi", action="reply", about=FIRST)
        await say(there, "alice", "\N{WAVING HAND SIGN}", action="react", about=FIRST)
        await say(there, "alice", "", action="unreact", about=FIRST)
        await received(here, bob, 3)
        await say(here, "bob", "", action="delete", about=FIRST)
        await received(there, alice, 3)
        for node, other in ((here, bob), (there, alice)):
            records = [each for each in await history(node, other) if each.action]
            told = [(each.action, each.about, each.text) for each in records]
            assert sorted(told) == sorted(
                [
                    ("edit", FIRST.hex(), "hello"),
                    ("reply", FIRST.hex(), "hi"),
                    ("react", FIRST.hex(), "\N{WAVING HAND SIGN}"),
                    ("unreact", FIRST.hex(), "took back a reaction"),
                    ("delete", FIRST.hex(), DELETED_TEXT),
                ]
            )
        await states(here, bob, State.DELIVERED, 3)
        (chat,) = (await ask(there, PeerOperation.CHATS))["chats"]
        assert chat["unread"] == 0, "the only message is deleted"
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert (chat["unread"], chat["last"]["text"]) == (1, "hi"), "a reply counts"


async def test_only_what_is_ones_own_and_recent_is_changed(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node() as there:
        await say(there, "alice", "of bob", uuid=FIRST)
        await received(here, bob, 1)
        await say(here, "bob", "mine", uuid=SECOND)
        deletion = await say(here, "bob", "", action="delete", about=SECOND, uuid=bytes(16))
        assert (
            await say(here, "bob", "", action="delete", about=SECOND, uuid=bytes(16)) == deletion
        ), "a repeated request is no second deletion"
        for error, fields in (
            (NotFound, {"text": "of alice", "action": "edit", "about": FIRST}),
            (NotFound, {"text": "", "action": "delete", "about": FIRST}),
            (NotFound, {"text": "again", "action": "edit", "about": SECOND}),
            (NotFound, {"text": "of a deletion", "action": "edit", "about": bytes(16)}),
            (NotFound, {"text": "of nothing", "action": "edit", "about": os.urandom(16)}),
            (EmptyData, {"text": " ", "action": "react", "about": FIRST}),
            (
                DataTooLarge,
                {"text": "x" * (REACTION_BYTES_MAX + 1), "action": "react", "about": FIRST},
            ),
            (Malformed, {"text": "x", "action": "shout", "about": FIRST}),
            (Malformed, {"text": "x", "action": "reply", "about": b"short"}),
            (Malformed, {"text": "x", "about": FIRST}),
        ):
            with pytest.raises(error):
                await say(here, "bob", **fields)  # type: ignore[arg-type]


def test_an_old_message_is_not_changed() -> None:
    conversation = Conversation(LIFE_MS)
    conversation.replay(0, conversation.add_own(FIRST.hex(), "hi", "aaaaaaaa", 1000))
    assert conversation.can_change(FIRST.hex(), 1000 + LIFE_MS)
    assert not conversation.can_change(FIRST.hex(), 1001 + LIFE_MS)


def test_the_last_message_is_told_as_it_was_changed_by_its_author() -> None:
    conversation = Conversation(LIFE_MS)
    for place, record in enumerate(
        [
            came(1, "helo"),
            came(3, "hello", "edit", FIRST),
            came(2, "heo", "edit", FIRST, late=True),
            came(4, "yes", "react", FIRST),
        ]
    ):
        conversation.replay(place, record)
    assert conversation.last is not None and conversation.last.text == "hello"
    forged = conversation.add_own(bytes(16).hex(), "mine", "aaaaaaaa", 5)
    conversation.replay(
        4, Record(1, Kind.OUT, 5, SECOND.hex(), "x", action="edit", about=FIRST.hex())
    )
    assert conversation.last.text == "hello", "the edit of somebody else"
    assert conversation.unread == 1
    conversation.replay(5, came(6, DELETED_TEXT, "delete", FIRST))
    assert (conversation.last.text, conversation.unread) == ("", 0)
    conversation.replay(6, came(7, "back", "edit", FIRST))
    assert conversation.last.text == ""
    conversation.replay(7, forged)
    assert conversation.last.text == "mine"


def test_the_later_of_two_late_edits_is_in_the_list() -> None:
    conversation = Conversation(LIFE_MS)
    conversation.replay(0, came(1, "helo"))
    conversation.replay(1, came(4, "hello", "edit", FIRST, late=True))
    assert conversation.last is not None and conversation.last.text == "hello"
    conversation.replay(2, came(3, "hell", "edit", FIRST, late=True))
    assert conversation.last.text == "hello"
    conversation.replay(3, came(5, "hello!", "edit", FIRST, late=True))
    assert conversation.last.text == "hello!"


def test_changes_that_come_before_their_message_count() -> None:
    conversation = Conversation(LIFE_MS)
    conversation.replay(0, came(3, "hello", "edit", FIRST))
    conversation.replay(1, came(4, DELETED_TEXT, "delete", SECOND))
    conversation.replay(2, came(1, "helo", late=True))
    assert conversation.last is not None and conversation.last.text == "hello"
    assert conversation.unread == 1
    conversation.replay(3, came(2, "gone", late=True))
    assert (conversation.last.text, conversation.unread) == ("", 1)


def test_so_many_changes_of_messages_that_never_come_are_kept() -> None:
    conversation = Conversation(LIFE_MS)
    for n in range(EARLY_MAX + 5):
        about = (10**6 + n).to_bytes(16, "big")
        conversation.replay(n, came(n, "x" * 1000, "edit", about))
    assert len(conversation._early) == EARLY_MAX
    assert {len(each.text) for each in conversation._early.values()} == {PREVIEW_CHARS}


def test_an_action_of_a_later_version_is_a_text() -> None:
    conversation = Conversation(LIFE_MS)
    (record,) = conversation.receive(
        "0" * 32, Text("bbbbbbbb", 1, 5, "hm", "whisper", "1" * 32), 0.0
    )
    conversation.replay(0, record)
    assert conversation.unread == 1
    assert conversation.last is not None and conversation.last.text == "hm"


async def test_a_kind_of_a_later_version_is_kept_with_its_text(tmp_path: Path) -> None:
    """The payload is there for the version that understands it."""
    alice, bob = couple(tmp_path)
    payload = b'{"kind":"video","text":"a film of the pond","root":"00"}'
    async with alice.node() as here, bob.node() as there:
        channel = conversation_stream(alice.public)
        await here.outbox.send(bob.public, channel, payload)
        records: list[Record] = []
        with anyio.fail_after(DEADLINE_S):
            while not records:
                await anyio.sleep(0.02)
                records = await history(there, alice)
        (note,) = records
        assert (note.kind, note.payload.encode()) == (Kind.NOTE, payload)
        assert note.text == f"{UNKNOWN_PAYLOAD}: a film of the pond"


async def test_a_large_payload_of_a_later_version_does_not_fill_the_history(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    large = b'{"kind":"video","text":"a film","root":"%s"}' % (b"0" * KEPT_BYTES_MAX)
    async with alice.node() as here, bob.node() as there:
        for payload in (large, b"\x01" * 900_000):
            await here.outbox.send(bob.public, conversation_stream(alice.public), payload)
        records: list[Record] = []
        with anyio.fail_after(DEADLINE_S):
            while len(records) < 2:
                await anyio.sleep(0.02)
                records = await history(there, alice)
        assert [(each.kind, each.payload) for each in records] == [(Kind.NOTE, "")] * 2
        assert {each.text for each in records} == {UNKNOWN_PAYLOAD, f"{UNKNOWN_PAYLOAD}: a film"}

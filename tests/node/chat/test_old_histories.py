"""Histories as the first version wrote them are read, and a message that is in one is not shown
again (docs/guides/chat.md, Records)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from millpond.node.chat.conversation_log import READ_GROUP
from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import Kind, State, conversation_stream, decode_record
from millpond.node.outbox.messages import PeerOperation
from tests.node.chat.chat_client import ask, couple, received, say, states

pytestmark = pytest.mark.anyio
LINE = "5f3a9c01"
BYTES_MAX = 2**28


def old_records(at: int) -> list[bytes]:
    """The bytes of a conversation without any field that came later: two messages each way, a gap,
    and a record that nobody reads."""
    waits, line = {"state": "waiting", "n": 1}, {"line": LINE}
    records: list[tuple[str, int, dict[str, Any]]] = [
        ("out", 1, {"text": "hi", "line": "00000001", **waits}),
        ("state", 1, {"state": "kept"}),
        ("state", 1, {"state": "read"}),
        ("in", 2, {"text": "hello", "n": 1, "sent_at": at, **line}),
        ("note", 0, {"text": "1 message did not arrive", "missing": [2, 2], **line}),
        ("in", 3, {"text": "so", "n": 3, "sent_at": at, **line}),
        ("out", 4, {"text": "and on", "line": "00000002", **waits}),
    ]
    bodies = []
    for kind, number, fields in records:
        uuid = {"uuid": f"{number:032x}"} if number else {}
        bodies.append(json.dumps({"v": 1, "kind": kind, "at": at} | uuid | fields).encode())
    return [*bodies[:5], b"no record", *bodies[5:]]


async def test_a_history_of_the_first_version_goes_on(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    at = int(time.time() * 1000) - 60_000
    async with alice.node() as here:
        stream = here.peer_services._local_stream(conversation_stream(bob.public))
        await stream.create(BYTES_MAX)
        await stream.append(old_records(at))
        await stream.commit(READ_GROUP, 4)
    async with bob.node() as there, alice.node() as here:
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert (chat["tail"], chat["read"], chat["unread"]) == (len(old_records(at)), 4, 1)
        assert (chat["last"]["text"], chat["accepted"]) == ("and on", True)
        assert (await ask(here, PeerOperation.CHAT_SEARCH, query="hello"))["found"]
        # The message that waited is sent, once.
        assert await received(there, alice, 1) == ["and on"]
        # Its peer repeats an old message, and then writes a new one.
        channel = conversation_stream(bob.public)
        for number, n, text in ((3, 3, "so"), (5, 4, "new")):
            payload = encode_payload(Text(LINE, n, at, text))
            await there.outbox.send(alice.public, channel, payload, uuid=number.to_bytes(16, "big"))
        await say(there, "alice", "in a line of its own")
        await states(there, alice, State.DELIVERED)
        stream = here.peer_services._local_stream(conversation_stream(bob.public))
        tail = (await stream.describe()).info.tail
        new = [decode_record(body) async for _, body in stream.read(len(old_records(at)), tail)]
        shown = [each.text for each in new if each.kind is Kind.IN]
        assert shown == ["new", "in a line of its own"]
        await ask(here, PeerOperation.CHAT_READ, peer="bob", sequence=chat["tail"] - 1)
        (chat,) = (await ask(here, PeerOperation.CHATS))["chats"]
        assert chat["unread"] == 2

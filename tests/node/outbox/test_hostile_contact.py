"""Attacks by a contact: everything that it signs is within the format, and meant to do harm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from millpond.node.access.rules_file import FILE_NAME as ACCESS_FILE
from millpond.node.outbox.deliveries import VOID_MAX
from millpond.node.peers.address_book import Trust
from millpond.node.peers.sealed_message import COUNT_MAX, Kind, Seen
from tests.node.outbox.peer_nodes import PeerNode, leave, read, remaining, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "fields",
    [
        {"counter": 2**32},
        {"counter": COUNT_MAX},
        {"counter": COUNT_MAX, "settled": COUNT_MAX},
        {"deadline": COUNT_MAX},
        {"sent_at": COUNT_MAX},
        {"began": COUNT_MAX},
        {"floor": COUNT_MAX},
        {"deadline": 0},
    ],
    ids=str,
)
async def test_numbers_at_their_limits_hold_up_nobody_else(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    mallory, friend, bob = (PeerNode(tmp_path, name) for name in ("mallory", "friend", "bob"))
    for sender in (mallory, friend):
        bob.knows(sender, dials=False)
    async with bob.node() as there:
        await leave(there, bob.public, mallory.letter_to(bob, b"x", **fields), 1)
        await leave(there, bob.public, friend.letter_to(bob, b"hello", b"other"), 2)
        assert await read(there, b"other") == [b"hello"]
        await until(lambda: there.outbox.queued(bob.public) == 0)


async def test_many_accounts_of_a_missing_message_cost_nothing(tmp_path: Path) -> None:
    """Two hundred of them have it scheduled once, and not sent again at once."""
    alice, mallory = (PeerNode(tmp_path, name) for name in ("alice", "mallory"))
    alice.knows(mallory, dials=False)
    alice.learns_key_of(mallory)
    async with alice.node() as here:
        for _ in range(3):
            await here.outbox.send(mallory.public, b"notes", b"x")
        deliveries = here.outbox._deliveries
        sent = list(deliveries._by_peer[mallory.public].messages.values())
        line, began = sent[0].line, sent[0].began
        missing = Seen(line, began, 4, bytes(32), 4, (1, 2, 3))
        refused = Seen(bytes(8), 1, 1, bytes(32), 1)
        for number in range(200):
            account = {"kind": Kind.RECEIPT, "counter": 0, "seen": (missing,)}
            if number % 2:  # or that their line is not accepted any more
                account |= {"seen": (refused,), "floor": began + number}
            receipt = mallory.letter_to(alice, b"", b"", **account)
            await leave(here, alice.public, receipt, number)
        await until(lambda: here.outbox.queued(alice.public) == 0)
        assert here.outbox.unconfirmed(mallory.public) == 3
        assert len(deliveries._due) <= 2 * 3 + VOID_MAX
        assert [each.attempts for each in sent] == [0, 0, 0]
        assert list(deliveries._by_peer[mallory.public].messages.values()) == sent


@pytest.mark.parametrize("who", ["another contact", "a stranger", "a relay", "a blocked recipient"])
async def test_a_receipt_counts_for_messages_to_its_signer_alone(tmp_path: Path, who: str) -> None:
    alice, bob, mallory = (PeerNode(tmp_path, name) for name in ("alice", "bob", "mallory"))
    alice.knows(bob, dials=False)
    alice.learns_key_of(bob)
    if who in ("another contact", "a relay"):
        trust = Trust.RELAY if who == "a relay" else Trust.ADDED
        alice.knows(mallory, dials=False, trust=trust)
    async with alice.node() as here:
        await here.outbox.send(bob.public, b"notes", b"x")
        (sent,) = here.outbox._deliveries._by_peer[bob.public].messages.values()
        seen = (Seen(sent.line, sent.began, 2, bytes(32), 2),)
        signer = mallory
        if who == "a blocked recipient":
            alice.changes(bob, trust=Trust.BLOCKED)
            here.outbox.context.book.reload()
            signer = bob
        account = {"kind": Kind.RECEIPT, "counter": 0, "seen": seen}
        await leave(here, alice.public, signer.letter_to(alice, b"", b"", **account))
        await until(lambda: here.outbox.queued(alice.public) == 0)
        assert here.outbox.unconfirmed(bob.public) == 1


async def test_a_contact_without_room_for_lines_makes_no_kept_message_unreadable(
    tmp_path: Path,
) -> None:
    """A floor at the end of all times: the message is still there after a restart, and expires."""
    alice, mallory = (PeerNode(tmp_path, name) for name in ("alice", "mallory"))
    alice.knows(mallory, dials=False)
    alice.learns_key_of(mallory)
    async with alice.node() as here:
        receipt = mallory.letter_to(alice, b"", b"", kind=Kind.RECEIPT, counter=0, floor=COUNT_MAX)
        await here.outbox.send(mallory.public, b"notes", b"x")
        await leave(here, alice.public, receipt)
        await until(lambda: here.outbox.queued(alice.public) == 0)
        await here.outbox.send(mallory.public, b"notes", b"y")
    async with alice.node() as here:
        assert here.outbox.unconfirmed(mallory.public) == 2


async def test_a_right_to_all_channels_is_none_to_the_chats_of_others(tmp_path: Path) -> None:
    """By option or by rule: else it fills them, and its messages stay there unread."""
    mallory, bob = (PeerNode(tmp_path, name, peer_channels=("*",)) for name in ("mallory", "bob"))
    bob.knows(mallory, dials=False)
    rules = bob.folder / ACCESS_FILE
    rules.write_text("key:mallory put *\n")
    other = f"chat/{bob.identity.id}".encode()
    own = f"chat/{mallory.identity.id}".encode()
    async with bob.node() as there:
        channels = (other, own, b"notes")
        for number, channel in enumerate(channels):
            await leave(there, bob.public, mallory.letter_to(bob, b"x", channel), number)
        assert await read(there, b"notes") == [b"x"]
        await until(lambda: there.outbox.queued(bob.public) == 0)
        assert there.outbox.context.dropped == {"denied": 1}
        assert await remaining(there, other) == []

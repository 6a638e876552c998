"""Files of chats: they arrive whole or not at all, directly or by a relay (docs/guides/chat.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.node.chat.records import Kind, Transfer
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.file_format import CHUNK_BYTES
from tests.node.chat.chat_client import ask, couple, received, say
from tests.node.chat.file_client import (
    file_records,
    read_file,
    send_file,
    transfers,
    until_transfer,
)
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, until

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("size", [0, 5, 3 * CHUNK_BYTES, 20 * CHUNK_BYTES + 1])
async def test_a_file_arrives_as_it_was_sent(tmp_path: Path, size: int) -> None:
    alice, bob = couple(tmp_path)
    data = os.urandom(size)
    async with alice.node() as here, bob.node() as there:
        await send_file(here, "bob", data, "../cat\u202e.png")
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
        await until_transfer(here, bob, Kind.FILE_OUT, Transfer.RECEIVED)
        ((_, record),) = await file_records(there, alice, Kind.IN)
        assert record.file is not None and record.file.name == "_cat.png"
        assert record.text.startswith("file: _cat.png (")
        assert await read_file(there, alice) == data
        assert await read_file(here, bob, Kind.OUT) == data


async def test_a_file_is_fetched_from_a_sender_that_cannot_reach_the_recipient(
    tmp_path: Path,
) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob")
    alice.knows(bob, dials=False)
    bob.knows(alice)
    alice.learns_key_of(bob)
    data = os.urandom(10 * CHUNK_BYTES)
    async with alice.node() as here, bob.node() as there:
        await send_file(here, "bob", data)
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
        assert await read_file(there, alice) == data
        await until_transfer(here, bob, Kind.FILE_OUT, Transfer.RECEIVED)


def relayed(folder: Path, **settings: Any) -> tuple[PeerNode, PeerNode, PeerNode]:
    """Two who reach each other by a relay alone."""
    relay = PeerNode(folder, "relay", relay=True, **settings)
    alice, bob = (PeerNode(folder, name, via=("relay",)) for name in ("alice", "bob"))
    for me, other in ((alice, bob), (bob, alice)):
        me.knows(relay)
        me.knows(other, dials=False, relays=(relay.as_relay,))
        relay.knows(me, dials=False)
    return relay, alice, bob


async def test_a_relay_keeps_a_file_for_one_that_is_away_and_reads_nothing_of_it(
    tmp_path: Path,
) -> None:
    relay, alice, bob = relayed(tmp_path)
    data = b"a secret of Alice and Bob " * 50_000
    async with relay.node() as between:
        async with bob.node():  # it publishes its prekey
            await until(
                lambda: bool(
                    between.outbox.context.local.count(mailbox_of(bob.public) + KEYS_SUFFIX)
                )
            )
        async with alice.node() as here:
            await send_file(here, "bob", data, "secret.txt")
            await until_transfer(here, bob, Kind.FILE_OUT, Transfer.STORED)
        (kept,) = between.peer_services.relayed_files.files
        assert kept.size == len(data)
        for path in relay.folder.rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                assert b"secret of Alice" not in content and b"secret.txt" not in content
        async with bob.node() as there:
            await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
            assert await read_file(there, alice) == data
            async with alice.node() as here:  # it is told, and tells the relay
                await until_transfer(here, bob, Kind.FILE_OUT, Transfer.RECEIVED)
                await until(lambda: not between.peer_services.relayed_files.files)


async def test_a_full_relay_says_so_and_the_file_waits(tmp_path: Path) -> None:
    relay, alice, bob = relayed(tmp_path, relay_files_bytes_max=4 * 2**20)
    async with relay.node(), alice.node() as here, bob.node() as there:
        await say(there, "alice", "hello")
        await received(here, bob, 1)
        await send_file(here, "bob", os.urandom(2 * 2**20))

        async def problem() -> str:
            answer = await ask(here, PeerOperation.FILE_TRANSFERS, peer="bob")
            return str(answer["transfers"][0]["problem"])

        with anyio.fail_after(DEADLINE_S):
            while "the relay is full" not in await problem():  # noqa: ASYNC110
                await anyio.sleep(0.02)
        assert not await transfers(here, bob, Kind.FILE_OUT)

"""Files of chats: they arrive whole or not at all, directly or by a relay (docs/guides/chat.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.actors.errors import Malformed, NotFound
from millpond.node.chat import files
from millpond.node.chat.files import UPLOAD_IDLE_S
from millpond.node.chat.records import Kind, Transfer
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.file_format import CHUNK_BYTES
from tests.node import encrypted_folders as folders
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


async def test_a_deleted_message_takes_its_file_with_it(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    uuid = os.urandom(16)
    async with alice.node() as here, bob.node() as there:
        await send_file(here, "bob", b"oops", uuid=uuid)
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
        await until_transfer(here, bob, Kind.FILE_OUT, Transfer.RECEIVED)
        await say(here, "bob", "", action="delete", about=uuid)
        await until(lambda: not here.peer_services.files.store.files)
        await until(lambda: not there.peer_services.files.store.files)
        with pytest.raises(NotFound):
            await read_file(there, alice)


async def test_a_file_is_kept_so_long_and_its_message_stays(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here, bob.node(chat_files_age_s=2) as there:
        await send_file(here, "bob", b"for a while")
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
        store = there.peer_services.files.store
        (kept,) = store.files
        assert 0 < kept.until - kept.made_at <= 2.1

        def is_removed() -> bool:
            store.wakeup()
            return not store.files

        await until(is_removed)
        assert len(await file_records(there, alice, Kind.IN)) == 1
        with pytest.raises(NotFound):
            await read_file(there, alice)
        assert here.peer_services.files.store.files


async def test_a_file_that_was_not_finished_is_begun_again(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    uuid, data = os.urandom(16), os.urandom(3 * CHUNK_BYTES)
    body = {"peer": "bob", "uuid": uuid}
    begin = body | {"size": len(data), "name": "a"}
    async with alice.node() as here:
        assert (await ask(here, PeerOperation.FILE_BEGIN, **begin))["next"] == 0
        part = [data[:CHUNK_BYTES]]
        for _ in range(2):  # asked again: the answer was lost
            answer = await ask(here, PeerOperation.FILE_CHUNKS, first=0, chunks=part, **body)
            assert answer["next"] == 1
        assert (await ask(here, PeerOperation.FILE_BEGIN, **begin))["next"] == 1
        with pytest.raises(Malformed, match="not complete"):
            await ask(here, PeerOperation.FILE_SEND, **body)
    async with alice.node() as here:
        with pytest.raises(NotFound):
            await ask(here, PeerOperation.FILE_CHUNKS, first=1, chunks=part, **body)
        await until(lambda: not here.peer_services.files.store.files)
        sent = await send_file(here, "bob", data, uuid=uuid)
        assert await ask(here, PeerOperation.FILE_SEND, **body) == sent
        assert await read_file(here, bob, Kind.OUT) == data
        assert (await ask(here, PeerOperation.FILE_BEGIN, **begin))["is_sent"]


async def test_nothing_of_a_file_is_in_clear_in_an_encrypted_folder(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    folders.encrypt(bob.folder)
    file = folders.passphrase_file(tmp_path)
    data = b"a secret of Alice and Bob " * 5000
    async with alice.node() as here, bob.node(passphrase_file=file) as there:
        await send_file(here, "bob", data, "secret.txt")
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
        assert await read_file(there, alice) == data
        ((_, record),) = await file_records(there, alice, Kind.IN)
    assert record.file is not None
    needles = [b"secret of Alice", b"secret.txt", record.file.key.encode()]
    assert folders.files_with(bob.folder, needles) == []
    async with bob.node(passphrase_file=file) as there:
        assert await read_file(there, alice) == data


async def test_a_file_that_a_client_left_for_too_long_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = couple(tmp_path)
    uuid, data = os.urandom(16), os.urandom(6 * CHUNK_BYTES)
    body = {"peer": "bob", "uuid": uuid}
    parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)]
    async with alice.node() as here:
        store = here.peer_services.files.store
        await ask(here, PeerOperation.FILE_BEGIN, size=len(data), name="a", **body)
        monkeypatch.setattr(files, "UPLOAD_IDLE_S", 0.01)
        await ask(here, PeerOperation.FILE_CHUNKS, first=0, chunks=parts[:2], **body)
        monkeypatch.undo()

        def is_removed() -> bool:
            store.wakeup()
            return not store.files

        await until(is_removed)
        with pytest.raises(NotFound):
            await ask(here, PeerOperation.FILE_CHUNKS, first=2, chunks=parts[2:6], **body)
        await send_file(here, "bob", data, uuid=uuid)
        assert await read_file(here, bob, Kind.OUT) == data


async def test_a_file_is_kept_with_its_message_alone_whatever_comes_between(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    uuids, body = [os.urandom(16) for _ in range(2)], {"peer": "bob"}
    async with alice.node() as here:
        task = here.peer_services.chat.file_operations._task_of("bob")
        for uuid, data in zip(uuids, (b"one", b"two"), strict=True):
            await ask(here, PeerOperation.FILE_BEGIN, uuid=uuid, size=3, name="a", **body)
            await ask(here, PeerOperation.FILE_CHUNKS, uuid=uuid, first=0, chunks=[data], **body)
            file = await here.peer_services.files.finish(bob.public, uuid.hex(), 60.0)
        await task.send("file", uuids[1].hex(), file=file)
        # Here the node ends: the client has heard of neither.
    async with alice.node() as here:
        store = here.peer_services.files.store
        found = {each.stream[-32:].decode(): each for each in store.files}
        assert found[uuids[0].hex()].until < here.outbox.context.now() + UPLOAD_IDLE_S
        await until(
            lambda: all(
                each.is_used
                for each in store.files
                if each.stream.endswith(uuids[1].hex().encode())
            )
        )
        assert await read_file(here, bob, Kind.OUT) == b"two"
        async with bob.node() as there:
            await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
            assert await read_file(there, alice) == b"two"


async def test_a_deleted_message_takes_its_file_from_the_relay_as_well(tmp_path: Path) -> None:
    relay, alice, bob = relayed(tmp_path)
    uuid = os.urandom(16)
    async with relay.node() as between:
        async with bob.node():  # it publishes its prekey
            await until(
                lambda: bool(
                    between.outbox.context.local.count(mailbox_of(bob.public) + KEYS_SUFFIX)
                )
            )
        async with alice.node() as here:
            await send_file(here, "bob", b"oops", uuid=uuid)
            await until_transfer(here, bob, Kind.FILE_OUT, Transfer.STORED)
            assert between.peer_services.relayed_files.files
            await say(here, "bob", "", action="delete", about=uuid)
            await until(lambda: not between.peer_services.relayed_files.files)

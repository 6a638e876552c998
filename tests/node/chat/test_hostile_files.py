"""Files of hostile peers: nothing but the announced file is stored, within limits, and nobody else
gets it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from millpond.actors.errors import Malformed, NotAllowed, NotFound, RequestError, UnknownStream
from millpond.node.chat import files, pending_files
from millpond.node.chat.payloads import Text, encode_payload
from millpond.node.chat.records import Kind, Transfer, conversation_stream
from millpond.node.client.channel import Channel, RoleName
from millpond.node.client.connect import connect
from millpond.node.client.errors import ChannelClosed, ConnectionLost, HandshakeRefused
from millpond.node.node import Node
from millpond.node.outbox import file_requests
from millpond.node.outbox.file_store import FILES_MAX, FileStore, StoredFile
from millpond.node.outbox.mailbox import KEYS_SUFFIX, mailbox_of
from millpond.node.outbox.messages import FileOfferAnswer, PeerOperation
from millpond.node.peers.file_format import (
    CHUNK_BYTES,
    FILE_BYTES_MAX,
    File,
    chunk_count,
    leaf_of,
    root_of,
    seal_chunk,
)
from millpond.node.peers.peer_store import PeerStore
from tests.node.chat.chat_client import ask, couple, received, say
from tests.node.chat.file_client import (
    file_records,
    send_file,
    transfers,
    until_transfer,
)
from tests.node.chat.test_files import relayed
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, until

pytestmark = pytest.mark.anyio

KEY = os.urandom(32)


class Forged:
    """A file that no node has sealed."""

    def __init__(self, data: bytes, key: bytes = KEY, **fields: Any) -> None:
        count = chunk_count(len(data))
        self.chunks = [
            seal_chunk(
                key, at, data[at * CHUNK_BYTES : (at + 1) * CHUNK_BYTES], is_last=at == count - 1
            )
            for at in range(count)
        ]
        leaves = [leaf_of(each) for each in self.chunks]
        self.size, self.leaves = len(data), b"".join(leaves)
        self.root = root_of(self.size, leaves)
        values = {"root": self.root.hex(), "size": self.size, "key": KEY.hex(), "name": "a.bin"}
        self.file = msgspec.convert(values | fields, File)

    @property
    def offer(self) -> dict[str, Any]:
        return {"root": self.root, "size": self.size, "leaves": self.leaves, "until": 2.0**40}


async def announce(node: Node, sender: PeerNode, to: PeerNode, *announced: File) -> None:
    """Messages that bring files, sealed by the node of their sender."""
    for number, file in enumerate(announced, 1):
        text = Text("00000001", number, 1, "file", file=file)
        channel = conversation_stream(sender.public)
        await node.outbox.send(to.public, channel, encode_payload(text))


@asynccontextmanager
async def connected(
    me: PeerNode, to: PeerNode, owner: PeerNode, role: RoleName = "producer", suffix: bytes = b""
) -> AsyncIterator[Channel]:
    """A connection of a peer to the mailbox of an owner, or to its prekeys."""
    name = mailbox_of(owner.public) + suffix
    async with connect(to.url, name, role=role, identity=me.identity, reconnect=False) as channel:
        yield channel


async def offered(channel: Channel, forged: Forged) -> dict[str, Any]:
    """The answer to an offer, once the message of the file is there."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            answer = await channel.peers(PeerOperation.FILE_OFFER, forged.offer)
            if answer["state"] != "unknown":
                return answer
            await anyio.sleep(0.02)


async def put(channel: Channel, forged: Forged, first: int, chunks: Sequence[bytes]) -> int:
    body = {"root": forged.root, "first": first, "chunks": list(chunks)}
    answer = await channel.peers(PeerOperation.FILE_PUT, body)
    return int(answer["next"])  # type: ignore[call-overload]


async def test_only_the_chunks_of_the_file_are_stored_each_at_its_place(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    forged = Forged(os.urandom(2 * CHUNK_BYTES + 100))
    one, two, three = forged.chunks
    async with alice.node() as here, bob.node() as there:
        await announce(here, alice, bob, forged.file)
        async with connected(alice, bob, bob) as channel:
            assert await offered(channel, forged) == {"state": "wanted", "next": 0, "reason": ""}
            for first, chunks in (
                (0, [two]),  # a wrong chunk
                (0, [one[:-1]]),
                (0, [one[:-1] + bytes([one[-1] ^ 1])]),
                (0, [one, two, three, three]),  # one too many
                (3, [three]),
                (0, []),
                (-1, [one]),
                (0, [one] * 5),
            ):
                with pytest.raises(Malformed):
                    await put(channel, forged, first, chunks)
            assert await put(channel, forged, 1, [two]) == 0  # nothing is left out
            assert await put(channel, forged, 0, [one]) == 1
            assert await put(channel, forged, 0, [one, two]) == 2  # again, and one more
            assert not await transfers(there, alice, Kind.FILE_IN)
            assert await put(channel, forged, 2, [three]) == 3
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)


async def test_a_size_that_lies_is_found_out(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    forged = Forged(os.urandom(CHUNK_BYTES + 1))
    smaller = Forged(os.urandom(10), size=5)
    async with alice.node() as here, bob.node():
        await announce(here, alice, bob, forged.file, smaller.file)
        async with connected(alice, bob, bob) as channel:
            await offered(channel, forged)
            for lie in (
                {"size": CHUNK_BYTES},
                {"size": forged.size + 1},
                {"size": 2**60},
                {"size": -1},
                {"leaves": forged.leaves[:32]},
                {"leaves": forged.leaves + bytes(32)},
                {"root": b"short"},
            ):
                with pytest.raises(Malformed):
                    await channel.peers(PeerOperation.FILE_OFFER, forged.offer | lie)
            with pytest.raises(Malformed):  # the message has said another size
                await offered(channel, smaller)


async def test_a_file_that_its_key_does_not_open_is_refused_and_removed(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    forged = Forged(os.urandom(100), key=bytes(32))
    async with alice.node() as here, bob.node() as there:
        await announce(here, alice, bob, forged.file)
        async with connected(alice, bob, bob) as channel:
            await offered(channel, forged)
            with pytest.raises(Malformed):
                await put(channel, forged, 0, forged.chunks)
            assert (await offered(channel, forged))["state"] == "refused"
        why = await until_transfer(there, alice, Kind.FILE_IN, Transfer.REFUSED)
        assert why == "it is not what its sender announced"
        assert not there.peer_services.files.store.files


async def test_nobody_but_the_announced_sender_puts_a_file(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    carol, eve = PeerNode(tmp_path, "carol"), PeerNode(tmp_path, "eve")
    bob.knows(carol)
    forged = Forged(os.urandom(100))
    async with alice.node() as here, bob.node() as there:
        await announce(here, alice, bob, forged.file)
        async with connected(alice, bob, bob) as channel:
            await offered(channel, forged)
        async with connected(carol, bob, bob) as channel:
            answer = await channel.peers(PeerOperation.FILE_OFFER, forged.offer)
            assert answer["state"] == "unknown"
            with pytest.raises((NotFound, NotAllowed)):
                await put(channel, forged, 0, forged.chunks)
        with pytest.raises((HandshakeRefused, ConnectionLost, ChannelClosed)):
            async with connected(eve, bob, bob) as channel:
                await channel.peers(PeerOperation.FILE_OFFER, forged.offer)
        assert there.peer_services.files.store.used > 0


async def test_nobody_but_the_recipient_gets_a_file_from_its_sender(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    alice.knows(carol)
    async with alice.node() as here:
        await send_file(here, "bob", os.urandom(100))
        ((_, record),) = await file_records(here, bob, Kind.OUT)
        assert record.file is not None
        body = {"root": record.file.root_bytes}
        get = body | {"first": 0, "count": 4}
        async with connected(carol, alice, alice, "consumer", KEYS_SUFFIX) as channel:
            for operation, fields in (
                (PeerOperation.FILE_LEAVES, body),
                (PeerOperation.FILE_GET, get),
            ):
                with pytest.raises(NotFound):
                    await channel.peers(operation, fields)
            # Its own mailbox is no place for files, and neither is a role without the right.
            with pytest.raises(NotAllowed):
                await channel.peers(PeerOperation.FILE_OFFER, Forged(b"x").offer)
        async with connected(bob, alice, alice, "consumer", KEYS_SUFFIX) as channel:
            assert (await channel.peers(PeerOperation.FILE_GET, get))["chunks"]
            for bad in ({"first": -1}, {"count": 5}, {"count": 0}):
                with pytest.raises(Malformed):
                    await channel.peers(PeerOperation.FILE_GET, get | bad)


async def test_a_node_that_is_no_relay_keeps_nothing_for_others(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with bob.node():
        with pytest.raises((RequestError, HandshakeRefused, ConnectionLost, ChannelClosed)):
            async with connected(alice, bob, alice) as channel:
                await channel.peers(PeerOperation.FILE_OFFER, Forged(b"x").offer)


async def test_a_relay_stores_nothing_but_the_file_and_a_share_for_each(tmp_path: Path) -> None:
    relay, alice, bob = relayed(tmp_path, relay_files_bytes_max=8 * 2**20)
    forged, large = Forged(os.urandom(CHUNK_BYTES + 1)), Forged(bytes(2 * 2**20))
    async with relay.node() as between:
        store = between.peer_services.relayed_files
        assert store is not None
        async with connected(alice, relay, bob) as channel:
            with pytest.raises(NotFound):
                await put(channel, forged, 0, forged.chunks)
            assert (await offered(channel, forged))["state"] == "wanted"
            for first, chunks in ((0, forged.chunks[1:]), (1, forged.chunks), (2, [b"x"])):
                try:
                    assert await put(channel, forged, first, chunks) == 0
                except Malformed:
                    continue
            assert await put(channel, forged, 0, forged.chunks) == 2
            refused = await offered(channel, large)
            assert refused["state"] == "refused" and "the relay is full" in refused["reason"]
            with pytest.raises(Malformed):
                lie = forged.offer | {"size": FILE_BYTES_MAX}
                await channel.peers(PeerOperation.FILE_OFFER, lie)
        async with connected(bob, relay, alice) as channel:  # another one's file stays
            await channel.peers(PeerOperation.FILE_DROP, {"root": forged.root})
            assert len(store.files) == 1
        async with connected(alice, relay, bob) as channel:
            await channel.peers(PeerOperation.FILE_DROP, {"root": forged.root})
            assert not store.files and store.used == 0


async def test_a_relay_keeps_a_file_until_its_end(tmp_path: Path) -> None:
    relay, alice, bob = relayed(tmp_path)
    async with relay.node() as between:
        store = between.peer_services.relayed_files
        assert store is not None
        forged = Forged(b"x")
        async with connected(alice, relay, bob) as channel:
            await channel.peers(PeerOperation.FILE_OFFER, forged.offer | {"until": 1.0})
        (kept,) = store.files
        assert kept.until <= between.clock.now()
        store.wakeup()
        with anyio.fail_after(DEADLINE_S):
            while store.files:  # noqa: ASYNC110
                await anyio.sleep(0.02)
        async with connected(alice, relay, bob) as channel:
            await channel.peers(PeerOperation.FILE_OFFER, forged.offer)
            (kept,) = store.files  # one that is not complete leaves earlier
            assert kept.until <= between.clock.now() + file_requests.UNFINISHED_S
            assert await put(channel, forged, 0, forged.chunks) == 1
        (kept,) = store.files
        left_s = kept.until - between.clock.now()
        assert relay.config.peer_ttl_s - 60 < left_s <= relay.config.peer_ttl_s


async def test_a_file_that_is_too_large_is_refused_in_words(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob", chat_file_bytes_max=2**20)
    alice.knows(bob)
    bob.knows(alice)
    alice.learns_key_of(bob)
    async with alice.node() as here, bob.node() as there:
        await send_file(here, "bob", bytes(2**20 + 1))
        words = "a file has at most 1 MiB, this one has 1.0 MiB"
        assert await until_transfer(there, alice, Kind.FILE_IN, Transfer.REFUSED) == words
        assert await until_transfer(here, bob, Kind.FILE_OUT, Transfer.REFUSED) == words
        await say(there, "alice", "hi")
        await received(here, bob, 1)
        assert (await send_file(there, "alice", bytes(2**20 + 1)))["error"] == words


async def test_a_full_quota_is_said_in_words(tmp_path: Path) -> None:
    alice, bob = PeerNode(tmp_path, "alice"), PeerNode(tmp_path, "bob", chat_files_bytes_max=2**20)
    alice.knows(bob)
    bob.knows(alice)
    alice.learns_key_of(bob)
    bob.learns_key_of(alice)
    async with alice.node() as here, bob.node() as there:
        await send_file(here, "bob", bytes(400_000))
        await until_transfer(here, bob, Kind.FILE_OUT, Transfer.RECEIVED)
        await send_file(here, "bob", bytes(400_000))
        why = await until_transfer(here, bob, Kind.FILE_OUT, Transfer.REFUSED)
        assert why.startswith("there is no room for it: files of one peer use")
        error = (await send_file(there, "alice", bytes(600_000)))["error"]
        assert "delete messages with files" in str(error)


async def test_so_many_files_wait_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.chat.file_transfers.PENDING_MAX", 2)
    assert pending_files.PENDING_MAX == 256
    alice, bob = couple(tmp_path)
    announced = [Forged(bytes([at])).file for at in range(3)]
    async with alice.node() as here, bob.node() as there:
        await announce(here, alice, bob, *announced)
        why = await until_transfer(there, alice, Kind.FILE_IN, Transfer.REFUSED)
        assert why == "too many files are on their way already"
        assert len(there.peer_services.files.store.files) == 2


async def test_so_many_files_are_added_at_once_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "UPLOADS_MAX", 2)
    alice, _ = couple(tmp_path)
    async with alice.node() as here:
        uuids = [os.urandom(16) for _ in range(3)]
        for count, uuid in enumerate(uuids):
            answer = await ask(
                here, PeerOperation.FILE_BEGIN, peer="bob", uuid=uuid, size=5, name="a"
            )
            assert bool(answer["error"]) == (count == 2)
        for body in (
            {"first": 0, "chunks": [b"other size"]},
            {"first": 0, "chunks": []},
            {"first": -1, "chunks": [b"12345"]},
        ):
            with pytest.raises(Malformed):
                await ask(here, PeerOperation.FILE_CHUNKS, peer="bob", uuid=uuids[0], **body)


async def test_a_store_has_so_many_files_and_no_more() -> None:
    def no_stream(_name: bytes) -> Any:
        raise AssertionError("no chunk is stored")

    store = FileStore("chat", PeerStore(None), no_stream, lambda: 0.0, 2**30)
    for at in range(FILES_MAX // 4):
        file = StoredFile(b"%d" % at, b"%d" % at, bytes(32), 0, 0.0, 1.0)
        store._files[file.stream] = file
    with pytest.raises(RequestError, match="2500 files of one peer are stored already"):
        await store.reserve(StoredFile(b"one more", b"r", bytes(32), 0, 0.0, 1.0))
    await store.reserve(StoredFile(b"of another one", b"s", bytes([1]) * 32, 0, 0.0, 1.0))
    for at in range(FILES_MAX // 4 + 1, FILES_MAX):
        file = StoredFile(b"%d" % at, b"%d" % at, bytes(32), 0, 0.0, 1.0)
        store._files[file.stream] = file
    with pytest.raises(RequestError, match="10000 files are stored already"):
        await store.reserve(StoredFile(b"one more", b"r", bytes([1]) * 32, 0, 0.0, 1.0))


async def test_so_many_requests_are_carried_out_at_once(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    forged = Forged(os.urandom(100))
    async with alice.node() as here, bob.node() as there:
        await announce(here, alice, bob, forged.file)
        async with connected(alice, bob, bob) as channel:
            await offered(channel, forged)
            running, most, slow = 0, 0, there.peer_services.chat.file_operations.offer

            async def offer(sender: bytes, body: Any) -> Any:
                nonlocal running, most
                running += 1
                most = max(most, running)
                await anyio.sleep(0.02)
                running -= 1
                return await slow(sender, body)

            there.peer_services.chat.file_operations.offer = offer  # type: ignore[method-assign]
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(channel.peers, PeerOperation.FILE_OFFER, forged.offer)
            assert most == file_requests.HANDLED_AT_ONCE
            assert there.peer_services.files.limiter.total_tokens == files.TRANSFERS_AT_ONCE


async def test_what_is_stored_stays_when_a_node_or_the_relay_starts_again(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    forged = Forged(os.urandom(3 * CHUNK_BYTES))
    async with alice.node() as here, bob.node():
        await announce(here, alice, bob, forged.file)
        async with connected(alice, bob, bob) as channel:
            await offered(channel, forged)
            assert await put(channel, forged, 0, forged.chunks[:2]) == 2
    async with bob.node() as there:
        async with connected(alice, bob, bob) as channel:
            assert (await offered(channel, forged))["next"] == 2
            assert await put(channel, forged, 2, forged.chunks[2:]) == 3
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)
    async with bob.node():
        async with connected(alice, bob, bob) as channel:
            assert (await offered(channel, forged))["next"] == 3
    relay, carol, dave = relayed(tmp_path / "relayed")
    async with relay.node(), connected(carol, relay, dave) as channel:
        await offered(channel, forged)
        assert await put(channel, forged, 0, forged.chunks[:1]) == 1
    async with relay.node(), connected(carol, relay, dave) as channel:
        assert (await offered(channel, forged))["next"] == 1


async def test_a_chunk_of_a_file_that_was_removed_makes_no_stream(tmp_path: Path) -> None:
    relay, _, _ = relayed(tmp_path)
    forged = Forged(b"12345")
    async with relay.node() as between:
        store = between.peer_services.relayed_files
        file = StoredFile(b"chat/x!file!y", forged.root, bytes(32), 5, 0.0, 2.0**40, forged.leaves)
        await store.reserve(file)
        await store.remove(file.stream)
        with pytest.raises(NotFound):
            await store.append(file, 0, forged.chunks)
        with pytest.raises(UnknownStream):
            await between.peer_services._local_stream(file.stream).describe()


async def test_a_peer_makes_no_progress_by_numbers_that_cannot_be(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    async with alice.node() as here:
        await send_file(here, "bob", bytes(1000))
        ((_, record),) = await file_records(here, bob, Kind.OUT)
        assert record.file is not None

        async def done() -> int:
            answer = await ask(here, PeerOperation.FILE_TRANSFERS, peer="bob")
            return int(answer["transfers"][0]["done"])

        async with connected(bob, alice, alice, "consumer", KEYS_SUFFIX) as channel:
            body = {"root": record.file.root_bytes, "count": 1}
            got = await channel.peers(PeerOperation.FILE_GET, body | {"first": 2**61})
            assert got["chunks"] == []
            assert await done() == 0
            await channel.peers(PeerOperation.FILE_GET, body | {"first": 0})
            assert await done() == 1
    for at in (-1, 2**64):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"state": "wanted", "next": at}, FileOfferAnswer)


async def test_a_peer_that_takes_its_time_lets_others_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.node.chat.chunk_transfer.TURN_S", 0.1)
    alice, bob = couple(tmp_path)
    carol = PeerNode(tmp_path, "carol")
    alice.knows(carol)
    carol.knows(alice)
    alice.learns_key_of(carol)
    carol.learns_key_of(alice)
    async with alice.node() as here, bob.node() as there, carol.node() as friend:
        here.peer_services.files.limiter.total_tokens = 1
        operations = there.peer_services.chat.file_operations
        put_really, is_slow = operations.put, True

        async def put(sender: bytes, root: bytes, first: int, chunks: Sequence[bytes]) -> int:
            if is_slow:
                await anyio.sleep(0.05)
                return await put_really(sender, root, first, chunks[:1])
            return await put_really(sender, root, first, chunks)

        operations.put = put  # type: ignore[method-assign]
        await send_file(here, "bob", bytes(600 * CHUNK_BYTES // 2))
        await until(lambda: bool(there.peer_services.files.store.files))
        await send_file(here, "carol", b"quick")
        await until_transfer(friend, alice, Kind.FILE_IN, Transfer.RECEIVED)
        assert not await transfers(here, bob, Kind.FILE_OUT)
        is_slow = False
        await until_transfer(there, alice, Kind.FILE_IN, Transfer.RECEIVED)

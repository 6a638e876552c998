"""A commit that fails while reads wait: what is not kept is shown to nobody, and nobody hangs.

A real node on a disk whose fdatasync takes as long as the test wants, and fails (S3P-39, S3A-34,
S3A-36, RLA-33).
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import RequestError, StorageFailed
from millpond.actors.store.filesystem import File, OsDisk
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.stream import Stream
from millpond.node.client.streams.streams import Streams
from tests.conformance import s3p_peer as s
from tests.conformance.rustlog_peer import (
    RustlogServer,
    bodies_of,
    fetch,
    offsets_of,
    produce,
    rustlog_server,
)

pytestmark = pytest.mark.crash

NAME = "orders"
PATIENCE_S = 60.0
STEP_S = 0.02
FAILED = b"-ERR_LIMITS storage failed\r\n"
FAILURES = 3


class FaultyDisk(OsDisk):
    """Nothing is synced while the `gate` is shut; a sync that returns then fails if `is_broken`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.is_broken = False
        self.is_syncing = threading.Event()

    def create(self, path: Path, size: int) -> FaultyFile:  # type: ignore[override]
        return FaultyFile(super().create(path, size), self)

    def open(self, path: Path) -> FaultyFile:  # type: ignore[override]
        return FaultyFile(super().open(path), self)

    def shut(self) -> None:
        """From now on syncs wait."""
        self.is_syncing.clear()
        self.gate.clear()

    async def fails(self) -> None:
        """Wait for the sync that is to fail; then it does, and so do those after it."""
        assert await anyio.to_thread.run_sync(self.is_syncing.wait, PATIENCE_S)
        self.is_broken = True
        self.gate.set()


class FaultyFile:
    def __init__(self, file: File, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk
        self.write = file.write
        self.close = file.close

    def sync(self) -> None:
        self._disk.is_syncing.set()
        assert self._disk.gate.wait(PATIENCE_S), "the test forgot the gate"
        if self._disk.is_broken:
            raise OSError(errno.EIO, "the disk is broken")
        self._file.sync()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@asynccontextmanager
async def serving(folder: Path, disk: OsDisk) -> AsyncIterator[tuple[RustlogServer, Streams]]:
    """A node with all three ways to its streams."""
    async with rustlog_server(folder, disk=disk, p2p="127.0.0.1:0") as server:
        url = f"tcp://{server.node.listeners['p2p']}"
        async with connect_streams(url) as streams:
            yield server, streams


async def begin(server: RustlogServer) -> s.Client:
    """A topic of one partition with one record, kept; and a client of S3P."""
    peer, client = await server.rustlog(), await server.s3p()
    await peer.create(NAME)
    assert await client.append(b"a", ID=5) == (5, 0)
    return client


async def append_at_last(server: RustlogServer, body: bytes) -> s.Id:
    """Append until the store takes it; each refusal is one, and ends the connection (S3A-36)."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            client = await server.s3p()
            reply = await client.ask(s.append(body))
            if reply != FAILED:
                return s.id_of(reply)
            assert await client.rest() == b""
            await anyio.sleep(STEP_S)


async def outcome(read: Callable[[], Awaitable[list[bytes]]]) -> list[bytes] | type[Exception]:
    """The result of a waiting read: records, none, or a refusal; it must get something."""
    with anyio.fail_after(PATIENCE_S):
        try:
            return await read()
        except RequestError as error:
            return type(error)


async def are_waiting(stream: Stream, count: int) -> None:
    """Return when so many reads wait for a record."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            if (await stream.info()).waiting == count:
                return
            await anyio.sleep(STEP_S)


async def is_all_there(server: RustlogServer, *bodies: bytes) -> None:
    """These records and no others, by S3P and by RustLog, at offsets without a gap."""
    client, peer = await server.s3p(), await server.rustlog()
    assert [body for _, body in await client.records()] == list(bodies)
    fetched = await peer.ask(fetch(NAME))
    assert bodies_of(fetched) == list(bodies)
    assert offsets_of(fetched) == list(range(len(bodies)))


async def test_s3a_36_who_waits_never_sees_what_is_not_kept(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """S3A-34, S3A-36, RLA-33: each writer gets its protocol's error, also those whose append
    stood behind the one that failed, and those who read meanwhile are answered too."""
    async with serving(tmp_path, disk) as (server, streams):
        writer, reader = await begin(server), await server.s3p()
        producer, fetcher = await server.rustlog(), await server.rustlog()
        stream = streams.stream(NAME)
        told: dict[str, list[bytes] | type[Exception]] = {}

        async def own(what: str, read: Callable[[], Awaitable[list[bytes]]]) -> None:
            told[what] = await outcome(read)

        async def own_read() -> list[bytes]:
            return [each.data for each in await stream.read(1, wait_s=5)]

        async def own_append() -> list[bytes]:
            await stream.append(b"lost 3")
            return [b"lost 3"]

        async with anyio.create_task_group() as tasks:
            await reader.send(s.read(BLOCK=5_000, MIN_ID="5-1"))
            tasks.start_soon(own, "reader", own_read)
            await are_waiting(stream, 2)
            disk.shut()
            await writer.send(s.append(b"lost 1"))
            await producer.send(produce(NAME, b"lost 2"), fetch(NAME, 1))
            tasks.start_soon(own, "writer", own_append)
            await fetcher.send(fetch(NAME, 1))
            await disk.fails()

            assert await writer.rest() == FAILED
            assert (await producer.read())["code"] == 503
            for each in (await producer.read(), await fetcher.read()):
                assert each.get("code") == 503 or each["records"] == []
            disk.is_broken = False
            kept = await append_at_last(server, b"kept")
        assert told["writer"] is StorageFailed
        assert told["reader"] == [b"kept"]
        found = s.pairs((f"{kept[0]}-{kept[1]}", b"kept"))
        await reader.expect(found)
        await is_all_there(server, b"a", b"kept")
    async with serving(tmp_path, OsDisk()) as (server, streams):
        await is_all_there(server, b"a", b"kept")
        assert [each.data for each in await streams.stream(NAME).read()] == [b"a", b"kept"]


async def test_s3p_39_who_comes_while_the_store_cannot_write_waits(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """S3P-39: to its deadline, or to the first record that is kept; refused appends wake nobody."""
    async with serving(tmp_path, disk) as (server, streams):
        writer, patient, hasty = await begin(server), await server.s3p(), await server.s3p()
        disk.shut()
        await writer.send(s.append(b"lost"))
        await disk.fails()
        assert await writer.rest() == FAILED
        await patient.send(s.read(BLOCK=60_000, MIN_ID="5-1"))
        await hasty.send(s.read(BLOCK=100, MIN_ID="5-1"))
        refused = await server.s3p()
        assert await refused.ask(s.append(b"lost as well")) == FAILED
        with pytest.raises(StorageFailed):
            await streams.stream(NAME).append(b"lost, too")
        await hasty.expect(s.NOTHING)
        disk.is_broken = False
        kept = await append_at_last(server, b"kept")
        await patient.expect(s.pairs((f"{kept[0]}-{kept[1]}", b"kept")))
        await is_all_there(server, b"a", b"kept")


async def test_s3p_32_a_follower_over_failures_sees_what_is_kept_and_nothing_else(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    """S3P-32, S3A-34: once each, in order, under the id that its writer was told."""
    kept: list[tuple[s.Id, bytes]] = [((5, 0), b"a")]
    seen: list[tuple[s.Id, bytes]] = []

    async def follow(server: RustlogServer) -> None:
        client, at = await server.s3p(), (0, 0)
        while not seen or seen[-1][1] != b"the last":
            reply = await client.ask(s.read(MIN_ID=s.after(at), BLOCK=2_000, COUNT=3))
            if reply == FAILED:
                assert await client.rest() == b""
                client = await server.s3p()
                continue
            parts = reply.split(b"\r\n")[2::2]
            seen.extend(
                (s.id_of(s.bulk(name)), body)
                for name, body in zip(parts[::2], parts[1::2], strict=True)
            )
            at = seen[-1][0] if seen else at

    async with serving(tmp_path, disk) as (server, _):
        await begin(server)
        with anyio.fail_after(3 * PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow, server)
                for number in range(FAILURES):
                    losers = [await server.s3p() for _ in range(3)]
                    disk.shut()
                    for each in losers:
                        await each.send(s.append(b"lost"))
                    await disk.fails()
                    assert [await each.rest() for each in losers] == [FAILED] * 3
                    disk.is_broken = False
                    body = b"the last" if number == FAILURES - 1 else b"kept %d" % number
                    kept.append((await append_at_last(server, body), body))
    assert seen == kept

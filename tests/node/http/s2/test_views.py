"""One stream through S2, S3P, RustLog and the node's own client (docs/internals/streams.md)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from s2_sdk import (
    AppendInput,
    BasinConfig,
    CommandRecord,
    Encryption,
    ReadLimit,
    Record,
    S2ServerError,
    SeqNum,
)

from millpond.actors.messages import Durability
from millpond.errors import InvalidRequest, LimitExceeded, NotAllowed
from millpond.node.client.rustlog.client import Rustlog, connect_rustlog
from millpond.node.client.s3p.client import S3p, connect_s3p
from millpond.node.client.streams.connect import connect_streams
from millpond.node.client.streams.records import NewRecord
from millpond.node.client.streams.stream import Stream
from millpond.node.node import Node
from tests.node.http.s2.conftest import client, running

ANY = "127.0.0.1:0"
NAME = "orders"


class Views:
    """The same stream by everybody's client."""

    s2: Any
    s3p: S3p
    rustlog: Rustlog
    own: Stream


@pytest.fixture
async def views(anyio_backend: object) -> AsyncIterator[Views]:
    async with AsyncExitStack() as stack:
        node: Node = await stack.enter_async_context(running(p2p=ANY, s3p=ANY, rustlog=ANY))
        found = Views()
        s2 = await stack.enter_async_context(client(node))
        await s2.basin("millpond").create_stream(NAME)
        found.s2 = s2.basin("millpond").stream(NAME)
        found.s3p = await stack.enter_async_context(connect_s3p(node.listeners["s3p"]))
        found.rustlog = await stack.enter_async_context(connect_rustlog(node.listeners["rustlog"]))
        streams = await stack.enter_async_context(connect_streams(f"tcp://{node.listeners['p2p']}"))
        found.own = streams.stream(NAME)
        yield found


async def test_everybody_reads_what_anybody_appended(views: Views) -> None:
    """S2 and the node's own client see everything; S3P skips what is empty, S3P and RustLog what
    commands; sequences are the same for all."""
    await views.s2.append(AppendInput([Record(b"from s2", [(b"k", b"v")]), Record(b"")]))
    await views.s3p.append(NAME, b"from s3p")
    await views.rustlog.produce(NAME, [b"from rustlog"])
    await views.own.append(NewRecord(b"from us", [(b"a", b"b")]))
    await views.s2.append(AppendInput([CommandRecord.fence("f"), Record(b"last")]))
    bodies = [b"from s2", b"", b"from s3p", b"from rustlog", b"from us", b"f", b"last"]

    seen = (await views.s2.read(start=SeqNum(0))).records
    assert [(each.seq_num, each.body) for each in seen] == list(enumerate(bodies))
    own = await views.own.read()
    assert [(each.sequence, each.timestamp, each.headers, each.data) for each in own] == [
        (each.seq_num, each.timestamp, each.headers, each.body) for each in seen
    ]
    plain = [body for body in bodies if body != b"f"]
    assert [each.data for each in await views.s3p.read(NAME)] == [each for each in plain if each]
    fetched = await views.rustlog.fetch(NAME, 0)
    assert [each.data for each in fetched.records] == plain
    assert [each.offset for each in fetched.records] == [0, 1, 2, 3, 4, 6]


async def test_a_trim_and_a_deletion_hold_for_all(views: Views) -> None:
    for number in range(5):
        await views.own.append(b"%d" % number)
    await views.s2.append(AppendInput([CommandRecord.trim(3)]))
    assert [each.sequence for each in await views.own.read()] == [3, 4, 5]
    assert [each.data for each in await views.s3p.read(NAME)] == [b"3", b"4"]
    await views.own.trim(4)
    found = []
    async for batch in views.s2.read_session(start=SeqNum(0), limit=ReadLimit(count=2)):
        found += [each.seq_num for each in batch.records]
    assert found == [4, 5]
    await views.s3p.delete(NAME)
    with pytest.raises(Exception, match="does not exist"):
        await views.s2.check_tail()


async def test_s2x_60_old_and_future_timestamps_are_there_for_all(views: Views) -> None:
    """Of a stream with the default age of S2, seven days."""
    await views.s2.append(AppendInput([Record(b"old", [], 1234), Record(b"newer", [], 1235)]))
    await views.own.append(NewRecord(b"far", timestamp=2**53))
    bodies = [b"old", b"newer", b"far"]
    seen = (await views.s2.read(start=SeqNum(0))).records
    assert [(each.body, each.timestamp) for each in seen[:2]] == [(b"old", 1234), (b"newer", 1235)]
    assert [each.body for each in seen] == bodies
    assert [each.data for each in await views.own.read()] == bodies
    assert [each.data for each in await views.s3p.read(NAME)] == bodies
    assert [each.data for each in (await views.rustlog.fetch(NAME, 0)).records] == bodies


async def test_s2x_70_followers_of_every_view_get_what_an_append_trims(views: Views) -> None:
    """They wait at the tail; the trim takes effect at once, and later reads begin behind it."""
    await views.own.append(b"before")
    found: dict[str, list[bytes]] = {}

    async def wait_by_s3p() -> None:
        last = (await views.s3p.read(NAME))[-1].id
        after = last._replace(seq=last.seq + 1)
        found["s3p"] = [each.data for each in await views.s3p.read(NAME, after, block_ms=20_000)]

    async def wait_by_us() -> None:
        found["own"] = [each.data for each in await views.own.read(1, wait_s=20)]

    async def wait_by_s2() -> None:
        bodies = found["s2"] = []
        async for batch in views.s2.read_session(
            start=SeqNum(1), limit=ReadLimit(count=5), wait=20
        ):
            bodies += [each.body for each in batch.records]

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for wait in (wait_by_s3p, wait_by_us, wait_by_s2):
                tasks.start_soon(wait)
            while (await views.own.info()).waiting < 3:  # noqa: ASYNC110
                await anyio.sleep(0.01)
            records = [Record(b"d%d" % number) for number in range(3)]
            commands = [CommandRecord.trim(2**53 - 1), CommandRecord.fence("end")]
            await views.s2.append(AppendInput([*records, *commands]))
    data = [b"d0", b"d1", b"d2"]
    whole = [*data, (2**53 - 1).to_bytes(8), b"end"]
    assert found == {"s3p": data, "own": whole, "s2": whole}
    assert [each.data for each in await views.own.read()] == [b"end"]
    assert await views.s3p.read(NAME) == []


async def test_s2x_13_only_s2_serves_an_encrypted_stream(anyio_backend: object) -> None:
    """Every other view is refused, appends and reads; tail, trim and deletion work."""
    async with AsyncExitStack() as stack:
        node: Node = await stack.enter_async_context(running(p2p=ANY, s3p=ANY, rustlog=ANY))
        s2 = await stack.enter_async_context(client(node))
        config = BasinConfig(stream_cipher=Encryption.AES_256_GCM)
        await s2.reconfigure_basin("millpond", config=config)
        await s2.basin("millpond").create_stream(NAME)
        stream = s2.basin("millpond").stream(NAME, encryption_key=bytes(32))
        await stream.append(AppendInput([Record(b"secret"), Record(b"more")]))
        s3p = await stack.enter_async_context(connect_s3p(node.listeners["s3p"]))
        streams = await stack.enter_async_context(connect_streams(f"tcp://{node.listeners['p2p']}"))
        own = streams.stream(NAME)
        for call in (s3p.append(NAME, b"x"), s3p.read(NAME)):
            with pytest.raises(LimitExceeded, match="the stream is encrypted"):
                await call
        rustlog = await stack.enter_async_context(connect_rustlog(node.listeners["rustlog"]))
        for request in (rustlog.produce(NAME, [b"x"]), rustlog.fetch(NAME, 0)):
            with pytest.raises(InvalidRequest, match="encrypted"):
                await request
        for asked in (own.append(b"x"), own.read()):
            with pytest.raises(NotAllowed):
                await asked
        url = f"http://{node.listeners['http']}/v1/stream/{NAME}"
        async with httpx.AsyncClient() as http:
            text = {"content-type": "application/octet-stream"}
            for got in (
                await http.get(url),
                await http.get(url, params={"offset": "-1", "live": "long-poll"}),
                await http.post(url, content=b"x", headers=text),
                await http.put(f"{url}-fork", headers={"stream-forked-from": f"/v1/stream/{NAME}"}),
            ):
                assert got.status_code == 403, (got.request.method, got.text)
        info = await own.info()
        assert info.tail == 2
        await own.trim(1)
        assert [each.body for each in (await stream.read(start=SeqNum(0))).records] == [b"more"]
        await own.delete()
        with pytest.raises(Exception, match="does not exist"):
            await stream.check_tail()


async def test_s2x_09_encrypted_records_are_on_the_disk_and_nothing_of_them(tmp_path: Path) -> None:
    """After a restart the key opens them; no file has them in clear, or the key."""
    told = {"data": str(tmp_path / "node"), "durability": Durability.DISK}
    key, secret = bytes(range(7, 39)), b"nobody reads this on a disk" * 9
    async with running(**told) as node, client(node) as s2:
        config = BasinConfig(stream_cipher=Encryption.AEGIS_256)
        await s2.create_basin("secret-basin", config=config)
        await s2.basin("secret-basin").create_stream(NAME)
        stream = s2.basin("secret-basin").stream(NAME, encryption_key=key)
        await stream.append(AppendInput([Record(secret, [(b"name", secret)])]))
    async with running(**told) as node, client(node) as s2:
        stream = s2.basin("secret-basin").stream(NAME, encryption_key=key)
        (found,) = (await stream.read(start=SeqNum(0))).records
        assert (found.body, found.headers) == (secret, [(b"name", secret)])
        with pytest.raises(S2ServerError, match="aegis-256"):
            await s2.basin("secret-basin").stream(NAME).read(start=SeqNum(0))
    for path in (tmp_path / "node").rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert secret[:20] not in data and key not in data

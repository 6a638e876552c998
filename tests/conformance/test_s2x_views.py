"""An encrypted stream in the other APIs, byte by byte (S2X-13): they have no key, so they neither
append to it nor read it; tail, trim and deletion work."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from shutil import copytree

import anyio
import pytest

from millpond.actors.errors import NotAllowed, UnknownStream
from millpond.node.client.streams.connect import connect_streams
from tests.conformance import rustlog_binary as binary
from tests.conformance import s3p_peer as s3p
from tests.conformance.rustlog_peer import (
    RustlogServer,
    fetch,
    over_sockets,
    produce,
    rustlog_server,
)
from tests.node.http.clients import Http1, Reply
from tests.node.processes import command

pytestmark = over_sockets

KEY = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
BASIN = "millpond"
"""The node's own, whose streams the other APIs show."""
SECRET = "nobody reads this without the key"
NAME = "orders"
ENCRYPTED = b"-ERR_LIMITS the stream is encrypted\r\n"
ANY = "127.0.0.1:0"


class Views:
    """A node with one encrypted stream of three records."""

    def __init__(self, server: RustlogServer) -> None:
        self.server = server
        self._http = Http1(server.node.listeners["http"])

    @property
    def p2p(self) -> str:
        return f"tcp://{self.server.node.listeners['p2p']}"

    async def http(self, method: str, path: str, body: bytes = b"", **headers: str) -> Reply:
        pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
        return await self._http.send(method, path, "[::1]", pairs, body)

    async def s2(self, method: str, path: str, body: object = None) -> Reply:
        data = b"" if body is None else json.dumps(body).encode()
        more = {"s2_basin": BASIN, "s2_encryption_key": KEY, "content_type": "application/json"}
        return await self.http(method, f"/v1{path}", data, **more)

    async def kept(self) -> list[int]:
        """The sequences of the records that are there, by the API that has the key."""
        got = await self.s2("GET", f"/streams/{NAME}/records?seq_num=0")
        assert got.status in (200, 416), got.body
        records = json.loads(got.body).get("records", [])
        assert {each["body"] for each in records} <= {SECRET}
        return [each["seq_num"] for each in records]


@asynccontextmanager
async def views(data: Path | None = None) -> AsyncIterator[Views]:
    async with rustlog_server(data, p2p=ANY, http=ANY) as server:
        found = Views(server)
        config = {"config": {"stream_cipher": "aes-256-gcm"}}
        assert (await found.s2("PUT", f"/basins/{BASIN}", config)).status == 200
        assert (await found.s2("PUT", f"/streams/{NAME}")).status == 201
        records = {"records": [{"body": SECRET}] * 3}
        assert (await found.s2("POST", f"/streams/{NAME}/records", records)).status == 200
        yield found


async def test_s2x_13_s3p() -> None:
    async with views() as node:
        for request in (s3p.append(b"x"), s3p.append(b"x", ID=10**13), s3p.read()):
            client = await node.server.s3p()  # the error is fatal
            assert await client.ask(request) == ENCRYPTED
        assert await node.kept() == [0, 1, 2]
        client = await node.server.s3p()
        assert await client.ask(s3p.trim(MIN_ID=f"{2**63}-0")) == s3p.OK
        assert await node.kept() == []
        assert await client.ask(s3p.delete()) == s3p.OK
        assert (await node.s2("GET", f"/streams/{NAME}")).status == 404


async def test_s2x_13_rustlog_in_both_forms() -> None:
    async with views() as node:
        client = await node.server.rustlog()
        for request in (produce(NAME, b"x"), fetch(NAME)):
            assert (await client.refused(request, 400))["message"] == "encrypted"
        assert await client.partition(NAME) == (0, 3)
        peer = await binary.binary(node.server)
        await peer.fails(binary.produce(NAME, b"x"), 500, "encrypted")
        await peer.fails(binary.fetch(NAME), 500, "encrypted")
        await peer.says(binary.describe_partition(NAME), binary.watermark(NAME, 0, 3))
        assert await client.commit("g", NAME, 2)
        await peer.fails(binary.fetch(NAME, group="g"), 500, "encrypted")
        assert await node.kept() == [0, 1, 2]


async def test_s2x_13_durable_streams_and_state() -> None:
    async with views() as node:
        path, state = f"/v1/stream/{NAME}", f"/millpond/state/{NAME}"
        shown = await node.http("HEAD", path)
        kind = shown.headers["content-type"]
        assert (shown.status, shown.headers["stream-next-offset"] != "-1") == (200, True)
        for method, query, body in (
            ("POST", path, b"x"),
            ("GET", f"{path}?offset=-1", b""),
            ("GET", f"{path}?offset=-1&live=long-poll", b""),
            ("GET", f"{path}?offset=-1&live=sse", b""),
            ("GET", state, b""),
        ):
            got = await node.http(method, query, body, content_type=kind)
            assert got.status == 403, (method, query, got)
            assert SECRET.encode() not in got.body
        assert await node.kept() == [0, 1, 2]
        assert (await node.http("DELETE", path)).status == 204
        assert (await node.s2("GET", f"/streams/{NAME}")).status == 404


async def test_s2x_13_the_node_s_own_packets() -> None:
    async with views() as node, connect_streams(node.p2p) as streams:
        stream = streams.stream(NAME)
        with pytest.raises(NotAllowed):
            await stream.append(b"x")
        with pytest.raises(NotAllowed):
            await stream.read()
        info = await stream.info()
        assert (info.trim_point, info.tail) == (0, 3)
        await stream.trim(2)
        assert await node.kept() == [2]
        await stream.delete()
        with pytest.raises(UnknownStream):
            await stream.info()


async def test_s2x_13_commands() -> None:
    async with views() as node:

        async def run(*words: str) -> tuple[int, bytes]:
            call = partial(command, "stream", *words, "--connect", node.p2p)
            done = await anyio.to_thread.run_sync(call)
            assert SECRET.encode() not in done.stdout + done.stderr
            return done.returncode, done.stderr

        for words in (("append", NAME, "x"), ("read", NAME), ("tail", NAME)):
            code, text = await run(*words)
            assert code != 0 and b"not allowed" in text, (words, text)
        for words in (("info", NAME), ("trim", NAME, "2")):
            assert (await run(*words))[0] == 0, words
        assert await node.kept() == [2]
        assert (await run("delete", NAME, "--yes"))[0] == 0


async def test_s2x_13_a_copy_of_the_folder_has_the_stored_bytes_and_the_flag(
    tmp_path: Path,
) -> None:
    """There is no export of streams: the files of a stopped node are what is copied."""
    async with views(tmp_path / "data"):
        pass
    copytree(tmp_path / "data", tmp_path / "copy")
    files = [each for each in (tmp_path / "copy").rglob("*") if each.is_file()]
    assert files and not any(SECRET.encode() in each.read_bytes() for each in files)
    async with rustlog_server(tmp_path / "copy", p2p=ANY, http=ANY) as server:
        node = Views(server)
        assert await node.kept() == [0, 1, 2]
        assert await (await server.s3p()).ask(s3p.read()) == ENCRYPTED

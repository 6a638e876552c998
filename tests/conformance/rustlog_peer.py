"""A byte-level client of RustLog, and a node that serves streams to it.

It judges the node by bytes: frames and JSON are read and written here anew.
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from millpond.actors.store.filesystem import Disk
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from tests.conformance.peer import Ended, SocketPipe, connect_tcp
from tests.conformance.s3p_peer import Client as S3pClient

PATIENCE_S = 60.0
FRAME_MAX = 10_485_760
RECORD_MAX = 7_863_296

over_sockets = pytest.mark.parametrize("wiring", ["tcp-uvloop", "tcp-trio"])
"""Every row is shown over real sockets, on both libraries."""

Fields = dict[str, Any]


def framed(payload: bytes | str) -> bytes:
    data = payload.encode() if isinstance(payload, str) else payload
    return len(data).to_bytes(4, "big") + data


def frame_of(**fields: Any) -> bytes:
    """A request as a frame."""
    return framed(json.dumps(fields))


def b64(*bodies: bytes) -> list[str]:
    return [base64.b64encode(each).decode() for each in bodies]


def produce(topic: str, *bodies: bytes, partition: int = 0) -> Fields:
    records = b64(*bodies)
    return {"type": "Produce", "topic": topic, "partition": partition, "records": records}


def fetch(topic: str, offset: int = 0, *, partition: int = 0, **more: Any) -> Fields:
    return {"type": "Fetch", "topic": topic, "partition": partition, "offset": offset, **more}


def bodies_of(fetched: Fields) -> list[bytes]:
    return [base64.b64decode(each["payload"], validate=True) for each in fetched["records"]]


def offsets_of(fetched: Fields) -> list[int]:
    return [each["offset"] for each in fetched["records"]]


class RustlogPeer:
    """One connection. Every wait is bounded."""

    def __init__(self, pipe: SocketPipe) -> None:
        self.pipe = pipe
        self._rest = b""

    async def send(self, *requests: Fields | bytes) -> None:
        """All in one write; bytes are sent as they are."""
        await self.pipe.send(
            b"".join(each if isinstance(each, bytes) else frame_of(**each) for each in requests)
        )

    async def payload(self) -> bytes:
        """The content of the next frame. Raises Ended."""
        with anyio.fail_after(PATIENCE_S):
            while len(self._rest) < 4 or len(self._rest) < 4 + self._size():
                data = await self.pipe.receive()
                if not data:
                    raise Ended
                self._rest += data
        end = 4 + self._size()
        payload, self._rest = self._rest[4:end], self._rest[end:]
        return payload

    def _size(self) -> int:
        return int.from_bytes(self._rest[:4], "big")

    async def read(self) -> Fields:
        """The next response."""
        fields = json.loads((await self.payload()).decode())
        assert isinstance(fields, dict) and isinstance(fields["type"], str)
        return fields

    async def ask(self, request: Fields | bytes) -> Fields:
        await self.send(request)
        return await self.read()

    async def all(self, requests: Sequence[Fields]) -> list[Fields]:
        """Send all of them in one write, and give their answers."""
        await self.send(*requests)
        return [await self.read() for _ in requests]

    async def refused(self, request: Fields | bytes, code: int) -> Fields:
        """The request is answered by an Error of this code, and the connection goes on."""
        answer = await self.ask(request)
        assert (answer["type"], answer["code"]) == ("Error", code), answer
        assert isinstance(answer["message"], str) and answer["message"]
        assert set(answer) == {"type", "code", "message", "details"}
        assert answer["details"] is None or isinstance(answer["details"], dict)
        assert await self.ask({"type": "Ping"}) == {"type": "Pong"}
        return answer

    async def create(self, topic: str, partitions: int = 1) -> None:
        answer = await self.ask(
            {"type": "CreateTopic", "topic": topic, "partition_count": partitions}
        )
        assert answer == {
            "type": "CreateTopicResponse",
            "success": True,
            "partitions_created": partitions,
        }

    async def commit(self, group: str, topic: str, offset: int, partition: int = 0) -> bool:
        place = {"group": group, "topic": topic, "partition": partition}
        answer = await self.ask({"type": "OffsetCommit", **place, "offset": offset})
        assert answer.pop("type") == "OffsetCommitResponse" and set(answer) == {"success"}
        assert isinstance(answer["success"], bool)
        return answer["success"]

    async def committed(self, group: str, topic: str, partition: int = 0) -> int | None:
        answer = await self.ask(
            {"type": "OffsetFetch", "group": group, "topic": topic, "partition": partition}
        )
        assert answer.pop("type") == "OffsetFetchResponse" and set(answer) == {"offset"}
        offset: int | None = answer["offset"]
        return offset

    async def partition(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Log start and high watermark."""
        answer = await self.ask(
            {"type": "DescribePartition", "topic": topic, "partition": partition}
        )
        return answer["log_start_offset"], answer["high_watermark"]

    async def settled(self, topic: str) -> tuple[int, int]:
        """The same, once retention has followed the appends: that of a store that writes later
        does so after their answers."""
        bounds, before = await self.partition(topic), None
        with anyio.fail_after(10):
            while bounds != before:
                await anyio.sleep(0.02)
                before, bounds = bounds, await self.partition(topic)
        return bounds

    async def ends(self, *errors: int) -> None:
        """Errors of these codes come, and then the end."""
        for code in errors:
            answer = await self.read()
            assert (answer["type"], answer["code"]) == ("Error", code), answer
        with pytest.raises(Ended):
            await self.payload()
        assert self._rest == b""


class RustlogServer:
    """A running node that serves RustLog and S3P."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._open: list[SocketPipe | S3pClient] = []

    async def rustlog(self) -> RustlogPeer:
        return RustlogPeer(await self.dial())

    async def dial(self) -> SocketPipe:
        """A connection to RustLog's port."""
        pipe = await connect_tcp(self.node.listeners["rustlog"])
        self._open.append(pipe)
        return pipe

    async def s3p(self) -> S3pClient:
        host, _, port = self.node.listeners["s3p"].rpartition(":")
        client = S3pClient(await anyio.connect_tcp(host, int(port)))
        self._open.append(client)
        return client

    async def aclose(self) -> None:
        for each in self._open:
            await each.aclose()


@asynccontextmanager
async def rustlog_server(
    data: Path | None = None,
    *,
    now: Callable[[], float] | None = None,
    disk: Disk | None = None,
    **settings: Any,
) -> AsyncIterator[RustlogServer]:
    """Run a node: in memory, unless it has a folder; by its own clock, unless one is given."""
    ports = {"p2p": OFF, "ws": OFF, "s3p": "127.0.0.1:0", "rustlog": "127.0.0.1:0", "http": OFF}
    config = Config(data=str(data or ""), **(ports | settings))
    clock = Clock(monotonic=now, wall=now) if now is not None else None
    async with Node(config, rng=Random(7), clock=clock, disk=disk) as node:
        server = RustlogServer(node)
        try:
            yield server
        finally:
            await server.aclose()

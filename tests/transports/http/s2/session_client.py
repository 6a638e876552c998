"""An S2 client that sends byte by byte, to an API on a node in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
import trio.testing

from millpond.actors.runtime.supervisor import contain
from millpond.transports.http import paths
from millpond.transports.http.app import Api, Application
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.s2.codecs import s2s as frames
from millpond.transports.http.s2.codecs.compression import Compression
from millpond.transports.http.s2.codecs.s2s import Decoder, Frame
from tests.transports.http.client import Client, Exchange, Got
from tests.transports.http.running_app import QUICK, RunningApp, running_app

BASIN = "test-basin"
JSON, PROTO, S2S = "application/json", "application/protobuf", "s2s/proto"
RECORDS = "/v1/streams/orders/records"
CLOCKED = pytest.mark.parametrize(
    "anyio_backend",
    [("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})],
    ids=["mock"],
)
"""In virtual time: a sleep costs none."""


class Speaker:
    """One client. Headers are keywords; `s2_basin` is BASIN unless told otherwise."""

    def __init__(self, node: RunningApp, **options: Any) -> None:
        self.node = node.node
        apis: dict[tuple[bytes, ...], Api] = {**dict.fromkeys(paths.S2, S2Api(node.services))}
        guard = partial(contain, "request/http")
        self.application = Application(node.services, apis, guard, QUICK)
        self.client = Client(self.application, **options)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str | None) -> Got:
        """A whole request and its whole answer; a body is JSON unless `content_type` says else."""
        if body:
            headers.setdefault("content_type", JSON)
        return await self.client.request(method, path, _pairs(headers), body)

    @asynccontextmanager
    async def session(self, method: str, path: str, **headers: str | None) -> AsyncIterator[Talk]:
        """A session; S2S unless `accept` asks for events."""
        if "accept" not in headers:
            headers["content_type"] = S2S
        async with self.client.open(method, path, _pairs(headers)) as exchange:
            if method == "GET":
                await exchange.say(b"", is_last=True)
            yield Talk(exchange)

    async def append(
        self, *bodies: str, stream: str = "orders", **conditions: Any
    ) -> dict[str, Any]:
        """Append as JSON; gives the ack."""
        records = [{"body": body} for body in bodies]
        given = msgspec.json.encode({"records": records, **conditions})
        got = await self.ask("POST", f"/v1/streams/{stream}/records", given)
        assert got.status == 200, got.body
        found: dict[str, Any] = got.json()
        return found


class Talk:
    """A session under way."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._decoder = Decoder()
        self._frames: list[Frame] = []
        self._text = b""

    async def head(self) -> dict[bytes, bytes]:
        """Wait for 200; gives the headers."""
        assert await self.exchange.head() == 200
        return dict(self.exchange.pairs)

    async def say(self, *given: bytes, is_last: bool = False) -> None:
        await self.exchange.say(b"".join(given), is_last=is_last)

    async def frame(self) -> Frame | None:
        """The next frame; None: a clean end."""
        while not self._frames:
            piece = await self.exchange.piece()
            if piece is None:
                assert not self._decoder.is_midway
                return None
            self._frames += self._decoder.feed(piece)
            assert self._decoder.error is None
        return self._frames.pop(0)

    async def ack(self) -> tuple[int, int]:
        """The next ack: where it begins and ends."""
        frame = await self.frame()
        assert frame is not None and not frame.is_terminal, frame
        ack = s2_pb2.AppendAck.FromString(frame.message())
        return ack.start.seq_num, ack.end.seq_num

    async def batch(self) -> tuple[list[int], int | None]:
        """The next batch: its sequences, and the tail's."""
        frame = await self.frame()
        assert frame is not None and not frame.is_terminal, frame
        found = s2_pb2.ReadBatch.FromString(frame.message())
        tail = found.tail.seq_num if found.HasField("tail") else None
        return [each.seq_num for each in found.records], tail

    async def terminal(self) -> tuple[int, Any]:
        """The terminal frame, maybe behind heartbeats: status and JSON; the body ends with it."""
        while (frame := await self.frame()) is not None and not frame.is_terminal:
            assert not s2_pb2.ReadBatch.FromString(frame.message()).records
        assert frame is not None and frame.is_terminal, frame
        assert frame.compression is Compression.NONE
        assert await self.frame() is None
        return int.from_bytes(frame.body[:2], "big"), msgspec.json.decode(frame.body[2:])

    async def event(self) -> list[bytes] | None:
        """The lines of the next event; None: a clean end."""
        while b"\n\n" not in self._text:
            piece = await self.exchange.piece()
            if piece is None:
                assert not self._text
                return None
            self._text += piece
        event, _, self._text = self._text.partition(b"\n\n")
        return event.split(b"\n")


@asynccontextmanager
async def speaker(*streams: str, **settings: Any) -> AsyncIterator[Speaker]:
    """A node in memory with BASIN, and these streams in it."""
    async with running_app({}, **settings) as node:
        found = Speaker(node)
        got = await found.ask("PUT", f"/v1/basins/{BASIN}")
        assert got.status in (200, 201), got.body
        for each in streams:
            got = await found.ask("PUT", f"/v1/streams/{each}")
            assert got.status in (200, 201), got.body
        yield found


def append_message(*bodies: bytes, **conditions: Any) -> bytes:
    """An AppendInput."""
    records = [s2_pb2.AppendRecord(body=body) for body in bodies]
    return s2_pb2.AppendInput(records=records, **conditions).SerializeToString()


def append_frame(*bodies: bytes, how: Compression = Compression.NONE, **conditions: Any) -> bytes:
    """The same in a frame."""
    return frames.encode((append_message(*bodies, **conditions),), how)


def code_of(got: Got) -> tuple[int, str]:
    """The status and the word of an error, whose form is checked (A.9)."""
    assert got.headers[b"content-type"] == b"application/json"
    assert got.headers[b"content-length"] == b"%d" % len(got.body)
    content = got.json()
    assert set(content) == {"code", "message"} and content["message"]
    return got.status, content["code"]


def _pairs(headers: dict[str, str | None]) -> list[tuple[bytes, bytes]]:
    told = {"s2_basin": BASIN, **headers}
    return [
        (name.replace("_", "-").encode(), value.encode("utf-8", "surrogateescape"))
        for name, value in told.items()
        if value is not None
    ]

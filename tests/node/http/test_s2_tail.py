"""S2 read sessions at the tail on real sockets: HTTP/1.1 and HTTP/2, events and S2S (S2X-70 to
S2X-76), byte by byte as the published clients speak."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator

import anyio
import h2.events
import msgspec
import pytest

from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs.s2s import Decoder
from tests.node.http.clients import Http2, dial, get, rest
from tests.transports.http.running_app import CLOSED

RECORDS = "/v1/streams/orders/records"
EVENTS = ("accept", "text/event-stream")
S2S = ("content-type", "s2s/proto")
BASIN = ("s2-basin", "millpond")
GENERATION = [b"d0", b"d1", b"d2", (2**53 - 1).to_bytes(8), b"end-1"]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def address(anyio_backend: object) -> AsyncIterator[str]:
    """A node with an empty stream."""
    told = {**CLOSED, "http": "127.0.0.1:0", "drain_timeout_s": 1.0}
    async with Node(Config(**told)) as node:  # type: ignore[arg-type]
        found = node.listeners["http"]
        assert await http1(found, "PUT", "/v1/streams/orders", b"{}") == (201, True)
        yield found


async def http1(address: str, method: str, path: str, body: bytes) -> tuple[int, bool]:
    """A request with a JSON body: its status, and whether something came back."""
    async with await dial(address) as stream:
        head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
        head += "s2-basin: millpond\r\ncontent-type: application/json\r\ns2-format: base64\r\n"
        await stream.send(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        data = await rest(stream)
    return int(data.split(b" ", 2)[1]), not data.endswith(b"\r\n\r\n")


async def append(address: str, *records: dict[str, object]) -> None:
    assert await http1(address, "POST", RECORDS, msgspec.json.encode({"records": records})) == (
        200,
        True,
    )


def generation() -> list[dict[str, object]]:
    """Three records, a trim of them, a fence: what ends a generation of a resumable stream."""
    commands = {3: b"trim", 4: b"fence"}
    return [
        {
            "headers": [["", b64encode(commands[at]).decode()]] if at in commands else [],
            "body": b64encode(body).decode(),
        }
        for at, body in enumerate(GENERATION)
    ]


async def session(
    address: str, version: int, query: str, form: tuple[str, str]
) -> tuple[int, bytes]:
    """A session that ends by itself: status and body, without the chunks of HTTP/1.1."""
    path = f"{RECORDS}?{query}"
    if version == 1:
        status, body = await get(address, path, [": ".join(each) for each in (BASIN, form)])
        return status, unchunked(body) if status == 200 else body
    async with Http2(await dial(address)) as client:
        number = await client.ask("GET", path, BASIN, form)
        await client.until(number, h2.events.StreamEnded)
        return await client.status(number), client.data(number)


def unchunked(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, body = body.partition(b"\r\n")
        pieces.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    return b"".join(pieces)


def sequences(body: bytes, form: tuple[str, str]) -> list[int]:
    """The records of a session; nothing else may be in it, but for the end of events."""
    found: list[int] = []
    if form is EVENTS:
        *events, done = body.removesuffix(b"\n\n").split(b"\n\n")
        assert done == b"data: [DONE]"
        for event in events:
            lines = event.split(b"\n")
            assert lines[0] == b"event: batch"
            batch = msgspec.json.decode(lines[2].removeprefix(b"data: "))
            found += [each["seq_num"] for each in batch["records"]]
        return found
    decoder = Decoder()
    for frame in decoder.feed(body):
        assert not frame.is_terminal
        records = s2_pb2.ReadBatch.FromString(frame.message()).records
        assert records, "no heartbeat"
        found += [each.seq_num for each in records]
    assert not decoder.is_midway
    return found


@pytest.mark.parametrize("version", [1, 2], ids=["http1", "http2"])
@pytest.mark.parametrize("form", [EVENTS, S2S], ids=["events", "s2s"])
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("seq_num=0&wait=0", [0, 1]),
        ("seq_num=2&wait=0", []),
        ("seq_num=2&wait=0&clamp=true", []),
        ("seq_num=9&wait=0&clamp=true", []),
        ("tail_offset=0&wait=0", []),
        ("wait=0", []),
        ("tail_offset=1&wait=0", [1]),
        ("timestamp=0&wait=0", [0, 1]),
        ("seq_num=1&count=5&wait=0", [1]),
        ("seq_num=9&wait=0", None),
        ("seq_num=2&count=5", None),
        ("seq_num=2&count=5&wait=0", None),
        ("seq_num=2&until=99", None),
    ],
)
async def test_s2x_75_a_session_that_does_not_follow_ends_at_the_tail(
    address: str, version: int, form: tuple[str, str], query: str, expected: list[int] | None
) -> None:
    await append(address, {"body": "YQ=="}, {"body": "Yg=="})
    with anyio.fail_after(60):
        status, body = await session(address, version, query, form)
    if expected is None:
        assert status == 416 and b'"seq_num":2' in body
    else:
        assert (status, sequences(body, form)) == (200, expected)


async def test_s2x_75_a_unary_read_at_the_tail_is_416(address: str) -> None:
    await append(address, {"body": "YQ=="})
    status, _ = await get(address, f"{RECORDS}?seq_num=1&wait=0", [": ".join(BASIN)])
    assert status == 416


@pytest.mark.parametrize("form", [EVENTS, S2S], ids=["events", "s2s"])
async def test_s2x_70_a_follower_gets_the_append_whole(address: str, form: tuple[str, str]) -> None:
    """By a session that waits at the tail, and then by one that begins within the grace."""
    async with Http2(await dial(address)) as client:
        number = await client.ask("GET", f"{RECORDS}?seq_num=0", BASIN, form)
        await client.until(number, h2.events.DataReceived)  # the heartbeat at the tail
        before = len(client.data(number))
        await append(address, *generation())
        with anyio.fail_after(60):
            while len(client.data(number)) == before:
                await client.pump()
        shown = client.data(number)[before:]
    if form is EVENTS:
        # S2S and events tell the same; `data: [DONE]` is what `sequences` looks for at the end.
        shown += b"data: [DONE]\n\n"
    assert sequences(shown, form) == list(range(5))
    status, body = await session(address, 2, "seq_num=0&wait=0", form)
    assert (status, sequences(body, form)) == (200, list(range(5)))

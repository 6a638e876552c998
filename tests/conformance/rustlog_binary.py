"""The binary form of RustLog, written and read here anew: a peer judges the node by bytes."""

from __future__ import annotations

import struct

from tests.conformance.peer import SocketPipe
from tests.conformance.rustlog_peer import RustlogPeer, RustlogServer, framed

NONE = b"\x04\0"
YES = b"\1"


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack(">H", len(raw)) + raw


def record(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def produce(topic: str, *bodies: bytes, partition: int = 0) -> bytes:
    head = struct.pack(">II", partition, len(bodies))
    return framed(b"\x01" + text(topic) + head + b"".join(map(record, bodies)))


def fetch(
    topic: str, offset: int = 0, *, group: str = "", partition: int = 0, max_bytes: int = 2**20
) -> bytes:
    numbers = struct.pack(">IQI", partition, offset, max_bytes)
    return framed(b"\x02" + text(group) + text(topic) + numbers)


def commit(group: str, topic: str, offset: int, partition: int = 0) -> bytes:
    return framed(b"\x03" + text(group) + text(topic) + struct.pack(">IQ", partition, offset))


def committed(group: str, topic: str, partition: int = 0) -> bytes:
    return framed(b"\x04" + text(group) + text(topic) + struct.pack(">I", partition))


def create(topic: str, partitions: int = 1) -> bytes:
    return framed(b"\x05" + text(topic) + struct.pack(">I", partitions))


def describe(topic: str) -> bytes:
    return framed(b"\x07" + text(topic))


def describe_partition(topic: str, partition: int = 0) -> bytes:
    return framed(b"\x08" + text(topic) + struct.pack(">I", partition))


LIST, METRICS, PING = framed(b"\x06"), framed(b"\x09"), framed(b"\xff")


def produced(base: int, count: int) -> bytes:
    return b"\x01" + struct.pack(">QI", base, count)


def fetched(next_offset: int, *bodies: bytes) -> bytes:
    records = struct.pack(">I", len(bodies)) + b"".join(map(record, bodies))
    return b"\x02" + records + struct.pack(">Q", next_offset)


def offset(value: int) -> bytes:
    return b"\x04\x01" + struct.pack(">Q", value)


def topics(*rows: tuple[str, int]) -> bytes:
    return (
        b"\x06"
        + struct.pack(">I", len(rows))
        + b"".join(text(name) + struct.pack(">I", count) for name, count in rows)
    )


def watermarks(topic: str, *ends: int) -> bytes:
    rows = b"".join(struct.pack(">IQ", each, end) for each, end in enumerate(ends))
    return b"\x07" + text(topic) + struct.pack(">II", len(ends), len(ends)) + rows


def watermark(topic: str, partition: int, end: int) -> bytes:
    return b"\x08" + text(topic) + struct.pack(">IQ", partition, end)


class BinaryPeer(RustlogPeer):
    """One connection. Frames go out as they are; payloads come back."""

    async def says(self, request: bytes, answer: bytes) -> None:
        """The request is answered by exactly this payload."""
        await self.send(request)
        assert await self.payload() == answer

    async def fails(self, request: bytes, code: int, *words: str) -> str:
        """The request is answered by an error of this code, and the connection goes on."""
        await self.send(request)
        message = await self.error(code)
        assert all(word in message for word in words), message
        await self.says(PING, b"\xff")
        return message

    async def error(self, code: int) -> str:
        """The next answer is an error of this code; its message (RB-31)."""
        payload = await self.payload()
        assert payload[:1] == b"\xfe", payload
        found, size = struct.unpack_from(">HH", payload, 1)
        message = payload[5:].decode("ascii")
        assert (found, size) == (code, len(message)), message
        assert 0 < len(message) <= 200 and message.isprintable()
        return message


async def binary(server: RustlogServer) -> BinaryPeer:
    """One more connection to the port of RustLog."""
    pipe: SocketPipe = await server.dial()
    return BinaryPeer(pipe)

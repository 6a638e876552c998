"""A peer for durable PUTs: one SQLite database, one transaction for all that wait.

    python -m tests.bench.sqlite_peer --data DIR --port N

It speaks as much of the P2P buffer protocol as the generator needs: HELLO and READY, PUT and its
receipt. It checks no key, has no limits and expires nothing, which all is in its favour.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sqlite3
import struct
import sys
import time
from pathlib import Path
from typing import cast

import uvloop

from millpond.actors.messages import Durability
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import Ready, decode_hello, encode_ready
from millpond.transports.p2p.packets import HELLO, PUT, PUT_ACK

SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
CREATE TABLE messages (
    channel BLOB, id INTEGER, key INTEGER, expiry INTEGER, data BLOB, PRIMARY KEY (channel, id)
) WITHOUT ROWID;
"""
INSERT = "INSERT INTO messages VALUES (?, ?, ?, ?, ?)"
PACKET_MAX = 2**20
_PUT = struct.Struct(">BII")
_RECEIPT = struct.Struct(">BIIQ")

Row = tuple[bytes, int, int, int, bytes]


class Committer:
    """Collects the rows of one pass of the loop, commits them together, and says so.

    In the loop's thread: what comes meanwhile waits in its socket, and is the next group. Measured:
    a thread of its own for the commits makes it 10 to 25 % slower.
    """

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._database = sqlite3.connect(path, isolation_level=None)
        self._database.executescript(SCHEMA)
        self._rows: list[Row] = []
        self._receipts: dict[Connection, list[bytes]] = {}
        self._last_id = int(time.time() * 1000) << 22

    def put(self, connection: Connection, channel: bytes, packets: list[bytes]) -> None:
        """Keep what these PUTs carry; their receipts follow the commit."""
        if not self._rows:
            self._loop.call_soon(self._commit)
        receipts = self._receipts.setdefault(connection, [])
        for packet in packets:
            _, key, ttl = _PUT.unpack_from(packet)
            self._last_id += 1
            self._rows.append((channel, self._last_id, key, ttl, packet[_PUT.size :]))
            receipts.append(_RECEIPT.pack(PUT_ACK, key, ttl, self._last_id))

    def _commit(self) -> None:
        rows, self._rows = self._rows, []
        owed, self._receipts = self._receipts, {}
        self._database.execute("BEGIN")
        self._database.executemany(INSERT, rows)
        self._database.execute("COMMIT")
        for connection, receipts in owed.items():
            connection.send(receipts)


class Connection(asyncio.Protocol):
    """One client: a channel's producer."""

    def __init__(self, committer: Committer) -> None:
        self._committer = committer
        self._framing = LengthPrefixed(PACKET_MAX)
        self._channel = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None

    def data_received(self, data: bytes) -> None:
        packets = self._framing.feed(data)
        if packets and packets[0][0] == HELLO:
            hello = decode_hello(packets.pop(0))
            self._channel = hello.channel or b""
            self.send([encode_ready(Ready(want_push=False, durability=Durability.DISK))])
        if any(packet[0] != PUT for packet in packets):
            raise ValueError("only PUT is spoken here")
        if packets:
            self._committer.put(self, self._channel, packets)

    def send(self, packets: list[bytes]) -> None:
        """Write packets, if the client is still there."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._framing.frame(packets))


async def serve(folder: Path, port: int) -> None:
    """Serve until SIGTERM; the ready line is that of a node."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    committer = Committer(folder / "messages.sqlite3", loop)
    server = await loop.create_server(lambda: Connection(committer), "127.0.0.1", port)
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    ready = {"listeners": {"p2p": f"127.0.0.1:{port}"}, "durability": "disk"}
    print(json.dumps(ready), flush=True)
    await stopped.wait()
    server.close()


def main(argv: list[str]) -> None:
    """Run the server in the foreground."""
    parser = argparse.ArgumentParser(prog="sqlite_peer", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args(argv)
    uvloop.run(serve(options.data, options.port))


if __name__ == "__main__":
    main(sys.argv[1:])

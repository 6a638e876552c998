"""Reads of Durable Streams side by side: a node, and the reference server, by the same client.

    npm install --prefix FOLDER @durable-streams/server
    DURABLE_STREAMS=FOLDER python -m tests.bench.durable [--seconds 2] [--rounds 3] [--rows sse*]

Rows: catch-up reads of 100,000 JSON messages of 100 bytes by 1 connection; events that 200 readers
got by SSE while one connection appended. Each round measures all rows, one after the other; the
table has the medians. Servers are those of rows_http.toml, which has the rows of appends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import uvloop

from tests.bench.compare import BENCH, load_rows
from tests.bench.servers import NotRun, running

HOST, DISK = "127.0.0.1", Path("/var/tmp")
MESSAGES, BATCH, BYTES = 100_000, 1000, 100
READERS = 200
MARK = b'"n":'
"""Is in each message once."""

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Row = Callable[[int, float], Awaitable[float]]
"""A script that measures the messages a second of a server at a port."""


async def said(
    client: Client, verb: str, path: str, body: bytes = b""
) -> tuple[dict[str, str], bytes]:
    """One request and its answer, which has a length or is chunked."""
    reader, writer = client
    head = f"{verb} /v1/stream/{path} HTTP/1.1\r\nhost: [::1]\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    status = first.split()[1]
    assert status[0] == "2", first
    fields = (each.partition(":") for each in lines)
    headers = {name.lower(): value.strip() for name, _, value in fields}
    if "content-length" in headers:
        return headers, await reader.readexactly(int(headers["content-length"]))
    pieces = []
    while status != "204" and "transfer-encoding" in headers:
        size = int(await reader.readline(), 16)
        pieces.append((await reader.readexactly(size + 2))[:-2])
        if not size:
            break
    return headers, b"".join(pieces)


def message(number: int) -> bytes:
    """A JSON message of BYTES bytes."""
    text = json.dumps({"n": number, "pad": ""})
    return text[:-2].encode() + b"x" * (BYTES - len(text)) + b'"}'


async def catch_up(port: int, seconds: float) -> float:
    """Messages a second, read from the beginning again and again."""
    client = await asyncio.open_connection(HOST, port, limit=2**26)
    await said(client, "PUT", "old")
    for first in range(0, MESSAGES, BATCH):
        batch = b",".join(map(message, range(first, first + BATCH)))
        await said(client, "POST", "old", b"[%b]" % batch)
    count, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        offset, seen, is_done = "-1", 0, False
        while not is_done:
            headers, body = await said(client, "GET", f"old?offset={offset}")
            seen += body.count(MARK)
            offset, is_done = headers["stream-next-offset"], "stream-up-to-date" in headers
        assert seen == MESSAGES, seen
        count += seen
    elapsed = time.perf_counter() - began
    client[1].close()
    return count / elapsed


class Listener(asyncio.Protocol):
    """A reader of events, which counts messages."""

    def __init__(self) -> None:
        self.count = 0
        self.is_ready = asyncio.Event()
        self._rest = b""

    def connection_made(self, transport: asyncio.WriteTransport) -> None:  # type: ignore[override]
        transport.write(b"GET /v1/stream/live?offset=-1&live=sse HTTP/1.1\r\nhost: [::1]\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        seen = self._rest + data
        self.count += seen.count(MARK)
        if not self.is_ready.is_set() and b"upToDate" in seen:
            self.is_ready.set()
        # A mark may come in two pieces; what is kept is too short to be one.
        self._rest = seen[1 - len(MARK) :]


async def fan_out(port: int, seconds: float) -> float:
    """Messages a second that all readers got together."""
    client = await asyncio.open_connection(HOST, port)
    await said(client, "PUT", "live")
    loop = asyncio.get_running_loop()
    pairs = [await loop.create_connection(Listener, HOST, port) for _ in range(READERS)]
    async with asyncio.timeout(30):
        await asyncio.gather(*(listener.is_ready.wait() for _, listener in pairs))
    number, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        await said(client, "POST", "live", b"[%b]" % message(number))
        number += 1
    while min(listener.count for _, listener in pairs) < number:
        await asyncio.sleep(0.001)
        assert time.perf_counter() - began < seconds + 30, "events are missing"
    elapsed = time.perf_counter() - began
    assert {listener.count for _, listener in pairs} == {number}
    for transport, _ in pairs:
        transport.close()
    client[1].close()
    return number * READERS / elapsed


ROWS: dict[str, Row] = {"catch-up": catch_up, f"sse-{READERS}": fan_out}
SERVERS = {
    "memory": (("node-http", "http"), ("reference", "tcp")),
    "file": (("node-http-os", "http"), ("reference-file", "tcp")),
}
"""For each store: the node in rows_http.toml and its listener; then the reference server."""


def rate(row: Row, name: str, listener: str, seconds: float) -> float:
    """One row against one server, which is started for it. Raises NotRun."""
    spec = load_rows(BENCH)[0][name]
    with running(spec, sys.executable, min(os.sched_getaffinity(0)), DISK) as server:
        port = server.port(listener)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(row(port, seconds))  # type: ignore[arg-type]


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", default="*", help="a pattern of names")
    args = parser.parse_args()
    rates: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for row in (each for each in ROWS if fnmatch(each, args.rows)):
            for store, servers in SERVERS.items():
                for name, listener in servers:
                    try:
                        found = rate(ROWS[row], name, listener, args.seconds)
                    except NotRun as error:
                        print(f"{row} {name}: not run: {error}", file=sys.stderr)
                    else:
                        rates[row, store, name].append(found)
    for (row, store, name), measured in rates.items():
        ours = median(rates[row, store, SERVERS[store][0][0]])
        ratio = "" if name.startswith("node") else f"  ratio {ours / median(measured):.2f}"
        print(f"{row:12}{store:8}{name:16}{median(measured):>12,.0f}/s{ratio}")


if __name__ == "__main__":
    main()

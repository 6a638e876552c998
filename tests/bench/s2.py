"""Appends over HTTP side by side: a node in S2, and the reference server of Durable Streams.

    npm install --prefix FOLDER @durable-streams/server
    python -m tests.bench.s2 --durable-streams FOLDER [--seconds 2] [--rounds 3]

Each round measures all rows, one after the other, with the generator of `millpond bench s2`; the
table has the medians. Without the folder the node is measured alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import anyio

from node.bench.http_answers import NotHttp, Responses
from node.bench.measure import Clocks
from node.bench.own_node import cpu_of, end
from node.bench.speech import Answer, Kept, Made, Place, Refused
from node.bench.stream_measure import StreamResult, StreamTarget, measure_streams
from node.bench.stream_rows import StreamKind, StreamLoad
from node.bench.stream_servers import HOST, Measured, node_of_its_own

ROWS = [StreamLoad(StreamKind.APPEND, connections, 1, 100) for connections in (1, 50)]
STORES = {"memory": "memory", "file": "os"}
"""What the reference server calls its stores, and what the node promises that is like it: it does
not wait for the disk."""
SERVE = """
import { DurableStreamTestServer } from "@durable-streams/server";
const dataDir = process.argv[1] || undefined;
const server = new DurableStreamTestServer({ port: 0, host: "127.0.0.1", dataDir });
console.log(await server.start());
"""


class DurableSpeech:
    """Durable Streams: an append is a POST of bytes. Its answer names an offset in a header."""

    kinds = frozenset({StreamKind.APPEND})
    polls = False

    def __init__(self) -> None:
        self.error = ""
        self._responses = Responses()
        self._numbers = count()
        self._is_made = False

    def create(self, name: str) -> bytes:
        return _request(b"PUT", name, b"")

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        (body,) = bodies
        return _request(b"POST", name, body)

    def read(self, name: str, start: Place, count: int, size: int, wait_ms: int) -> bytes:
        raise NotImplementedError

    def feed(self, data: bytes) -> list[Answer]:
        answers: list[Answer] = []
        try:
            pieces = self._responses.feed(data)
            answers += (self._answer(piece.status) for piece in pieces if piece.is_last)
        except (NotHttp, ValueError) as error:
            self.error = str(error)
        return answers

    def due(self) -> bytes:
        return b""

    def _answer(self, status: int) -> Answer:
        if not 200 <= status < 300:
            return Refused(str(status))
        if not self._is_made:
            self._is_made = True
            return Made()
        number = next(self._numbers)
        return Kept((0, number), (0, number), 1)


def _request(verb: bytes, name: str, body: bytes) -> bytes:
    head = b"%b /v1/stream/%b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/octet-stream\r\n"
    return head % (verb, name.encode()) + b"content-length: %d\r\n\r\n%b" % (len(body), body)


@contextmanager
def reference(folder: Path, data: str) -> Iterator[Measured]:
    """The server, on a free port; `data`: a folder for its files, or nothing."""
    with subprocess.Popen(
        ["node", "--input-type=module", "-e", SERVE, data],
        cwd=folder,
        env={**os.environ, "NODE_ENV": "production"},
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            urls = (line.strip() for line in process.stdout if line.startswith(b"http://"))
            port = next(urls, b"").rpartition(b":")[2]
            if not port:
                raise SystemExit("the reference server did not come up")
            target = StreamTarget("reference", HOST, int(port), "bench", DurableSpeech)
            yield Measured(target, cpu_of(process.pid))
        finally:
            end(process)


def measured(load: StreamLoad, server: Measured, seconds: float) -> StreamResult:
    """One row. Nothing may be wrong with it."""
    clocks = Clocks(time.perf_counter, time.process_time, server.cpu)
    work = partial(measure_streams, load, server.target, seconds, clocks)
    result = anyio.run(work, backend_options={"use_uvloop": True})
    if not result.ok:
        raise SystemExit(f"{result.server} was at fault: {result.first_fault}")
    return result


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--durable-streams", type=Path, metavar="FOLDER", help="has the package")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    folder: Path | None = args.durable_streams
    if folder is None or shutil.which("node") is None:
        print("the reference server: not run (no --durable-streams FOLDER, or no node)")
        folder = None
    rates: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(args.rounds):
        for load in ROWS:
            for store, durability in STORES.items():
                with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir="/var/tmp") as data:
                    kept = None if store == "memory" else Path(data)
                    with node_of_its_own("s2", load.kind, "bench", kept, durability) as node:
                        ours = measured(load, node, args.seconds)
                    rates[load.name, store, "node"].append(ours.rate)
                if folder is not None:
                    with (
                        tempfile.TemporaryDirectory(dir="/var/tmp") as data,
                        reference(folder, "" if store == "memory" else data) as peer,
                    ):
                        theirs = measured(load, peer, args.seconds)
                    rates[load.name, store, "reference"].append(theirs.rate)
    for (row, store, server), found in rates.items():
        ours_rate = median(rates[row, store, "node"])
        ratio = "" if server == "node" else f"  ratio {ours_rate / median(found):.2f}"
        print(f"{row:20}{store:8}{server:11}{median(found):>10,.0f}/s{ratio}")


if __name__ == "__main__":
    main()

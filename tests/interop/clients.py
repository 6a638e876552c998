"""Clients of every protocol as writers and readers of one stream: published ones, our own, and bare
HTTP.

Each is used as its users would: a connection or a process of its own, no retries. A writer appends
one record after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import anyio
import httpx

from millpond.node.client.streams.records import NewRecord
from millpond.sync import connect_rustlog, connect_s3p, connect_streams
from tests.node.http.s2.conftest import client_at
from tests.suites.caches import HERE as SUITES
from tests.suites.npm import installed

BASIN = "millpond"
"""The node's own basin, whose streams all protocols share."""
TYPES = {"json": "application/json", "bytes": "application/octet-stream"}
PROCESS_S = 180.0

Form = Literal["json", "bytes"]
Pairs = tuple[tuple[bytes, bytes], ...]


class Written(NamedTuple):
    """A record to write; a client whose protocol has no headers or timestamps leaves them out."""

    body: bytes
    headers: Pairs
    timestamp_ms: int


class Shown(NamedTuple):
    """A record as a reader shows it. None: the protocol has no such thing."""

    body: bytes
    headers: Pairs | None = None
    timestamp_ms: int | None = None
    position: int | None = None


class Node(NamedTuple):
    """The addresses of the node."""

    listeners: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://{self.listeners['http']}"

    @property
    def p2p(self) -> str:
        return f"tcp://{self.listeners['p2p']}"


class Client(Protocol):
    """One client. `has_headers`: it writes and shows headers and timestamps. `joins`: what it reads
    of a stream of bytes is one piece."""

    name: str
    has_headers: bool
    joins: bool

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        """Append the records, one after the other."""

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        """All records of each stream."""


class S2Python:
    """The SDK of S2 from PyPI."""

    name = f"S2, Python s2-sdk {version('s2-sdk')}"
    has_headers, joins = True, False

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        from s2_sdk import AppendInput, Record

        async def run() -> None:
            async with client_at(node.url) as s2:
                handle = s2.basin(BASIN).stream(stream)
                for each in records:
                    record = Record(each.body, list(each.headers), each.timestamp_ms)
                    await handle.append(AppendInput([record]))

        anyio.run(run)

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        from s2_sdk import ReadLimit, SeqNum

        async def read_one(s2: Any, name: str) -> list[Shown]:
            found: list[Shown] = []
            handle = s2.basin(BASIN).stream(name)
            tail = (await handle.check_tail()).seq_num
            while len(found) < tail:
                limit = ReadLimit(count=1000)
                batch = await handle.read(start=SeqNum(len(found)), limit=limit)
                found += [
                    Shown(each.body, tuple(each.headers), each.timestamp, each.seq_num)
                    for each in batch.records
                ]
            return found

        async def run() -> list[list[Shown]]:
            async with client_at(node.url) as s2:
                return [await read_one(s2, name) for name in streams]

        return anyio.run(run)


class DurablePython:
    """The client of Durable Streams from PyPI."""

    name = f"Durable Streams, Python durable-streams {version('durable-streams')}"
    has_headers, joins = False, True

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        from durable_streams import DurableStream

        url = f"{node.url}/v1/stream/{stream}"
        with DurableStream.connect(url) as handle:
            for each in records:
                handle.append(json.loads(each.body) if form == "json" else each.body)

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        from durable_streams import stream as opened

        found = []
        for name in streams:
            with opened(f"{node.url}/v1/stream/{name}", live=False) as response:
                if form == "json":
                    found.append([Shown(canonical(each)) for each in response.read_json()])
                else:
                    found.append([Shown(response.read_bytes())])
        return found


class TypeScript:
    """A script with a published client of npm: its work on stdin, what it read on stdout."""

    def __init__(self, name: str, folder: str, package: str, *, has_headers: bool) -> None:
        asked = json.loads((SUITES / folder / "package.json").read_text())["dependencies"]
        self.name = f"{name}, TypeScript {package} {asked[package]}"
        self.has_headers = has_headers
        self.joins = not has_headers
        self._folder = folder

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        rows = [
            {
                "body": base64(each.body),
                "headers": [[base64(part) for part in pair] for pair in each.headers],
                "timestamp": each.timestamp_ms,
            }
            for each in records
        ]
        self._run(node, "write", form, {"stream": stream, "records": rows})

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        found = json.loads(self._run(node, "read", form, {"streams": list(streams)}))
        return [[_shown(each) for each in rows] for rows in found]

    def install(self) -> Path:
        """Skips the test where that cannot be."""
        return installed(self._folder, ("cross.mjs",))

    def _run(self, node: Node, work: str, form: Form, task: dict[str, Any]) -> bytes:
        done = subprocess.run(
            ("node", "cross.mjs", node.url, work, form),
            cwd=self.install(),
            input=json.dumps(task).encode(),
            capture_output=True,
            timeout=PROCESS_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[-2000:]
        return done.stdout


class S2Http:
    """S2's HTTP API without a client."""

    name = "S2, bare HTTP"
    has_headers, joins = True, False

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        with self._http(node) as http:
            for each in records:
                record = {
                    "body": base64(each.body),
                    "headers": [[base64(part) for part in pair] for pair in each.headers],
                    "timestamp": each.timestamp_ms,
                }
                answer = http.post(f"/v1/streams/{stream}/records", json={"records": [record]})
                assert answer.status_code == 200, answer.text

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        with self._http(node) as http:
            return [self._read(http, name) for name in streams]

    def _read(self, http: httpx.Client, name: str) -> list[Shown]:
        found: list[Shown] = []
        tail = http.get(f"/v1/streams/{name}/records/tail").json()["tail"]["seq_num"]
        while len(found) < tail:
            answer = http.get(f"/v1/streams/{name}/records", params={"seq_num": len(found)})
            for each in answer.json()["records"]:
                pairs = [tuple(map(b64decode, pair)) for pair in each.get("headers", [])]
                body = b64decode(each.get("body", ""))
                found.append(Shown(body, tuple(pairs), each["timestamp"], each["seq_num"]))  # type: ignore[arg-type]
        return found

    def _http(self, node: Node) -> httpx.Client:
        headers = {"s2-basin": BASIN, "s2-format": "base64"}
        return httpx.Client(base_url=node.url, headers=headers, timeout=60)


class DurableHttp:
    """Durable Streams without a client."""

    name = "Durable Streams, bare HTTP"
    has_headers, joins = False, True

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        with httpx.Client(base_url=node.url, timeout=60) as http:
            for each in records:
                answer = http.post(
                    f"/v1/stream/{stream}",
                    content=each.body,
                    headers={"content-type": TYPES[form]},
                )
                assert answer.status_code in (200, 204), answer.text

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        with httpx.Client(base_url=node.url, timeout=60) as http:
            return [self._read(http, name, form) for name in streams]

    def _read(self, http: httpx.Client, name: str, form: Form) -> list[Shown]:
        pieces, offset = [], "-1"
        while True:
            answer = http.get(f"/v1/stream/{name}", params={"offset": offset})
            assert answer.status_code == 200, answer.text
            pieces.append(answer.content)
            offset = answer.headers["stream-next-offset"]
            if answer.headers.get("stream-up-to-date") == "true":
                break
        if form == "bytes":
            return [Shown(b"".join(pieces))]
        return [Shown(canonical(each)) for piece in pieces for each in json.loads(piece)]


class S3p:
    """Our client of S3P."""

    name = "S3P, millpond.connect_s3p"
    has_headers, joins = False, False

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        with connect_s3p(node.listeners["s3p"]) as s3p:
            for each in records:
                s3p.append(stream, [each.body])

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        with connect_s3p(node.listeners["s3p"]) as s3p:
            return [[Shown(each.data) for each in s3p.read(name, count=1000)] for name in streams]


class Rustlog:
    """Our client of RustLog, in one of its forms."""

    has_headers, joins = False, False

    def __init__(self, form: Literal["json", "binary"]) -> None:
        self.name = f"RustLog, millpond.connect_rustlog, {form}"
        self._form = form

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        with connect_rustlog(node.listeners["rustlog"], form=self._form) as rustlog:
            for each in records:
                rustlog.produce(stream, each.body)

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        with connect_rustlog(node.listeners["rustlog"], form=self._form) as rustlog:
            return [self._read(rustlog, name) for name in streams]

    def _read(self, rustlog: Any, name: str) -> list[Shown]:
        found: list[Shown] = []
        while records := rustlog.fetch(name, len(found)).records:
            for each in records:
                stamp = each.timestamp // 1000 if self._form == "json" else None
                found.append(Shown(each.data, None, stamp, each.offset))
        return found


class P2p:
    """Our client of the node's own packets."""

    name = "P2P, millpond.connect_streams"
    has_headers, joins = True, False

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        with connect_streams(node.p2p) as streams:
            handle = streams.stream(stream)
            for each in records:
                handle.append(NewRecord(each.body, list(each.headers), each.timestamp_ms))

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        with connect_streams(node.p2p) as opened:
            return [
                [
                    Shown(each.data, tuple(each.headers), each.timestamp, each.sequence)
                    for each in opened.stream(name).records()
                ]
                for name in streams
            ]


class Spark:
    """The source and the sink of Spark, in one session for all. A key of a header is text there, so
    it writes none."""

    has_headers, joins = False, False

    def __init__(self) -> None:
        self.name = f"Spark, pyspark {version('pyspark')}"
        self._worker: subprocess.Popen[str] | None = None

    def write(self, node: Node, stream: str, form: Form, records: Sequence[Written]) -> None:
        bodies = [base64(each.body) for each in records]
        self._ask(node, {"work": "write", "stream": stream, "bodies": bodies})

    def read(self, node: Node, streams: Sequence[str], form: Form) -> list[list[Shown]]:
        found = self._ask(node, {"work": "read", "streams": list(streams)})
        return [
            [Shown(b64decode(body), None, at, position) for body, at, position in rows]
            for rows in found
        ]

    def close(self) -> None:
        """End the session."""
        if self._worker is not None:
            self._worker.communicate(timeout=PROCESS_S)
            self._worker = None

    def _ask(self, node: Node, task: dict[str, Any]) -> Any:
        if self._worker is None:
            command = (sys.executable, "-m", "tests.interop.spark_worker", node.url)
            pipe = subprocess.PIPE
            self._worker = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        worker = self._worker
        assert worker.stdin is not None and worker.stdout is not None
        print(json.dumps(task), file=worker.stdin, flush=True)
        answer = worker.stdout.readline()
        assert answer, f"Spark ended with {worker.poll()}"
        return json.loads(answer)


CLIENTS: tuple[Client, ...] = (
    S2Python(),
    TypeScript("S2", "s2-npm", "@s2-dev/streamstore", has_headers=True),
    S2Http(),
    DurablePython(),
    TypeScript("Durable Streams", "durable-npm", "@durable-streams/client", has_headers=False),
    DurableHttp(),
    S3p(),
    Rustlog("json"),
    Rustlog("binary"),
    P2p(),
    Spark(),
)


def close_all() -> None:
    """End what clients have started."""
    for each in CLIENTS:
        if isinstance(each, Spark):
            each.close()


def create(node: Node, stream: str, form: Form) -> None:
    """A stream for all of them: Durable Streams has to be told of its content type."""
    url = f"{node.url}/v1/stream/{stream}"
    answer = httpx.put(url, headers={"content-type": TYPES[form]}, timeout=60)
    assert answer.status_code == 201, answer.text


def canonical(value: object) -> bytes:
    """JSON as short as may be."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def base64(raw: bytes) -> str:
    return b64encode(raw).decode()


def _shown(row: Any) -> Shown:
    if isinstance(row, str):
        return Shown(b64decode(row))
    pairs = tuple((b64decode(name), b64decode(value)) for name, value in row["headers"])
    return Shown(b64decode(row["body"]), pairs, row["timestamp"], row["position"])

"""Servers that a node is compared with: Redis Streams and NATS JetStream, and their drivers."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from millpond.node.bench.drivers.interface import (
    Answer,
    Appended,
    Created,
    Driver,
    RecordPosition,
    Records,
    Refused,
)
from millpond.node.bench.own_node import cpu_of, end, ending_like_ctrl_c
from millpond.node.bench.scenarios import StreamKind
from millpond.node.bench.servers import MeasuredServer, ServerMissing, rss_of
from millpond.node.bench.stream_load import StreamTarget

HOST = "127.0.0.1"
READY_S, POLL_S = 10.0, 0.02
U64_MAX = 2**64 - 1
CRLF = b"\r\n"
_CREATED, _RECORDS = 0, -1
"""Expected answers other than the ids of appended records."""


class RespError(str):
    """An error of Redis, apart from its strings."""


class _Array(int):
    """The number of values that follow as one array."""


class RespReader:
    """A parser of RESP that reads each byte once: answers may have megabytes."""

    def __init__(self) -> None:
        self._buffer = b""
        self._arrays: list[tuple[list[Any], int]] = []
        """Incomplete arrays from the outermost in, each with its number of values."""

    def feed(self, data: bytes) -> list[Any]:
        """The values that these bytes complete. Raises ValueError for bytes that are no RESP."""
        self._buffer += data
        values: list[Any] = []
        at = 0
        while (found := _part(self._buffer, at)) is not None:
            value, at = found
            if isinstance(value, _Array) and value > 0:
                self._arrays.append(([], value))
            else:  # a null array has the count -1
                self._add([] if isinstance(value, _Array) else value, values)
        self._buffer = self._buffer[at:]
        return values

    def _add(self, value: Any, values: list[Any]) -> None:
        while self._arrays:
            items, count = self._arrays[-1]
            items.append(value)
            if len(items) < count:
                return
            self._arrays.pop()
            value = items
        values.append(value)


def _part(data: bytes, at: int) -> tuple[Any, int] | None:
    """A value or the head of an array, and the position behind it."""
    end = data.find(CRLF, at)
    if end < 0:
        return None
    mark, text, at = data[at : at + 1], data[at + 1 : end], end + 2
    match mark:
        case b"+" | b":":
            return text, at
        case b"-":
            return RespError(text.decode(errors="replace")), at
        case b"$":
            size = int(text)
            if size < 0:
                return b"", at
            return (data[at : at + size], at + size + 2) if len(data) >= at + size + 2 else None
        case b"*":
            return _Array(text), at
        case _:
            raise ValueError(f"no RESP: {data[at - 2 : at + 20]!r}")


class RedisDriver:
    """The driver of Redis Streams. XADD takes one record: several are pipelined."""

    kinds = frozenset(StreamKind)
    polls = False

    def __init__(self) -> None:
        self.error = ""
        self._reader = RespReader()
        self._expected: deque[int] = deque()
        self._ids: list[RecordPosition] = []
        self._refusal = ""

    def create(self, name: str) -> bytes:
        """XADD creates the stream; PING stands in for a request."""
        self._expected.append(_CREATED)
        return _command(b"PING")

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        self._expected.append(len(bodies))
        head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n" % (
            len(name),
            name.encode(),
        )
        return b"".join([b"%b$%d\r\n%b\r\n" % (head, len(body), body) for body in bodies])

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        self._expected.append(_RECORDS)
        block = [b"BLOCK", b"%d" % wait_ms] if wait_ms else []
        count_words = [b"COUNT", b"%d" % count]
        return _command(b"XREAD", *count_words, *block, b"STREAMS", name.encode(), _before(start))

    def feed(self, data: bytes) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for value in self._reader.feed(data):
                self._take(value, answers)
        except (ValueError, IndexError, TypeError) as error:
            self.error = f"not Redis: {error}"
        return answers

    def due(self) -> bytes:
        return b""

    def _take(self, value: Any, answers: list[Answer]) -> None:
        expected = self._expected[0]
        if isinstance(value, RespError):
            self._refusal = self._refusal or str(value)
        if expected > 0:
            self._ids.append(_position(value) if isinstance(value, bytes) else (0, 0))
            if len(self._ids) < expected:
                return
            answers.append(self._answered(Appended(self._ids[0], self._ids[-1], expected)))
            self._ids.clear()
        elif expected == _RECORDS:
            rows = value[0][1] if value and isinstance(value, list) else []
            answers.append(
                self._answered(Records([(_position(id), body) for id, (_, body) in rows]))
            )
        else:
            answers.append(self._answered(Created()))
        self._expected.popleft()

    def _answered(self, answer: Answer) -> Answer:
        text, self._refusal = self._refusal, ""
        return Refused(text) if text else answer


def _position(id: bytes) -> RecordPosition:
    ms, _, seq = id.partition(b"-")
    return int(ms), int(seq)


def _before(position: RecordPosition) -> bytes:
    """The id before a position: XREAD begins behind the id that it is given."""
    ms, seq = position
    if seq:
        return b"%d-%d" % (ms, seq - 1)
    return b"%d-%d" % (ms - 1, U64_MAX) if ms else b"0-0"


def _command(*words: bytes) -> bytes:
    bulks = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b" % (len(words), bulks)


class NatsDriver:
    """The driver of NATS JetStream, appends only: a read there is a consumer, not a request."""

    kinds = frozenset({StreamKind.APPEND, StreamKind.BATCH, StreamKind.SESSION})
    polls = False

    def __init__(self, storage: str) -> None:
        self.error = ""
        self._storage = storage
        self._buffer = b""
        self._due = [
            b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB _INBOX.%d 1\r\n' % id(self)
        ]
        self._inbox = b"_INBOX.%d" % id(self)
        self._expected: deque[int] = deque()
        self._seqs: list[int] = []
        self._refusal = ""

    def create(self, name: str) -> bytes:
        self._expected.append(_CREATED)
        request = {"name": name, "subjects": [name], "storage": self._storage}
        return self._publish(
            b"$JS.API.STREAM.CREATE." + name.encode(), json.dumps(request).encode()
        )

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        self._expected.append(len(bodies))
        return b"".join([self._publish(name.encode(), body) for body in bodies])

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        raise NotImplementedError

    def due(self) -> bytes:
        due, self._due = b"".join(self._due), []
        return due

    def feed(self, data: bytes) -> list[Answer]:
        self._buffer += data
        answers: list[Answer] = []
        at = 0
        while (end := self._buffer.find(CRLF, at)) >= 0:
            line, behind = self._buffer[at:end], end + 2
            if line.startswith(b"MSG "):
                size = int(line.rpartition(b" ")[2])
                if len(self._buffer) < behind + size + 2:
                    break
                self._take(json.loads(self._buffer[behind : behind + size]), answers)
                behind += size + 2
            elif line == b"PING":
                self._due.append(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                self.error = line.decode(errors="replace")
            at = behind
        self._buffer = self._buffer[at:]
        return answers

    def _publish(self, subject: bytes, body: bytes) -> bytes:
        return b"PUB %b %b %d\r\n%b\r\n" % (subject, self._inbox, len(body), body)

    def _take(self, reply: dict[str, Any], answers: list[Answer]) -> None:
        expected = self._expected[0]
        if "error" in reply:
            self._refusal = self._refusal or str(reply["error"])
        answer: Answer = Created()
        if expected:
            self._seqs.append(int(reply.get("seq", 0)))
            if len(self._seqs) < expected:
                return
            answer = Appended((0, self._seqs[0]), (0, self._seqs[-1]), expected)
            self._seqs.clear()
        self._expected.popleft()
        text, self._refusal = self._refusal, ""
        answers.append(Refused(text) if text else answer)


@contextmanager
def own_peer_server(
    name: str, prefix: str, folder: Path | None, durability: str
) -> Iterator[MeasuredServer]:
    """Redis or NATS on a free port, its data below `folder` as durable. Raises ServerMissing."""
    if shutil.which(PROGRAMS[name]) is None:
        raise ServerMissing(f"{PROGRAMS[name]} is not installed")
    with tempfile.TemporaryDirectory(prefix="millpond-bench-", dir=folder) as data:
        port = _free_port()
        command, driver = COMMANDS[name](port, data, durability)
        environment = {**os.environ, "GOMAXPROCS": "1"}
        with (
            ending_like_ctrl_c(),
            subprocess.Popen(
                [PROGRAMS[name], *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as process,
        ):
            try:
                _wait(process, port, name)
                kept = None if durability == "memory" else Path(data)
                rss = rss_of(process.pid)
                target = StreamTarget(name, HOST, port, prefix, driver, rss, kept)
                yield MeasuredServer(target, cpu_of(process.pid))
            finally:
                end(process)


def _redis(port: int, data: str, durability: str) -> tuple[list[str], Callable[[], Driver]]:
    kept = ["--appendonly", "no" if durability == "memory" else "yes"]
    sync = ["--appendfsync", "always" if durability == "disk" else "everysec"]
    where = ["--bind", HOST, "--port", str(port), "--dir", data]
    return [*where, "--save", "", *kept, *sync, "--daemonize", "no"], RedisDriver


def _nats(port: int, data: str, durability: str) -> tuple[list[str], Callable[[], Driver]]:
    where = ["--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", data]
    return where, partial(NatsDriver, "memory" if durability == "memory" else "file")


PROGRAMS = {"redis": "redis-server", "nats": "nats-server"}
COMMANDS = {"redis": _redis, "nats": _nats}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], port: int, name: str) -> None:
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(POLL_S)
    raise ServerMissing(f"{PROGRAMS[name]} did not come up")

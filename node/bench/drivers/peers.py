"""How the peers of a comparison are spoken to: Redis Streams, NATS JetStream."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from millpond.node.bench.drivers.interface import (
    Answer,
    Appended,
    Created,
    RecordPosition,
    Records,
    Refused,
)
from millpond.node.bench.stream_rows import StreamKind

U64_MAX = 2**64 - 1
CRLF = b"\r\n"
_MADE, _FOUND = 0, -1
"""What is owed besides the ids of so many appended records."""


class RespError(str):
    """An error that Redis sent, apart from its strings."""


class _Array(int):
    """So many values follow, which belong together."""


class RespReader:
    """RESP values out of bytes, each byte looked at once: answers may have megabytes."""

    def __init__(self) -> None:
        self._buffer = b""
        self._arrays: list[tuple[list[Any], int]] = []
        """Those that are not complete, from the outermost in, and how many values each gets."""

    def feed(self, data: bytes) -> list[Any]:
        """The values that these bytes complete. Raises ValueError: it is no RESP."""
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
    """A value, or the head of an array, and what is behind it."""
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
    """Redis Streams. There is no append of many: they are pipelined."""

    kinds = frozenset(StreamKind)
    polls = False

    def __init__(self) -> None:
        self.error = ""
        self._reader = RespReader()
        self._owed: deque[int] = deque()
        self._ids: list[RecordPosition] = []
        self._refusal = ""

    def create(self, name: str) -> bytes:
        """XADD makes it."""
        self._owed.append(_MADE)
        return _command(b"PING")

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        self._owed.append(len(bodies))
        head = b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n" % (
            len(name),
            name.encode(),
        )
        return b"".join([b"%b$%d\r\n%b\r\n" % (head, len(body), body) for body in bodies])

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        self._owed.append(_FOUND)
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
        owed = self._owed[0]
        if isinstance(value, RespError):
            self._refusal = self._refusal or str(value)
        if owed > 0:
            self._ids.append(_place(value) if isinstance(value, bytes) else (0, 0))
            if len(self._ids) < owed:
                return
            answers.append(self._settled(Appended(self._ids[0], self._ids[-1], owed)))
            self._ids.clear()
        elif owed == _FOUND:
            rows = value[0][1] if value and isinstance(value, list) else []
            answers.append(self._settled(Records([(_place(id), body) for id, (_, body) in rows])))
        else:
            answers.append(self._settled(Created()))
        self._owed.popleft()

    def _settled(self, answer: Answer) -> Answer:
        text, self._refusal = self._refusal, ""
        return Refused(text) if text else answer


def _place(id: bytes) -> RecordPosition:
    ms, _, seq = id.partition(b"-")
    return int(ms), int(seq)


def _before(place: RecordPosition) -> bytes:
    """XREAD begins behind the id that it is told."""
    ms, seq = place
    if seq:
        return b"%d-%d" % (ms, seq - 1)
    return b"%d-%d" % (ms - 1, U64_MAX) if ms else b"0-0"


def _command(*words: bytes) -> bytes:
    bulks = b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])
    return b"*%d\r\n%b" % (len(words), bulks)


class NatsDriver:
    """NATS JetStream, appends only: a read there is a consumer, not a request."""

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
        self._owed: deque[int] = deque()
        self._seqs: list[int] = []
        self._refusal = ""

    def create(self, name: str) -> bytes:
        self._owed.append(_MADE)
        asked = {"name": name, "subjects": [name], "storage": self._storage}
        return self._publish(b"$JS.API.STREAM.CREATE." + name.encode(), json.dumps(asked).encode())

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        self._owed.append(len(bodies))
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

    def _take(self, told: dict[str, Any], answers: list[Answer]) -> None:
        owed = self._owed[0]
        if "error" in told:
            self._refusal = self._refusal or str(told["error"])
        answer: Answer = Created()
        if owed:
            self._seqs.append(int(told.get("seq", 0)))
            if len(self._seqs) < owed:
                return
            answer = Appended((0, self._seqs[0]), (0, self._seqs[-1]), owed)
            self._seqs.clear()
        self._owed.popleft()
        text, self._refusal = self._refusal, ""
        answers.append(Refused(text) if text else answer)

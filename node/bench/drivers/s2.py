"""The driver of S2: HTTP/1.1 and protobuf, in requests or in sessions.

Requests are encoded by hand: the load must cost less than the server under load.
"""

from __future__ import annotations

from collections import deque
from enum import Enum, auto
from typing import assert_never

from google.protobuf.message import DecodeError

from millpond.node.bench.drivers.http import NotHttp, Piece, Responses
from millpond.node.bench.drivers.interface import (
    Answer,
    Appended,
    Created,
    RecordPosition,
    Records,
    Refused,
)
from millpond.node.bench.scenarios import StreamKind
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import s2s as frames

BASIN = b"millpond"
PROTOBUF, SESSION = b"application/protobuf", b"s2s/proto"
SESSIONS = (StreamKind.SESSION, StreamKind.CATCHUP, StreamKind.TAIL)
"""Kinds of rows measured in sessions; the others use requests."""


class _Expected(Enum):
    """The kind of the next response."""

    CREATED = auto()
    ACK = auto()
    ACKS = auto()
    RECORDS = auto()
    CATCHUP = auto()
    FOLLOWED = auto()


class S2Driver:
    """One connection. In a session of appends each append is a chunk of HTTP, as clients send it.

    A request behind a session of appends ends the session first.
    """

    kinds = frozenset(StreamKind)
    polls = False

    def __init__(self, kind: StreamKind = StreamKind.APPEND) -> None:
        self.error = ""
        self._kind = kind
        self._responses = Responses()
        self._frames = frames.Decoder()
        self._expected: deque[_Expected] = deque()
        self._caught_up: list[tuple[RecordPosition, bytes]] = []
        self._is_appending = self._is_following = False

    def create(self, name: str) -> bytes:
        self._expected.append(_Expected.CREATED)
        return self._request(b"PUT", name, b"", b"{}", b"application/json")

    def append(self, name: str, bodies: list[bytes]) -> bytes:
        message = _input(bodies)
        if self._kind not in (StreamKind.SESSION, StreamKind.TAIL):
            self._expected.append(_Expected.ACK)
            return self._request(b"POST", name, b"/records", message, PROTOBUF)
        frame = frames.encode((message,))
        chunk = b"%x\r\n%b\r\n" % (len(frame), frame)
        if self._is_appending:
            return chunk
        self._is_appending = True
        self._expected.append(_Expected.ACKS)
        head = _head(b"POST", name, b"/records", SESSION)
        return head + b"transfer-encoding: chunked\r\n\r\n" + chunk

    def read(self, name: str, start: RecordPosition, count: int, size: int, wait_ms: int) -> bytes:
        if self._is_following:
            return b""  # the session continues by itself
        last = b"0\r\n\r\n" if self._is_appending else b""
        self._is_appending = False
        path = b"/records?seq_num=%d" % start[1]
        if wait_ms:
            self._is_following = True
            self._expected.append(_Expected.FOLLOWED)
            return last + _head(b"GET", name, path, SESSION) + b"\r\n"
        path += b"&clamp=true&count=%d" % count
        if self._kind is StreamKind.CATCHUP:
            self._expected.append(_Expected.CATCHUP)
            return last + _head(b"GET", name, path, SESSION) + b"\r\n"
        self._expected.append(_Expected.RECORDS)
        return last + _head(b"GET", name, path, PROTOBUF) + b"accept: %b\r\n\r\n" % PROTOBUF

    def feed(self, data: bytes) -> list[Answer]:
        answers: list[Answer] = []
        try:
            for piece in self._responses.feed(data):
                self._take(piece, answers)
        except (NotHttp, ValueError, IndexError, DecodeError) as error:
            self.error = f"not S2: {error}"
        return answers

    def due(self) -> bytes:
        return b""

    def _request(self, verb: bytes, name: str, rest: bytes, body: bytes, media: bytes) -> bytes:
        head = _head(verb, name, rest, media)
        return b"%baccept: %b\r\ncontent-length: %d\r\n\r\n%b" % (head, media, len(body), body)

    def _take(self, piece: Piece, answers: list[Answer]) -> None:
        expected = self._expected[0]
        if piece.is_last:
            self._expected.popleft()
        if not 200 <= piece.status < 300:
            if piece.is_last:
                text = piece.body.decode(errors="replace")
                answers.append(Refused(f"{piece.status} {text[:200]}"))
            return
        match expected:
            case _Expected.CREATED:
                answers.append(Created())
            case _Expected.ACK:
                answers.append(_appended(piece.body))
            case _Expected.RECORDS:
                answers.append(Records(_records(piece.body)))
            case _Expected.ACKS | _Expected.CATCHUP | _Expected.FOLLOWED:
                for frame in self._frames.feed(piece.body):
                    self._take_frame(expected, frame, answers)
                if expected is _Expected.CATCHUP and piece.is_last:
                    records, self._caught_up = self._caught_up, []
                    answers.append(Records(records))
            case _:
                assert_never(expected)

    def _take_frame(self, expected: _Expected, frame: frames.Frame, answers: list[Answer]) -> None:
        """One frame of a session; a batch without records is a heartbeat."""
        if frame.is_terminal:
            answers.append(Refused(frame.body[2:].decode(errors="replace")))
        elif expected is _Expected.ACKS:
            answers.append(_appended(frame.body))
        elif expected is _Expected.CATCHUP:
            self._caught_up += _records(frame.body)
        elif records := _records(frame.body):
            answers.append(Records(records))


def _head(verb: bytes, name: str, rest: bytes, media: bytes) -> bytes:
    return (
        b"%b /v1/streams/%b%b HTTP/1.1\r\nhost: localhost\r\ns2-basin: %b\r\ncontent-type: %b\r\n"
    ) % (verb, name.encode(), rest, BASIN, media)


def _input(bodies: list[bytes]) -> bytes:
    """The protobuf message AppendInput."""
    pieces: list[bytes] = []
    for body in bodies:
        inner = b"\x1a" + _varint(len(body))
        pieces += (b"\x0a", _varint(len(inner) + len(body)), inner, body)
    return b"".join(pieces)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _appended(data: bytes) -> Appended:
    ack = s2_pb2.AppendAck.FromString(data)
    first, end = ack.start.seq_num, ack.end.seq_num
    return Appended((0, first), (0, end - 1), end - first)


def _records(data: bytes) -> list[tuple[RecordPosition, bytes]]:
    batch = s2_pb2.ReadBatch.FromString(data)
    return [((0, each.seq_num), each.body) for each in batch.records]

"""`millpond bench s2`: real runs, their JSON, and how S2, HTTP and Redis are read."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import pytest

from millpond.node.bench.drivers.http import NotHttp, Piece, Responses
from millpond.node.bench.drivers.interface import Appended, Created, Records, Refused
from millpond.node.bench.drivers.s2 import S2Driver
from millpond.node.bench.scenarios import StreamKind, s2_rows
from millpond.node.cli.main import main
from millpond.transports.http.s2 import s2_pb2
from millpond.transports.http.s2.codecs import s2s as frames
from tests.bench.peers import RespReader

QUICK = ("--json", "--seconds", "0.1")


def _bench(capfd: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    code = main(["bench", "s2", *QUICK, *words])
    out, err = capfd.readouterr()
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_each_kind_of_row_on_a_node_of_its_own(capfd: pytest.CaptureFixture[str]) -> None:
    found = _bench(capfd, "--rows", "*-c1-*1024")
    kinds = ["append", "batch", "read", "session", "session", "catchup", "tail"]
    assert [each["kind"] for each in found] == kinds
    assert [each["batch"] for each in found] == [1, 100, 100, 10, 100, 2000, 1]
    for each in found:
        assert each["ok"] is True and each["faults"] == {} and each["count"] > 0
        assert (each["checked"] > 0) == (each["kind"] not in ("read", "catchup"))
        assert (each["server_us"] is not None) == (sys.platform == "linux")


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="there is no Redis")
def test_a_peer_in_the_same_rows(capfd: pytest.CaptureFixture[str]) -> None:
    rows = ("--rows", "session-c1-*x10-*", "--peer", "redis")
    ours, theirs = _bench(capfd, *rows)
    assert (ours["server"], theirs["server"]) == ("node", "redis")
    assert ours["row"] == theirs["row"] and theirs["ok"] is True and theirs["batch"] == 10


def test_rows_have_names_of_their_own() -> None:
    names = [load.name for load in s2_rows()]
    assert len(names) == len(set(names))
    assert [load.name for load in s2_rows("session*", connections=3, pipeline=4, size=20)] == [
        "session-c3-p4-x10-20",
        "session-c3-p4-x100-20",
    ]


# Responses, in any pieces.

WHOLE = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"
EMPTY = b"HTTP/1.1 204 No Content\r\nstream-next-offset: 1\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"
)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_responses_are_read_in_any_pieces(size: int) -> None:
    wire, responses = WHOLE + CHUNKED + EMPTY + WHOLE, Responses()
    pieces: list[Piece] = []
    for at in range(0, len(wire), size):
        pieces += responses.feed(wire[at : at + size])
    ends = [at for at, piece in enumerate(pieces, 1) if piece.is_last]
    starts = [0, *ends[:-1]]
    bodies = [
        b"".join(piece.body for piece in pieces[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]
    assert bodies == [b"{}", b"abc0123456789", b"", b"{}"]
    assert [pieces[start].status for start in starts] == [201, 200, 204, 201]
    assert all(pieces[start].is_first for start in starts)


def test_what_is_no_response_is_an_error() -> None:
    with pytest.raises(NotHttp):
        list(Responses().feed(b"SSH-2.0-x\r\n\r\n"))


def test_values_of_redis_are_read_in_any_pieces() -> None:
    wire = b"*2\r\n$3\r\nabc\r\n*2\r\n:1\r\n*0\r\n+OK\r\n*-1\r\n$-1\r\n"
    for size in (1, 3, 100):
        reader, values = RespReader(), []
        for at in range(0, len(wire), size):
            values += reader.feed(wire[at : at + size])
        assert values == [[b"abc", [b"1", []]], b"OK", [], b""]


# Answers, of a server that says whatever a test wants.


def _ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def _chunks(*bodies: bytes) -> bytes:
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(body), body) for body in bodies)
    return b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


def _ack(first: int, end: int) -> bytes:
    place = s2_pb2.StreamPosition
    ack = s2_pb2.AppendAck(
        start=place(seq_num=first), end=place(seq_num=end), tail=place(seq_num=end)
    )
    return bytes(ack.SerializeToString())


def _batch(first: int, *bodies: bytes) -> bytes:
    records = [
        s2_pb2.SequencedRecord(seq_num=first + at, body=body) for at, body in enumerate(bodies)
    ]
    return bytes(s2_pb2.ReadBatch(records=records).SerializeToString())


def test_appends_are_what_the_generated_code_reads() -> None:
    speech = S2Driver()
    for bodies in ([b"x" * 20], [b"y" * 300, b"z" * 20_000], [b"", b"a"]):
        request = speech.append("s", bodies)
        head, _, body = request.partition(b"\r\n\r\n")
        assert b"content-length: %d" % len(body) in head
        found = s2_pb2.AppendInput.FromString(body)
        assert [each.body for each in found.records] == bodies


def test_requests_are_answered_in_their_order() -> None:
    speech = S2Driver()
    speech.create("s")
    speech.append("s", [b"a", b"b"])
    speech.read("s", (0, 7), 2, 1, 0)
    wire = _ok(b"{}") + _ok(_ack(7, 9)) + _ok(_batch(7, b"a", b"b"))
    made, kept, found = speech.feed(wire)
    assert made == Created() and kept == Appended((0, 7), (0, 8), 2)
    assert found == Records([((0, 7), b"a"), ((0, 8), b"b")])


def test_a_session_is_one_request_until_something_else_is_asked() -> None:
    speech = S2Driver(StreamKind.SESSION)
    assert speech.append("s", [b"a"]).startswith(b"POST ")
    assert not speech.append("s", [b"b"]).startswith(b"POST ")
    assert speech.read("s", (0, 0), 10, 1, 0).startswith(b"0\r\n\r\nGET ")
    acks = _chunks(frames.encode((_ack(0, 1),)) + frames.encode((_ack(1, 2),)), b"")
    first, second, found = speech.feed(acks + _ok(_batch(0, b"a", b"b")))
    assert (first, second) == (Appended((0, 0), (0, 0), 1), Appended((0, 1), (0, 1), 1))
    assert isinstance(found, Records) and len(found.records) == 2


def test_a_session_of_reads_is_found_whole_and_a_follower_as_it_comes() -> None:
    pieces = (frames.encode((_batch(0, b"a"),)), frames.encode((_batch(1, b"b"),)))
    walk = S2Driver(StreamKind.CATCHUP)
    walk.read("s", (0, 0), 2, 1, 0)
    assert walk.feed(_chunks(*pieces)) == []
    assert walk.feed(b"0\r\n\r\n") == [Records([((0, 0), b"a"), ((0, 1), b"b")])]
    follower = S2Driver(StreamKind.TAIL)
    assert follower.read("s", (0, 0), 1, 1, 100) and not follower.read("s", (0, 1), 1, 1, 100)
    heartbeat = frames.encode((_batch(0),))
    found = follower.feed(_chunks(heartbeat, *pieces))
    assert found == [Records([((0, 0), b"a")]), Records([((0, 1), b"b")])]


def test_refusals_and_nonsense_are_told() -> None:
    speech = S2Driver()
    speech.append("s", [b"a"])
    (refused,) = speech.feed(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno")
    assert refused == Refused("404 no")
    session = S2Driver(StreamKind.SESSION)
    session.append("s", [b"a"])
    terminal = (3 + 2 << 8 | 0x80).to_bytes(4, "big") + b"\x01\x94no"
    (refused,) = session.feed(_chunks(terminal))
    assert isinstance(refused, Refused)
    nonsense = S2Driver()
    nonsense.append("s", [b"a"])
    assert nonsense.feed(b"?\r\n\r\n") == [] and nonsense.error

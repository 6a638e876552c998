"""The load generator: what a server answers wrongly must never count as done."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from millpond.transports.s3p.commands import AppendRecords, Command, ReadRecords, S3pLimits
from millpond.transports.s3p.decoder import Decoder
from tests.bench.compare import BENCH

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")

Answer = Callable[[int, Command], bytes]


@pytest.fixture(scope="module")
def loadgen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("loadgen") / "loadgen"
    source = str(BENCH / "loadgen.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-o", program, source], check=True)
    return program


@contextmanager
def serving(answer: Answer) -> Iterator[int]:
    """An S3P server on a port of its own; `answer` is told which append or read it is."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, answer), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket, answer: Answer) -> None:
    numbers = iter(range(10**9))
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the test is over
            return
        with connection:
            _converse(connection, answer, numbers)


def _converse(connection: socket.socket, answer: Answer, numbers: Iterator[int]) -> None:
    decoder = Decoder(S3pLimits())
    while True:
        try:
            commands = decoder.feed(connection.recv(65536) or b"")
            for command in commands:
                is_numbered = isinstance(command, AppendRecords | ReadRecords)
                connection.sendall(answer(next(numbers), command) if is_numbered else b"+OK\r\n")
            if not commands:
                return
        except OSError:
            return


def run(loadgen: Path, port: int, *words: str) -> tuple[int, dict[str, Any], str]:
    command = [loadgen, "-p", "s3p", "-t", str(port), "-d", "0.1", "-w", "0", *words]
    told = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return told.returncode, json.loads(told.stdout) if told.stdout else {}, told.stderr


def bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


def block(command: ReadRecords, records: int = 2, size: int = 10) -> bytes:
    body = bytes(ord("a") + place * 7 % 26 for place in range(size))
    pairs = [bulk(b"%d-%d" % (command.min_id.ms, each)) + bulk(body) for each in range(records)]
    return b"*%d\r\n%b" % (2 * records, b"".join(pairs))


READS = ("-o", "read", "-n", "2", "-s", "10", "-L", "6")


def test_reads_walk_over_what_was_appended_before(loadgen: Path):
    asked = []

    def answer(number: int, command: Command) -> bytes:
        if isinstance(command, AppendRecords):
            assert len(command.records) == 2
            return bulk(b"%d-1" % command.ms)
        asked.append((command.min_id.ms, command.min_id.seq, command.count))
        return block(command)

    with serving(answer) as port:
        code, told, _ = run(loadgen, port, *READS)
    assert (code, told["errs"]) == (0, 0)
    assert told["recs"] == pytest.approx(2 * told["rps"], abs=2) and told["rps"] > 0
    seen = list(asked)  # the server's thread may not have come to the last one yet
    assert seen == [(10000001 + number % 3, 0, 2) for number in range(len(seen))]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda command: b"*0\r\n", id="nothing"),
        pytest.param(lambda command: block(command, records=1), id="too few"),
        pytest.param(lambda command: block(command, records=3), id="too many"),
        pytest.param(lambda command: block(command, size=9), id="too short"),
        pytest.param(lambda command: block(command).replace(b"a", b"b"), id="damaged"),
        pytest.param(lambda command: b"-ERR_UNKNOWN_STREAM no\r\n", id="refused"),
    ],
)
def test_a_wrong_read_is_an_error_and_exit_3(loadgen: Path, wrong: Callable[[Command], bytes]):
    def answer(number: int, command: Command) -> bytes:
        if isinstance(command, AppendRecords):
            return bulk(b"%d-1" % command.ms)
        return wrong(command)

    with serving(answer) as port:
        code, told, _ = run(loadgen, port, *READS)
    assert (code, told["rps"]) == (3, 0)
    assert told["errs"] > 0


def test_ids_that_do_not_ascend_are_errors(loadgen: Path):
    def answer(number: int, command: Command) -> bytes:
        return block(command, 1, 10) if isinstance(command, ReadRecords) else bulk(b"7-0")

    with serving(answer) as port:
        code, told, _ = run(loadgen, port, "-o", "append", "-s", "10")
    assert code == 3 and told["errs"] > 0
    assert told["rps"] <= 1 / told["secs"] + 1, "only the first one is above what was before"


def test_the_last_append_must_be_there_at_the_end(loadgen: Path):
    def answer(number: int, command: Command) -> bytes:
        if isinstance(command, ReadRecords):
            return b"*0\r\n"
        return bulk(b"%d-0" % (10 + number))

    with serving(answer) as port:
        code, told, error = run(loadgen, port, "-o", "append", "-s", "10")
    assert (code, told) == (1, {})
    assert "is not there" in error


def test_appends_that_are_kept_are_counted_and_checked(loadgen: Path):
    def answer(number: int, command: Command) -> bytes:
        if isinstance(command, ReadRecords):
            body = bytes(ord("a") + place * 7 % 26 for place in range(10))
            return b"*2\r\n" + bulk(b"%d-%d" % (command.min_id.ms, command.min_id.seq)) + bulk(body)
        return bulk(b"%d-2" % (10 + number))

    with serving(answer) as port:
        code, told, _ = run(loadgen, port, "-o", "append", "-s", "10", "-n", "3")
    assert (code, told["errs"], told["checked"]) == (0, 0, 1)
    assert told["recs"] == pytest.approx(3 * told["rps"], abs=3) and told["rps"] > 0


@contextmanager
def http(*replies: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that answers one request after the other, the last reply again and again; what it
    was asked."""
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        # The generator ends in the middle of a request.
        with suppress(ConnectionError), listener.accept()[0] as connection:
            left = list(replies)
            while data := connection.recv(65536):
                asked.append(data)
                connection.sendall(left.pop(0) if len(left) > 1 else left[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1], asked


EMPTY = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
TEXT = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"
POST = ("-p", "http", "-o", "post", "-s", "3")


@pytest.mark.parametrize("made", [EMPTY, TEXT], ids=["chunked", "sized"])
def test_over_http_a_stream_is_made_and_appended_to(loadgen: Path, made: bytes):
    with http(made, NOTHING) as (port, asked):
        code, told, _ = run(loadgen, port, *POST, "-U", "/v1/stream/a")
    assert (code, told["errs"]) == (0, 0) and told["rps"] > 0
    assert asked[0].startswith(b"PUT /v1/stream/a HTTP/1.1\r\n")
    assert asked[1].startswith(b"POST /v1/stream/a HTTP/1.1\r\n")
    assert asked[1].endswith(b"Content-Length: 3\r\n\r\naho")


def test_a_path_of_s2_has_its_json(loadgen: Path):
    with http(TEXT, TEXT) as (port, asked):
        code, told, _ = run(loadgen, port, *POST, "-U", "/v1/streams/a/records")
    assert (code, told["errs"]) == (0, 0) and told["rps"] > 0
    assert asked[0].startswith(b"PUT /v1/streams/a HTTP/1.1\r\n") and asked[0].endswith(b"{}")
    head, _, body = asked[1].partition(b"\r\n\r\n")
    assert json.loads(body) == {"records": [{"body": "aho"}]}
    assert f"Content-Length: {len(body)}".encode() in head


def test_over_http_an_error_is_one(loadgen: Path):
    with http(TEXT, b"HTTP/1.1 500 Oh\r\ncontent-length: 0\r\n\r\n") as (port, _):
        code, told, _ = run(loadgen, port, *POST, "-U", "/v1/stream/a")
    assert (code, told["rps"]) == (3, 0) and told["errs"] > 0

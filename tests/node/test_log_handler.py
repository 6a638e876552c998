"""The log of a process, where its pipe is read and where nobody reads it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, ResponseReceived

from millpond.node.log_handler import FLUSH_S, QUEUE_BYTES_MAX, LogHandler, dropped_records
from tests.attacks.memory import http
from tests.node.processes import ANY_PORT, LIMIT_S, ROOT, environment
from tests.ports import free_port

PIPE_BYTES = 2**16


class Pipe:
    """A pipe that is full until it is read."""

    def __init__(self, *, is_full: bool = True) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._filled_bytes = PIPE_BYTES if is_full else 0
        if is_full:
            os.write(self.writer, bytes(PIPE_BYTES))

    def read_until(self, is_done: Callable[[bytes], bool]) -> bytes:
        """The bytes written to it once it was full."""
        found = b""
        while not is_done(found[self._filled_bytes :]):
            assert select.select([self.reader], [], [], LIMIT_S)[0], found[self._filled_bytes :]
            data = os.read(self.reader, 2**20)
            assert data, found[self._filled_bytes :]
            found += data
        return found[self._filled_bytes :]

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


def _handler(pipe: Pipe, queue_bytes_max: int = QUEUE_BYTES_MAX) -> LogHandler:
    """With a descriptor of its own: its thread may write after the test."""
    return LogHandler(os.dup(pipe.writer), queue_bytes_max)


def _log(handler: logging.Handler, text: str) -> None:
    handler.handle(logging.LogRecord("a", logging.INFO, "", 0, "%s", (text,), None))


def test_a_log_that_nobody_reads_holds_nothing_up_and_loses_nothing(pipe: Pipe) -> None:
    handler = _handler(pipe)
    lines = [f"line {number}" for number in range(10_000)]
    for line in lines:
        _log(handler, line)
    found = pipe.read_until(lambda found: found.endswith(b"line 9999\n"))
    assert found.decode().splitlines() == lines
    assert handler.dropped == 0


def test_records_beyond_the_queue_are_counted_and_a_line_tells_of_them(pipe: Pipe) -> None:
    handler = _handler(pipe, queue_bytes_max=1000)
    for number in range(500):
        _log(handler, f"line {number:04}")  # 10 bytes with its end
    assert handler.dropped == 400
    found = pipe.read_until(lambda found: b"dropped" in found and found.endswith(b"\n"))
    *lines, told = found.decode().splitlines()
    assert lines == [f"line {number:04}" for number in range(100)]
    assert told == "log records dropped: 400, as nobody read the log"


def test_a_line_tells_of_dropped_records_at_their_place(pipe: Pipe) -> None:
    handler = _handler(pipe, queue_bytes_max=1000)
    for number in range(101):
        _log(handler, f"line {number:04}")
    pipe.read_until(lambda found: b"dropped: 1," in found)
    pipe._filled_bytes = 0
    _log(handler, "later")
    assert pipe.read_until(lambda found: found.endswith(b"later\n")) == b"later\n"


def test_a_record_that_is_longer_than_the_queue_is_written() -> None:
    pipe = Pipe(is_full=False)
    handler = _handler(pipe, queue_bytes_max=1000)
    _log(handler, "x" * 100_000)
    assert len(pipe.read_until(lambda found: found.endswith(b"\n"))) == 100_001
    pipe.close()


def test_a_flush_waits_for_the_pipe_and_not_for_ever(pipe: Pipe) -> None:
    handler = _handler(pipe)
    _log(handler, "last")
    began = time.monotonic()
    handler.flush()
    assert time.monotonic() - began >= FLUSH_S
    pipe.read_until(lambda found: found == b"last\n")
    handler.flush()
    assert handler.dropped == 0


def test_records_are_dropped_where_the_reader_has_gone() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    handler = LogHandler(writer)
    _log(handler, "one")
    handler.flush()
    _log(handler, "two")
    handler.flush()
    assert handler.dropped == 2
    os.close(writer)


def test_a_forked_process_logs_too() -> None:
    pipe = Pipe(is_full=False)
    handler = _handler(pipe)
    _log(handler, "parent")
    handler.flush()
    child = os.fork()
    if not child:
        _log(handler, "child")
        handler.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pipe.read_until(lambda found: found.count(b"\n") == 2) == b"parent\nchild\n"
    pipe.close()


def test_the_dropped_records_of_a_process_are_counted(pipe: Pipe) -> None:
    handler = _handler(pipe, queue_bytes_max=100)
    logging.getLogger().addHandler(handler)
    try:
        for _ in range(20):
            _log(handler, "nine char")
        assert dropped_records() == 10
    finally:
        logging.getLogger().removeHandler(handler)


# A node.


@contextmanager
def _node(pipe: Pipe, folder: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    given = ("serve", *ANY_PORT, "--http", "127.0.0.1:0", "--data", str(folder), *words, "--json")
    with _started(pipe, given, stdout=subprocess.PIPE) as process:
        yield process


@contextmanager
def _started(pipe: Pipe, words: tuple[str, ...], stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "millpond", *words]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=stdout, stderr=pipe.writer
    ) as process:
        timer = threading.Timer(LIMIT_S, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def _http_port(process: subprocess.Popen[bytes]) -> int:
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    return int(ready["listeners"]["http"].rpartition(":")[2])


def test_a_node_whose_log_nobody_reads_starts_serves_and_stops(pipe: Pipe, tmp_path: Path) -> None:
    with _node(pipe, tmp_path, "--log-level", "debug") as process:
        port = _http_port(process)
        assert http(port, "PUT", "/v1/stream/a", b"").startswith(b"HTTP/1.1 201")
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0


def test_a_node_tells_all_of_its_log_once_it_is_read(pipe: Pipe, tmp_path: Path) -> None:
    with _node(pipe, tmp_path, "--log-level", "debug") as process:
        port = _http_port(process)
        assert http(port, "PUT", "/v1/stream/a", b"").startswith(b"HTTP/1.1 201")
        assert b"millpond_log_dropped_records_total 0.0" in http(port, "GET", "/metrics", b"")
        found = pipe.read_until(lambda found: b"store opened" in found)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    assert b"log records dropped" not in found


def test_a_node_whose_ready_line_nobody_reads_serves_and_stops(tmp_path: Path) -> None:
    pipe, where = Pipe(), f"127.0.0.1:{free_port()}"
    words = ("serve", *ANY_PORT, "--http", where, "--data", str(tmp_path))
    with _started(pipe, words, stdout=pipe.writer) as process:
        ends_at = time.monotonic() + LIMIT_S
        while not _answers(where):
            assert process.poll() is None and time.monotonic() < ends_at
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    pipe.close()


REFUSED_STARTS = {
    "options": (("--nonsense",), 2, b"unknown option --nonsense"),
    "settings": (("--p2p", "nowhere"), 2, b"nowhere"),
    "folder": (("--data", "/dev/null/x"), 1, b"/dev/null"),
}


@pytest.mark.parametrize(("words", "code", "why"), REFUSED_STARTS.values(), ids=REFUSED_STARTS)
def test_a_start_that_fails_ends_where_nobody_reads_why(
    pipe: Pipe, words: tuple[str, ...], code: int, why: bytes
) -> None:
    with _started(pipe, ("serve", *ANY_PORT, *words), stdout=subprocess.DEVNULL) as process:
        assert process.wait(LIMIT_S) == code


@pytest.mark.parametrize(("words", "code", "why"), REFUSED_STARTS.values(), ids=REFUSED_STARTS)
def test_a_start_that_fails_says_why_to_a_reader_that_comes_soon(
    pipe: Pipe, words: tuple[str, ...], code: int, why: bytes
) -> None:
    with _started(pipe, ("serve", *ANY_PORT, *words), stdout=subprocess.DEVNULL) as process:
        assert why in pipe.read_until(lambda found: why in found and found.endswith(b"\n"))
        assert process.wait(LIMIT_S) == code


def test_a_worker_whose_ready_line_nobody_reads_works(pipe: Pipe, tmp_path: Path) -> None:
    read = Pipe(is_full=False)
    with _node(read, tmp_path) as node:
        assert node.stdout is not None
        where = "tcp://" + json.loads(node.stdout.readline())["listeners"]["p2p"]
        words = ("work", "json:dumps", "--queue", "mail", "--burst", "--connect", where)
        with _started(pipe, words, stdout=subprocess.DEVNULL) as worker:
            assert worker.wait(LIMIT_S) == 0
    read.close()


def test_a_worker_that_cannot_start_ends_where_nobody_reads_why(pipe: Pipe) -> None:
    words = ("work", "no.such.module:function")
    with _started(pipe, words, stdout=subprocess.DEVNULL) as process:
        assert process.wait(LIMIT_S) == 2


def _answers(where: str) -> bool:
    try:
        return http(int(where.rpartition(":")[2]), "GET", "/ready", b"").startswith(b"HTTP/1.1 200")
    except ConnectionRefusedError:
        return False


def test_the_debug_log_has_no_header_of_a_request(tmp_path: Path) -> None:
    """HPACK's library logs each of them, tokens included."""
    pipe = Pipe(is_full=False)
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    head = [(":method", "GET"), (":scheme", "http"), (":authority", "localhost")]
    head += [(":path", "/v1/stream/a"), ("authorization", "Bearer secret-of-alice")]
    client.send_headers(1, head, end_stream=True)
    with _node(pipe, tmp_path, "--log-level", "debug") as process:
        with socket.create_connection(("127.0.0.1", _http_port(process)), LIMIT_S) as connection:
            connection.sendall(client.data_to_send())
            received: list[Event] = []
            while not any(isinstance(each, ResponseReceived) for each in received):
                received += client.receive_data(connection.recv(2**16))
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    found = os.read(pipe.reader, PIPE_BYTES)
    assert b"store opened" in found and b"secret-of-alice" not in found
    pipe.close()

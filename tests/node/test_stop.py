"""The end of a node by a signal: it comes, whatever clients and the disk do."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes, Settings

from tests.conformance import packets as p
from tests.conformance import s3p_peer as s3p
from tests.node.processes import LIMIT_S, ROOT, Serving, environment, serving
from tests.node.tls.certificate_files import files_of

pytestmark = pytest.mark.crash

STOP_S = 30
"""A node with default settings is gone within this time (docs/guides/deployment.md)."""
BIG = "/v1/stream/big"
LARGE = 4_000_000


class Clients:
    """Sockets to one node, that stay open until the end of the test."""

    def __init__(self, node: Serving) -> None:
        self._node = node
        self.sockets = ExitStack()

    def open(self, listener: str, data: bytes = b"", *, reads: bool = False) -> socket.socket:
        """A new connection that has sent this; `reads` False: into a window that is soon full."""
        client = self.sockets.enter_context(socket.socket())
        client.settimeout(LIMIT_S)
        if not reads:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", self._node.port(listener)))
        client.sendall(data)
        return client

    def ask(self, data: bytes) -> None:
        """A request over HTTP, and the begin of its answer."""
        with self.open("http", data, reads=True) as client:
            assert client.recv(100).startswith(b"HTTP/1.1 2")

    def websocket(self) -> socket.socket:
        head = "GET /v1/channels/a HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n".format(self._node.port("ws"))
        head += "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        head += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        head += "Sec-WebSocket-Protocol: p2pbuf.v1\r\n\r\n"
        client = self.open("ws", head.encode(), reads=True)
        assert client.recv(4096).startswith(b"HTTP/1.1 101 ")
        return client


def http(method: str, path: str, body: bytes = b"", *lines: str, length: int = -1) -> bytes:
    head = [f"{method} {path} HTTP/1.1", "host: 127.0.0.1", *lines]
    if method != "GET":
        head.append(f"content-length: {length if length >= 0 else len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


def http2(*requests: tuple[str, str, dict[str, str]], window: int = 2**16 - 1) -> bytes:
    """Requests on one connection; those with POST have a body that never ends."""
    client = H2Connection(H2Configuration(client_side=True, header_encoding=None))
    initial = {SettingCodes.INITIAL_WINDOW_SIZE: window}
    client.local_settings = Settings(client=True, initial_values=initial)
    client.initiate_connection()
    for method, path, headers in requests:
        head = {":method": method, ":scheme": "http", ":authority": "127.0.0.1", ":path": path}
        number = client.get_next_available_stream_id()
        client.send_headers(number, [*head.items(), *headers.items()], end_stream=method == "GET")
    return client.data_to_send()


S2S = {"content-type": "s2s/proto", "accept": "s2s/proto", "s2-basin": "millpond"}
HALVES: dict[str, tuple[str, bytes]] = {
    "nothing": ("p2p", b""),
    "half a HELLO": ("p2p", p.framed(p.hello(b"a"))[:7]),
    "half a packet": ("p2p", p.framed(p.hello(b"a")) + p.u32(500_000) + b"\x06xxx"),
    "half an upgrade": ("ws", b"GET /v1/channels/a HTT"),
    "half a command": ("s3p", b"*3\r\n$6\r\nCRE"),
    "half a frame": ("rustlog", p.u32(2**20) + b"{"),
    "half a TLS handshake": ("rustlog", b"\x16\x03\x01\x02\x00\x01\x00"),
    "half a head": ("http", b"GET / HT"),
    "half a body": ("http", http("POST", BIG, b"xx", "content-type: text/plain", length=1000)),
    "half an HTTP/2 frame": ("http", http2(("POST", BIG, {})) + b"\0\x10\0\0\0\0\0\0\1xx"),
}
WAITING: dict[str, tuple[str, bytes]] = {
    "long-poll": ("http", http("GET", f"{BIG}?offset=now&live=long-poll")),
    "event stream": ("http", http("GET", f"{BIG}?offset=now&live=sse")),
    "state": ("http", http("GET", "/millpond/state/state", b"", "accept: text/event-stream")),
    "unread events": ("http", http("GET", f"{BIG}?offset=-1&live=sse")),
    "unread answers": ("http", http("GET", BIG) * 5),
    "no window": ("http", http2(*[("GET", BIG, {})] * 20, window=0)),
    "append session": ("http", http2(("POST", "/v1/streams/state/records", S2S))),
    "read session": ("http", http2(("GET", "/v1/streams/big/records?seq_num=0", S2S))),
}


def fill(clients: Clients) -> None:
    """Streams and a channel with more than the buffers of a socket hold."""
    plain = "content-type: text/plain"
    for method in ("PUT", "POST", "POST"):
        clients.ask(http(method, BIG, b"y" * LARGE, plain))
    clients.ask(http("PUT", "/v1/stream/state", b"", "content-type: application/json"))
    producer = clients.open("p2p", p.framed(p.hello(b"deep")), reads=True)
    for number in range(16):
        producer.sendall(p.framed(p.put(number, os.urandom(500_000))))


def connect_all(clients: Clients) -> None:
    fill(clients)
    for listener, data in (HALVES | WAITING).values():
        clients.open(listener, data)
    clients.open("p2p", p.framed(p.hello(b"deep")))  # is pushed 8 MB, and reads none
    clients.websocket()
    clients.websocket().sendall(b"\x82\xfe\x10\0\0\0\0\0xxx")
    reader = clients.open("s3p", s3p.create() + s3p.append(b"x" * 900_000) * 4)
    reader.sendall(s3p.read() * 20)


@contextmanager
def stubborn(node: Serving) -> Iterator[None]:
    clients = Clients(node)
    with clients.sockets:
        connect_all(clients)
        # Everything before this is with the node: its loop has come round.
        clients.ask(http("GET", "/health"))
        yield


@pytest.mark.parametrize("loop", ["uvloop", "trio"])
def test_a_stop_ends_whatever_clients_do(loop: str, tmp_path: Path) -> None:
    """With default settings but for the drain, which is waited for in full."""
    files = files_of(tmp_path)
    tls = ("--tls-cert", files.cert, "--tls-key", files.key, "--tls", "rustlog")
    data = ("--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", "--loop", loop)
    with serving(*data, *tls, "--drain-timeout", "0.5") as node, stubborn(node):
        node.process.send_signal(signal.SIGTERM)
        assert node.process.wait(STOP_S - 5 + 0.5) == 0
        assert node.process.stderr is not None
        assert b"Traceback" not in node.process.stderr.read()


@pytest.mark.parametrize("call", ["fdatasync", "pwrite"])
def test_a_stop_ends_with_a_disk_that_does_not_answer(call: str, tmp_path: Path) -> None:
    words = ("serve", "--p2p", "127.0.0.1:0", "--ws", "off", "--json", "--drain-timeout", "0.2")
    env = environment(HANG=str(tmp_path / "hang"), MILLPOND_STOP_TIMEOUT_S="1")
    with subprocess.Popen(
        [sys.executable, "-m", "tests.node.hung_disk", call, *words, "--data", tmp_path / "data"],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            port = int(json.loads(process.stdout.readline())["listeners"]["p2p"].split(":")[1])
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(p.framed(p.hello(b"a"), p.put(1, b"kept")))
                read_until(client, lambda got: b"\x07" + p.u32(1) in got)
                (tmp_path / "hang").touch()
                client.sendall(p.framed(p.put(2, b"x"), p.PING))
                read_until(client, lambda got: p.PONG in got)
                process.send_signal(signal.SIGTERM)
                assert process.wait(STOP_S) == 1
            told = process.stderr.read().decode()
            assert "millpond serve: the stop takes longer than 1.2 s: ended without it" in told
        finally:
            process.kill()
    (tmp_path / "hang").unlink()
    with serving("--data", str(tmp_path / "data")) as node:  # what was acknowledged is there
        with socket.create_connection(("127.0.0.1", node.port("p2p"))) as client:
            client.sendall(p.framed(p.hello(b"a")))
            read_until(client, lambda got: b"kept" in got)


def read_until(client: socket.socket, is_done: Callable[[bytes], bool]) -> None:
    client.settimeout(LIMIT_S)
    got = b""
    while not is_done(got):
        data = client.recv(65_536)
        assert data, got
        got += data

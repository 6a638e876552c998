"""A program: a node with all listeners that tells which modules are loaded when it is ready, and
which ones the first requests load once those of its listeners are."""

from __future__ import annotations

import json
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping

import anyio
import anyio.to_thread

from millpond.node.cli.commands import serve
from millpond.node.cli.main import main
from millpond.node.late_modules import load_late_modules
from millpond.node.node import Node

LISTENERS = ("p2p", "ws", "s3p", "rustlog", "http")
JSON, TEXT = b"application/json", b"text/plain"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
PING = b'{"type":"Ping"}'


def http(method: bytes, path: bytes, body: bytes = b"", kind: bytes = JSON) -> bytes:
    lines = (
        b"%b %b HTTP/1.1" % (method, path),
        *(b"host: localhost", b"s2-basin: millpond"),
        *(b"content-type: %b" % kind, b"content-length: %d" % len(body)),
        *(b"", body),
    )
    return b"\r\n".join(lines)


REQUESTS = (
    ("http", http(b"GET", b"/health"), b"HTTP/1.1 200"),
    ("http", http(b"PUT", b"/v1/stream/a", b"x", TEXT), b"HTTP/1.1 201"),
    ("http", http(b"POST", b"/v1/stream/a", b"x", TEXT), b"HTTP/1.1 2"),
    ("http", http(b"GET", b"/v1/stream/a?offset=-1"), b"HTTP/1.1 200"),
    ("http", http(b"PUT", b"/v1/streams/b", b"{}"), b"HTTP/1.1 2"),
    ("http", http(b"POST", b"/v1/streams/b/records", b'{"records":[{"body":"x"}]}'), b"HTTP/1.1 2"),
    ("http", http(b"GET", b"/v1/streams/b/records?seq_num=0"), b"HTTP/1.1 200"),
    ("http", http(b"GET", b"/millpond/state/"), b"HTTP/1.1 200"),
    ("http", http(b"GET", b"/millpond/state/b"), b"HTTP/1.1"),
    ("http", http(b"GET", b"/millpond/"), b"HTTP/1.1 200"),
    ("http", http(b"GET", b"/v1/channels/a"), b"HTTP/1.1 4"),
    ("http", PREFACE + SETTINGS, b"\0\0"),
    ("ws", b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n", b"HTTP/1.1 200"),
    ("s3p", b"*3\r\n$6\r\nCREATE\r\n$1\r\nc\r\n*0\r\n", b"+"),
    ("rustlog", len(PING).to_bytes(4, "big") + PING, b"\0\0"),
)
"""One request for each listener and API, and the beginning of its response."""


def ask_by_p2p(listeners: Mapping[str, str]) -> None:
    """A handshake, and a request about the node. These modules are not loaded with this one."""
    from millpond.actors.messages import Role
    from millpond.transports.p2p.framing import LengthPrefixed, frame_packets
    from millpond.transports.p2p.handshake import Hello, encode_hello
    from millpond.transports.p2p.packets import ADMIN_REPLY, EXTENSIONS, READY, Admin, encode

    host, _, port = listeners["p2p"].rpartition(":")
    framing, seen = LengthPrefixed(2**20), set[int]()
    with socket.create_connection((host, int(port)), timeout=200) as wire:
        hello = Hello(want_push=False, channel=b"c", role=Role.BOTH, extensions=EXTENSIONS)
        wire.sendall(frame_packets([encode_hello(hello), encode(Admin(1, 1, b"\x80"))]))
        while ADMIN_REPLY not in seen:
            data = wire.recv(65536)
            assert data, seen
            seen.update(packet[0] for packet in framing.feed(data))
    assert READY in seen


def send_all(listeners: Mapping[str, str]) -> None:
    for listener, request, beginning in REQUESTS:
        host, _, port = listeners[listener].rpartition(":")
        with socket.create_connection((host, int(port)), timeout=200) as wire:
            wire.sendall(request)
            response = wire.recv(65536)
        assert response.startswith(beginning), (listener, request, response)
    ask_by_p2p(listeners)


def ours() -> set[str]:
    return {each for each in sys.modules if each.startswith("millpond.")}


async def tell(node: Node, as_json: bool) -> None:
    ready = sorted(sys.modules)
    await anyio.to_thread.run_sync(load_late_modules, LISTENERS)
    loaded = ours()
    await anyio.to_thread.run_sync(send_all, node.listeners)
    print(json.dumps({"ready": ready, "later": sorted(ours() - loaded)}), flush=True)
    signal.raise_signal(signal.SIGTERM)


async def load_nothing(node: Node) -> None:
    """In place of what `serve` loads in a thread: the test says when."""


if __name__ == "__main__":
    serve._announce = tell
    serve._load_late_modules = load_nothing
    addresses = [word for name in LISTENERS for word in (f"--{name}", "127.0.0.1:0")]
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(["serve", "--data", f"{folder}/data", "--json", *addresses]))

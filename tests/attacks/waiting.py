"""Attacks on the processor time of a node: how long small requests of other clients wait.

    python -m tests.attacks.waiting [--seconds 15] [--only NAME]

Each attack runs against a node in a process of its own, while one client after the other uses it.
The exit code is 1 if one of their requests took longer than a second.
"""

from __future__ import annotations

import argparse
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from tests.attacks import memory
from tests.attacks.memory import ANSWER_S, ATTACKS, BUDGET_BYTES, Line, Ports, http, pump
from tests.attacks.requests import MORE
from tests.conformance import packets as p

WAIT_S_MAX = 1.0
PAUSE_S = 0.05


def small_fields(ports: Ports) -> list[Line]:
    """Heads of as many fields as are accepted, each a byte that stands for one of HPACK's table."""
    lines = []
    for _ in range(60):
        client = memory._http2_client(0)
        data = [client.data_to_send()]
        block = b"\x82\x86\x84\x41\x09localhost" + b"\x90" * 255
        for at in range(100):
            number = 2 * at + 1
            data.append(len(block).to_bytes(3, "big") + b"\x01\x05" + p.u32(number) + block)
        lines.append(Line(ports.http, b"".join(data)))
    return lines


BUSY: dict[str, Callable[[Ports], list[Line]]] = {
    **{name: attack for name, attack in ATTACKS.items() if name.startswith("HTTP/2: 60 times 100")},
    "HTTP/2: 60 times 100 heads of 256 small fields": small_fields,
    **{name: attack for name, attack in MORE.items() if ": 60 times 1 MiB of" in name},
}
"""Attacks by requests that take long, and by many small ones."""


class Waits(msgspec.Struct):
    """The seconds that requests of other clients took."""

    http: list[float] = []
    p2p: list[float] = []


def run(attack: Callable[[Ports], list[Line]], seconds: float) -> Waits:
    """Attack a node of its own, and use it meanwhile for so long."""
    waits = Waits()
    with memory._node(BUDGET_BYTES) as node, ExitStack() as stack:
        ports = Ports(*(node.port(name) for name in Ports.__struct_fields__))
        memory._fill(ports)
        lines = attack(ports)
        for line in lines:
            stack.callback(line.socket.close)
        attacker = threading.Thread(target=pump, args=(lines,))
        attacker.start()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            began = time.monotonic()
            assert http(ports.http, "GET", "/v1/stream/other", b"").startswith(b"HTTP/1.1 200")
            waits.http.append(time.monotonic() - began)
            began = time.monotonic()
            _put(ports.p2p)
            waits.p2p.append(time.monotonic() - began)
            time.sleep(PAUSE_S)
        attacker.join()
    return waits


def _put(port: int) -> None:
    put = b"\x06" + p.u32(7) + bytes(4) + b"hello"
    with socket.create_connection(("127.0.0.1", port), ANSWER_S) as client:
        client.sendall(memory._hello(b"other") + memory._framed(put))
        assert client.recv(4096)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack")
    parser.add_argument("--only", default="", help="attacks whose name contains this")
    given = parser.parse_args()
    longest = 0.0
    print("| attack | requests | longest GET | longest PUT |")
    print("| --- | --- | --- | --- |")
    for name, attack in BUSY.items():
        if given.only in name:
            waits = run(attack, given.seconds)
            longest = max(longest, *waits.http, *waits.p2p)
            get, put = max(waits.http), max(waits.p2p)
            count = len(waits.http) + len(waits.p2p)
            print(f"| {name} | {count} | {get:.2f} s | {put:.2f} s |", flush=True)
    return int(longest > WAIT_S_MAX)


if __name__ == "__main__":
    raise SystemExit(main())

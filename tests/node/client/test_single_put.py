"""A single PUT over a blocking socket: the bytes of the codecs, and a client for all else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from millpond.actors.messages import Durability, Put, PutAck, Role
from millpond.node.cli.commands import put as command
from millpond.node.cli.main import main
from millpond.node.client import single_put
from millpond.node.client.channel import PUT_BYTES
from millpond.node.client.connect import FRAME_SIZE_MAX
from millpond.node.client.single_put import (
    NotPlain,
    PutReceipt,
    PutRequest,
    RefusedPacket,
    put_once,
)
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.framing import LengthPrefixed
from millpond.transports.p2p.handshake import (
    Challenge,
    Hello,
    Ready,
    decode_hello,
    encode_challenge,
    encode_hello,
    encode_ready,
)
from millpond.transports.p2p.nacks import HelloCode, encode_hello_refusal

ROOT = Path(__file__).parents[3]
REQUEST = PutRequest(b"chat/1", b"hello", key=7, ttl=60)
READY = encode_ready(Ready(packet_max=2**20, window=0, durability=Durability.DISK))
Answer = Callable[[int, bytes], list[bytes] | None]
"""The packets that answer a packet of a connection, by its number; None: the connection ends."""


def receipt(packet: bytes) -> bytes:
    put = p.decode(packet)
    assert isinstance(put, Put)
    return p.encode(PutAck(put.key, 60, 2**60))


def well(number: int, packet: bytes) -> list[bytes]:
    return [READY] if packet[0] == p.HELLO else [receipt(packet)] if packet[0] == p.PUT else []


class Node:
    """A peer with a port of its own that answers as a test says."""

    def __init__(self, answer: Answer, piece_bytes: int) -> None:
        self.packets: list[tuple[int, bytes]] = []
        self._answer = answer
        self._piece_bytes = piece_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        number = 0
        while True:
            try:
                wire, _ = self._listener.accept()
            except OSError:  # the test is over
                return
            with wire, suppress(OSError):
                self._converse(wire, number)
            number += 1

    def _converse(self, wire: socket.socket, number: int) -> None:
        framing = LengthPrefixed(FRAME_SIZE_MAX)
        while data := wire.recv(65536):
            for packet in framing.feed(data):
                self.packets.append((number, packet))
                if packet == p.GOODBYE or (answers := self._answer(number, packet)) is None:
                    return
                self._write(wire, framing.frame(answers) if answers else b"")

    def _write(self, wire: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), self._piece_bytes):
            wire.sendall(data[start : start + self._piece_bytes])


@contextmanager
def answering(answer: Answer, piece_bytes: int = 2**16) -> Iterator[Node]:
    node = Node(answer, piece_bytes)
    try:
        yield node
    finally:
        node.close()


def stored(node: Node, request: PutRequest = REQUEST) -> PutReceipt:
    return put_once("127.0.0.1", node.port, request, time.monotonic)


@pytest.mark.parametrize("piece_bytes", [1, 3, 2**16])
def test_a_message_is_stored_however_the_answers_are_split(piece_bytes: int):
    with answering(well, piece_bytes) as node:
        assert stored(node) == (2**60, 60, 7, Durability.DISK)


@pytest.mark.parametrize("token", [None, b"s3cret"])
def test_the_packets_are_those_of_the_codecs(token: bytes | None):
    with answering(well) as node:
        stored(node, REQUEST._replace(token=token))
    hello = Hello(
        want_push=False,
        channel=b"chat/1",
        role=Role.PRODUCER,
        token=token,
        window=0,
        keep_alive_ms=20_000,
    )
    sent = [packet for _, packet in node.packets]
    assert sent[:2] == [encode_hello(hello), p.encode(Put(7, 60, b"hello"))]
    assert decode_hello(sent[0]) == hello
    assert sent[2:] in ([], [p.GOODBYE])  # the connection may end before it is read
    assert single_put.DATA_BYTES_MAX == FRAME_SIZE_MAX - PUT_BYTES
    assert command.DURABILITIES == tuple(each.name.lower() for each in Durability)


def test_refusals_are_the_errors_of_the_client():
    refused = p.encode(p.Refused(p.PUT, 0x26, (7).to_bytes(4, "big")))
    denied = encode_hello_refusal(HelloCode.NOT_ALLOWED)
    for answers in ([refused], [denied]):
        with answering(
            lambda number, packet, answers=answers: (
                [READY] if packet[0] == p.HELLO and answers == [refused] else answers
            )
        ) as node:
            with pytest.raises(RefusedPacket) as raised:
                stored(node)
            assert raised.value.packet == answers[0]


@pytest.mark.parametrize(
    ("answers", "was_ready"),
    [
        ({p.HELLO: None}, False),
        ({p.HELLO: [encode_challenge(Challenge(1, bytes(32), bytes(32), bytes(64)))]}, False),
        ({p.HELLO: [b"x" * 70_000]}, False),
        ({p.HELLO: [READY], p.PUT: None}, True),
        ({p.HELLO: [READY], p.PUT: [p.encode(p.Ping())]}, True),
        ({p.HELLO: [READY], p.PUT: [p.encode(PutAck(8, 60, 1))]}, True),
        ({p.HELLO: [READY], p.PUT: [p.GOODBYE]}, True),
        ({p.HELLO: [encode_ready(Ready(packet_max=10))]}, True),
        ({p.HELLO: [READY[:-1]]}, False),
    ],
)
def test_whatever_is_not_plain_is_left_to_a_client(
    answers: dict[int, list[bytes] | None], was_ready: bool
):
    with answering(lambda number, packet: answers[packet[0]]) as node:
        with pytest.raises(NotPlain) as raised:
            stored(node)
    assert raised.value.was_ready is was_ready


def test_nothing_waits_beyond_the_deadline():
    """Virtual time: the clock passes the deadline with the handshake."""
    times = iter([0.0, 0.0, 0.0, 0.0, 0.0, 100.0, 100.0, 100.0])
    with answering(well) as node, pytest.raises(TimeoutError):
        put_once("127.0.0.1", node.port, REQUEST, lambda: next(times, 100.0), 50.0)


def test_a_put_whose_receipt_is_lost_is_repeated_with_its_key(
    capsys: pytest.CaptureFixture[str],
):
    def answer(number: int, packet: bytes) -> list[bytes] | None:
        return None if number == 0 and packet[0] == p.PUT else well(number, packet)

    with answering(answer) as node:
        assert main(["put", "chat/1", "hello", "--ttl", "60", "--connect", node.url]) == 0
    assert capsys.readouterr().out == f"{2**60}\n"
    first, again = [p.decode(packet) for number, packet in node.packets if packet[0] == p.PUT]
    assert isinstance(first, Put) and first == again


def test_put_loads_neither_an_event_loop_nor_the_codecs():
    code = """
import sys
from millpond.node.client import single_put
single_put.CONNECT_S = single_put.ANSWER_S = 200.0  # however busy the machine is
from millpond.node.cli.main import main
code = main(sys.argv[1:])
print(code, *sys.modules)
"""
    with answering(well) as node:
        done = subprocess.run(
            [sys.executable, "-c", code, "put", "chat/1", "hello", "--connect", node.url],
            cwd=ROOT,
            capture_output=True,
            timeout=300,
            check=True,
        )
    id, told = done.stdout.decode().splitlines()
    code, *loaded = told.split()
    assert (id, code) == (str(2**60), "0")
    assert "socket" in loaded
    heavy = ("anyio", "asyncio", "concurrent", "cryptography", "h2", "json", "logging", "msgspec")
    assert not set(loaded) & {*heavy, "pathlib", "sqlite3", "ssl", "uvloop", "websockets"}
    ours = {each for each in loaded if each.startswith("millpond.")}
    assert not {each for each in ours if each.startswith(("millpond.actors", "millpond.trans"))}

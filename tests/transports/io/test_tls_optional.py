"""One listener for clients with TLS and without: each gets what it begins with."""

from __future__ import annotations

import socket
from itertools import cycle

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.transports.io.interface import Session
from millpond.transports.io.tcp import dial, listen, parse_address
from millpond.transports.io.tls import SecureWire
from millpond.transports.io.tls_handshake import TlsAcceptor, TlsConnector
from millpond.transports.io.tls_optional import SILENT_S, TLS_HANDSHAKE
from tests.node.tls.certificate_files import Files, files_of
from tests.transports.io.test_tls import NAME, Pipe
from tests.transports.io.test_wires import Recorder, echo, until


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return files_of(tmp_path_factory.mktemp("tls"))


class Accepted:
    """A connection of such a listener, on a pipe."""

    def __init__(self, files: Files, handshakes_max: int = 10) -> None:
        self.now = 0.0
        self.acceptor = TlsAcceptor(
            files.server, or_plain=True, handshakes_max=handshakes_max, now=lambda: self.now
        )
        self.sessions: list[Recorder] = []
        self.factory = self.acceptor.wrap(self.made)
        self.pipe = Pipe()
        self.end = self.factory()
        self.end.opened(self.pipe)

    def made(self) -> Recorder:
        self.sessions.append(Recorder(on_received=lambda wire, data: wire.write(data)))
        return self.sessions[-1]


@settings(max_examples=50, deadline=None)
@given(st.binary(min_size=1, max_size=300), st.data())
def test_plain_bytes_are_those_that_were_sent(
    files: Files, sent: bytes, data: st.DataObject
) -> None:
    """In any split, and whatever follows the first byte."""
    sent = (
        bytes((data.draw(st.integers(0, 255).filter(lambda each: each != TLS_HANDSHAKE)),)) + sent
    )
    accepted = Accepted(files)
    assert accepted.sessions == [], "a session is made when it is known of which kind it is"
    rest = sent
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        accepted.end.received(rest[:size])
        rest = rest[size:]
    [session] = accepted.sessions
    assert bytes(session.data) == sent == bytes(accepted.pipe.out)
    assert session.wire is accepted.pipe and not session.wire.secure
    accepted.end.uncongested()
    accepted.end.eof()
    accepted.end.ended()
    assert session.events == ["opened", "uncongested", "eof", "ended"]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(1, 700), min_size=1))
def test_a_client_that_begins_with_tls_is_served_with_tls(files: Files, cuts: list[int]) -> None:
    accepted = Accepted(files)
    client, there = Recorder(), Pipe()
    secured = SecureWire(client, files.client(), TlsConnector(), NAME)
    secured.opened(there)
    sizes = cycle(cuts)

    def carry() -> None:
        while there.out or accepted.pipe.out:
            for out, end in ((there.out, accepted.end), (accepted.pipe.out, secured)):
                piece = bytes(out[: next(sizes)])
                del out[: len(piece)]
                if piece:
                    end.received(piece)

    carry()
    client.wire.write(b"hello")
    carry()
    assert client.data == b"hello"
    [session] = accepted.sessions
    assert session.wire.secure


def test_an_end_before_the_first_byte_is_answered_with_an_end(files: Files) -> None:
    accepted = Accepted(files)
    accepted.end.eof()
    assert accepted.pipe.is_closed
    accepted.end.ended()
    assert accepted.sessions == []


def test_nothing_is_made_of_bytes_that_come_after_the_end(files: Files) -> None:
    accepted = Accepted(files)
    accepted.end.ended()
    accepted.end.received(b"late")
    assert accepted.sessions == []


def test_above_the_limit_the_connection_that_is_silent_for_longest_ends(files: Files) -> None:
    accepted = Accepted(files, handshakes_max=2)
    pipes = [accepted.pipe]
    for _ in range(2):
        pipes.append(Pipe())
        accepted.factory().opened(pipes[-1])
    assert [pipe.is_aborted for pipe in pipes] == [True, False, False]


async def test_both_kinds_of_clients_at_one_address(files: Files) -> None:
    async with anyio.create_task_group() as tasks:
        acceptor = TlsAcceptor(files.server, or_plain=True)
        listener = await listen(tasks, "127.0.0.1", 0, echo, tls=acceptor)
        where = parse_address(listener.address)
        plain, secured = Recorder(), Recorder()
        await dial(tasks, *where, plain)
        await dial(tasks, *where, secured, tls=files.client())
        for client in (plain, secured):
            client.wire.write(b"a" * 100_000)
        await until(lambda: len(plain.data) == len(secured.data) == 100_000)
        assert (plain.wire.secure, secured.wire.secure) == (False, True)
        await listener.aclose()
        for client in (plain, secured):
            client.wire.close()
        await until(lambda: plain.is_over and secured.is_over)
        tasks.cancel_scope.cancel()


async def test_a_client_that_waits_in_silence_is_served_without_tls(files: Files) -> None:
    """It may be one of the bare protocol that waits for pushes."""
    now = 0.0
    sessions: list[Recorder] = []

    def made() -> Session:
        sessions.append(Recorder(on_opened=lambda wire: wire.write(b"pushed")))
        return sessions[-1]

    async with anyio.create_task_group() as tasks:
        acceptor = TlsAcceptor(files.server, or_plain=True, now=lambda: now)
        listener = await listen(tasks, "127.0.0.1", 0, made, tls=acceptor)
        client = Recorder()
        await dial(tasks, *parse_address(listener.address), client)
        await anyio.sleep(0.01)
        assert sessions == []
        now = SILENT_S
        await until(lambda: client.data == b"pushed")
        await listener.aclose()
        client.wire.close()
        await until(lambda: client.is_over)
        tasks.cancel_scope.cancel()


async def test_a_closed_listener_ends_when_the_last_silent_client_leaves(files: Files) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            acceptor = TlsAcceptor(files.server, or_plain=True)
            listener = await listen(tasks, "127.0.0.1", 0, echo, tls=acceptor)
            idle = socket.create_connection(parse_address(listener.address))
            await anyio.sleep(0.05)
            await listener.aclose()
            idle.close()

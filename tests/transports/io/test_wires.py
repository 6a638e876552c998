"""One suite over every wire: TCP and the network in memory on every loop, plain and with TLS."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import random
import socket
import ssl
import tempfile
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from anyio.abc import TaskGroup
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from millpond.transports.io.interface import Listener, Session, SessionFactory, Wire
from millpond.transports.io.memory import Network
from millpond.transports.io.tcp import dial, format_address, listen, parse_address
from millpond.transports.io.tls import SecureWire
from millpond.transports.io.tls_handshake import TlsAcceptor, TlsConnector

HIGH_WATER_BYTES = 2**18
CHUNK = bytes(range(256)) * 256

asyncio_backends = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]
trio_backends = [pytest.param(("trio", {}), id="trio")]


@pytest.fixture(params=[*asyncio_backends, *trio_backends])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return request.param


class Crash(Exception):
    """A fault in a session."""


@dataclass
class Recorder:
    """A session that keeps what happens to it, and does what a test wants at an event."""

    on_opened: Callable[[Wire], None] = lambda wire: None
    on_received: Callable[[Wire, bytes], None] = lambda wire, data: None
    on_eof: Callable[[Wire], None] = lambda wire: wire.close()
    on_uncongested: Callable[[Wire], None] = lambda wire: None
    events: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    wire: Wire = None  # type: ignore[assignment]

    def opened(self, wire: Wire) -> None:
        self.events.append("opened")
        self.wire = wire
        self.on_opened(wire)

    def received(self, data: bytes) -> None:
        assert data
        self.data += data
        self.on_received(self.wire, data)

    def uncongested(self) -> None:
        self.events.append("uncongested")
        self.on_uncongested(self.wire)

    def eof(self) -> None:
        self.events.append("eof")
        self.on_eof(self.wire)

    def ended(self) -> None:
        self.events.append("ended")

    @property
    def is_over(self) -> bool:
        return "ended" in self.events


def echo() -> Recorder:
    return Recorder(on_received=lambda wire, data: wire.write(data))


async def until(true: Callable[[], object], within_s: float = 60.0) -> None:
    with anyio.fail_after(within_s):
        while not true():  # noqa: ASYNC110 (what it waits for happens in a session)
            await anyio.sleep(0.001)


class Wires:
    """Connects pairs of sessions over one kind of wire."""

    def __init__(self, kind: str, tasks: TaskGroup, contexts: tuple[ssl.SSLContext, ...]) -> None:
        self._tasks = tasks
        self._server_tls, self._client_tls = contexts if "tls" in kind else (None, None)
        self.failures: list[BaseException] = []
        self.network: Network | None = None
        if kind.startswith("memory"):
            self.network = Network(
                random.Random(7),
                split="split" in kind,
                high_water_bytes=HIGH_WATER_BYTES,
                guard=self.guard,
            )

    async def guard(self, run: Callable[[], Awaitable[None]]) -> None:
        try:
            await run()
        except* Crash as crashes:
            self.failures += crashes.exceptions

    async def listen(self, factory: SessionFactory) -> Listener:
        if self.network:
            if self._server_tls:
                factory = TlsAcceptor(lambda: self._server_tls).wrap(factory)
            return self.network.listen("alice", factory, self._tasks)
        return await listen(
            self._tasks,
            "127.0.0.1",
            0,
            factory,
            tls=self._server_tls,
            high_water_bytes=HIGH_WATER_BYTES,
            guard=self.guard,
        )

    async def dial(self, listener: Listener, session: Session) -> None:
        if self.network:
            await self._dial_in_memory(self.network, listener.address, session)
            return
        await dial(
            self._tasks,
            *parse_address(listener.address),
            session,
            tls=self._client_tls,
            high_water_bytes=HIGH_WATER_BYTES,
            guard=self.guard,
        )

    async def _dial_in_memory(self, network: Network, address: str, session: Session) -> None:
        if not self._client_tls:
            await network.connect(self._tasks, address, session, source="bob")
            return
        connector = TlsConnector()
        secured = SecureWire(session, self._client_tls, connector, "127.0.0.1")
        await network.connect(self._tasks, address, secured, source="bob")
        await connector.wait(5, secured)

    async def pair(self, server: Recorder, client: Recorder) -> None:
        """Connect the two, and stop listening."""
        listener = await self.listen(lambda: server)
        await self.dial(listener, client)
        await until(lambda: server.events)
        await listener.aclose()


@pytest.fixture(scope="session")
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a mill")])
    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), 1)
        .not_valid_before(start)
        .not_valid_after(start.replace(year=2090))
        .add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        .sign(key, SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM).decode()
    return _server_context(key, pem), ssl.create_default_context(cadata=pem)


def _server_context(key: ec.EllipticCurvePrivateKey, pem: str) -> ssl.SSLContext:
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "key.pem")
        path.write_text(pem + private)
        context.load_cert_chain(path)
    return context


@pytest.fixture(params=["tcp", "tls", "memory", "memory, split", "memory, tls, split"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def wires(
    kind: str, tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> AsyncIterator[Wires]:
    async with anyio.create_task_group() as tasks:
        yield Wires(kind, tasks, tls_contexts)
        tasks.cancel_scope.cancel()


class LoopFailures:
    """Exceptions of callbacks, as asyncio reports them."""

    def __init__(self, wires: Wires) -> None:
        self._wires = wires

    def __enter__(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        self._loop, self._before = loop, loop.get_exception_handler()
        loop.set_exception_handler(
            lambda _, context: self._wires.failures.append(context["exception"])
        )

    def __exit__(self, *exc: object) -> None:
        if hasattr(self, "_loop"):
            self._loop.set_exception_handler(self._before)


async def test_bytes_go_both_ways_in_order(wires: Wires) -> None:
    server, client = echo(), Recorder()
    await wires.pair(server, client)
    sent = random.Random(1).randbytes(200_000)
    for start in range(0, len(sent), 7_001):
        client.wire.write(sent[start : start + 7_001])
    await until(lambda: len(client.data) == len(sent))
    assert client.data == sent and server.data == sent
    assert client.wire.unsent_bytes == 0 and not client.wire.congested


async def test_both_ends_know_the_other(wires: Wires, kind: str) -> None:
    server, client = Recorder(), Recorder()
    await wires.pair(server, client)
    assert server.wire.host == ("127.0.0.1" if not wires.network else "bob")
    assert client.wire.peer.startswith("alice" if wires.network else "127.0.0.1:")
    assert server.wire.secure is client.wire.secure is ("tls" in kind)


async def test_a_greeting_written_when_opened_arrives(wires: Wires) -> None:
    server, client = Recorder(on_opened=lambda wire: wire.write(b"welcome")), Recorder()
    await wires.pair(server, client)
    await until(lambda: client.data == b"welcome")


async def test_close_ends_both_ends_exactly_once(wires: Wires) -> None:
    server, client = Recorder(), Recorder()
    await wires.pair(server, client)
    client.wire.write(b"last words")
    client.wire.close()
    client.wire.close()
    client.wire.write(b"too late")
    await until(lambda: server.is_over and client.is_over)
    assert server.data == b"last words"
    assert server.events == ["opened", "eof", "ended"]
    assert client.events == ["opened", "ended"]
    for wire in (server.wire, client.wire):
        wire.write(b"after the end")
        wire.pause()
        wire.resume()
        wire.close()
        wire.abort()
        assert wire.unsent_bytes == 0 and not wire.congested
    await anyio.sleep(0.01)
    assert server.events.count("ended") == client.events.count("ended") == 1


async def test_eof_is_answered_before_the_end() -> None:
    def answer(wire: Wire) -> None:
        wire.write(b"answer" * 1000)
        wire.close()

    server = Recorder(on_eof=answer)
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, lambda: server)
        got = await _ask_by_plain_socket(*parse_address(listener.address))
        assert got == b"answer" * 1000
        await until(lambda: server.is_over)
        assert server.events == ["opened", "eof", "ended"]
        await listener.aclose()


async def _ask_by_plain_socket(host: str, port: int) -> bytes:
    got = b""
    async with await anyio.connect_tcp(host, port) as stream:
        await stream.send(b"question")
        await stream.send_eof()
        with anyio.fail_after(60):
            while True:
                try:
                    got += await stream.receive()
                except anyio.EndOfStream:
                    return got


async def test_abort_ends_both_ends_and_loses_what_is_unsent(wires: Wires) -> None:
    server, client = Recorder(), Recorder()
    await wires.pair(server, client)
    server.wire.pause()
    client.wire.write(CHUNK * 256)
    client.wire.abort()
    await until(lambda: client.is_over)
    server.wire.resume()
    await until(lambda: server.is_over)
    assert len(server.data) < len(CHUNK) * 256
    assert client.events == ["opened", "ended"]
    assert server.events.count("ended") == 1


async def test_a_stalled_reader_makes_the_wire_congested(wires: Wires) -> None:
    """A session that heeds `congested` bounds unsent bytes; reading on brings `uncongested`."""
    server, client = Recorder(), Recorder()
    await wires.pair(server, client)
    client.wire.pause()
    written = 0
    while not server.wire.congested:
        server.wire.write(CHUNK)
        written += len(CHUNK)
        await anyio.lowlevel.checkpoint()
        assert server.wire.unsent_bytes <= HIGH_WATER_BYTES + len(CHUNK)
        assert written < 2**28
    await anyio.sleep(0.02)
    assert server.wire.congested and len(client.data) <= 2**18
    assert "uncongested" not in server.events
    client.wire.resume()
    await until(lambda: len(client.data) == written)
    await until(lambda: not server.wire.congested)
    assert server.events == ["opened", "uncongested"]
    assert client.data == CHUNK * (written // len(CHUNK))


@pytest.mark.parametrize("kind", ["tcp"], indirect=True)
async def test_the_sent_part_of_a_large_write_takes_no_memory(wires: Wires) -> None:
    server, client = Recorder(), Recorder()
    client.on_received = lambda wire, _: (
        client.data.clear(),
        wire.pause() if server.wire.unsent_bytes < 2**24 else None,
    )
    await wires.pair(server, client)
    tracemalloc.start()
    try:
        server.wire.write(bytes(2**25))
        await until(lambda: server.wire.unsent_bytes < 2**24)
        unsent_bytes = server.wire.unsent_bytes
        assert 0 < unsent_bytes
        assert tracemalloc.get_traced_memory()[0] < unsent_bytes + 2**22
    finally:
        tracemalloc.stop()


async def test_pause_stops_reading_until_resume(wires: Wires) -> None:
    server = Recorder(on_received=lambda wire, data: wire.pause())
    client = Recorder()
    await wires.pair(server, client)
    client.wire.write(b"a")
    await until(lambda: server.data == b"a")
    client.wire.write(b"b")
    await anyio.sleep(0.02)
    assert server.data == b"a"
    server.wire.resume()
    await until(lambda: server.data == b"ab")


@pytest.mark.parametrize("is_paused", [False, True])
async def test_close_delivers_the_last_bytes_although_input_waits(
    wires: Wires, is_paused: bool
) -> None:
    """A plain close would reset the connection and destroy the reply (S3A-25)."""
    reply = CHUNK * 3

    def refuse(wire: Wire, data: bytes) -> None:
        if is_paused:
            wire.pause()
        wire.write(reply)
        wire.close()

    server, client = Recorder(on_received=refuse), Recorder()
    await wires.pair(server, client)
    for _ in range(30):
        client.wire.write(b"x" * 1000)
        await anyio.lowlevel.checkpoint()
    await until(lambda: server.is_over)
    await until(lambda: client.is_over)
    assert client.data == reply
    assert client.events == ["opened", "eof", "ended"]
    assert server.events == ["opened", "ended"]


async def test_close_ends_soon_although_the_other_end_keeps_open(wires: Wires) -> None:
    server, client = Recorder(), Recorder(on_eof=lambda wire: None)
    await wires.pair(server, client)
    server.wire.close()
    await until(lambda: server.is_over, within_s=1)
    client.wire.close()
    await until(lambda: client.is_over)


@pytest.mark.parametrize("event", ["opened", "received", "eof", "uncongested"])
async def test_an_error_in_a_session_ends_only_its_connection(wires: Wires, event: str) -> None:
    def crash(*_: object) -> None:
        raise Crash(event)

    sound, client = echo(), Recorder()
    await wires.pair(sound, client)
    faulty, other = Recorder(**{f"on_{event}": crash}), Recorder()
    with LoopFailures(wires):
        await wires.pair(faulty, other)
        if event == "uncongested":
            other.wire.pause()
            while not faulty.wire.congested:
                faulty.wire.write(CHUNK)
                await anyio.lowlevel.checkpoint()
            other.wire.resume()
        elif event != "opened":
            other.wire.write(b"go")
            await until(lambda: faulty.data == b"go")
            other.wire.close()
        await until(lambda: faulty.is_over and other.is_over)
    assert [str(failure) for failure in wires.failures] == [event]
    assert faulty.events.count("ended") == 1 and faulty.events[-1] == "ended"
    client.wire.write(b"still here")
    await until(lambda: client.data == b"still here")


async def test_many_connections_are_independent(wires: Wires) -> None:
    listener = await wires.listen(echo)
    clients = [Recorder() for _ in range(20)]
    for client in clients:
        await wires.dial(listener, client)
    await listener.aclose()
    for number, client in enumerate(clients):
        client.wire.write(b"%d" % number)
    for number, client in enumerate(clients):
        await until(lambda client=client, number=number: client.data == b"%d" % number)


async def test_a_closed_listener_refuses_and_keeps_its_connections(wires: Wires) -> None:
    server, client = echo(), Recorder()
    listener = await wires.listen(lambda: server)
    await wires.dial(listener, client)
    await listener.aclose()
    with pytest.raises(OSError):
        await wires.dial(listener, Recorder())
    client.wire.write(b"open")
    await until(lambda: client.data == b"open")


async def test_cancelled_tasks_end_their_connections(wires: Wires, kind: str) -> None:
    if kind != "memory":
        pytest.skip("where no tasks are needed, none can be cancelled")
    server, client = Recorder(), Recorder()
    network = wires.network
    assert network is not None
    async with anyio.create_task_group() as tasks:
        network.listen("carol", lambda: server, tasks)
        await network.connect(tasks, "carol", client)
        await until(lambda: server.events)
        tasks.cancel_scope.cancel()
    assert server.events[-1] == client.events[-1] == "ended"


async def test_a_taken_port_is_an_error_and_a_freed_one_is_free() -> None:
    async with anyio.create_task_group() as tasks:
        first = await listen(tasks, "127.0.0.1", 0, echo)
        host, port = parse_address(first.address)
        with pytest.raises(OSError):
            await listen(tasks, host, port, echo)
        await first.aclose()
        second = await listen(tasks, host, port, echo)
        assert second.address == first.address
        await second.aclose()


async def test_small_writes_are_not_held_back() -> None:
    """Nagle's algorithm and delayed acks together would cost 40 ms per exchange."""
    server, client = echo(), Recorder()
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, lambda: server)
        await dial(tasks, *parse_address(listener.address), client)
        with anyio.fail_after(30):
            for count in range(1, 1001):
                client.wire.write(b"a")
                client.wire.write(b"b")
                await until(lambda count=count: len(client.data) == 2 * count)
        client.wire.close()
        await listener.aclose()


async def test_ipv6_addresses_are_in_brackets() -> None:
    server, client = echo(), Recorder()
    async with anyio.create_task_group() as tasks:
        try:
            listener = await listen(tasks, *parse_address("[::1]:0"), lambda: server)
        except OSError:
            pytest.skip("no IPv6 here")
        assert listener.address.startswith("[::1]:")
        await dial(tasks, *parse_address(listener.address), client)
        assert client.wire.peer == listener.address and client.wire.host == "::1"
        client.wire.close()
        await listener.aclose()


async def test_a_reset_by_the_other_end_ends_the_session_once() -> None:
    server = Recorder()
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, lambda: server)
        rude = socket.create_connection(parse_address(listener.address))
        await until(lambda: server.events)
        rude.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        rude.close()
        for _ in range(50):
            server.wire.write(b"anybody?")
            await anyio.sleep(0.001)
        await until(lambda: server.is_over)
        assert server.events.count("ended") == 1 and server.events[-1] == "ended"
        await listener.aclose()


@pytest.mark.parametrize("faulty_first", [False, True])
async def test_an_error_beside_an_end_leaves_the_end_in_order(
    wires: Wires, faulty_first: bool, kind: str
) -> None:
    """Reads of one pass of the loop are handled together, and errors stay apart."""

    def crash(*_: object) -> None:
        raise Crash("received")

    if kind != "tcp":
        pytest.skip("plain sockets only")
    sound, faulty = echo(), Recorder(on_received=crash)
    order = (faulty, sound) if faulty_first else (sound, faulty)
    servers, peers = iter(order), {}
    listener = await wires.listen(lambda: next(servers))
    for server in order:
        peers[id(server)] = socket.create_connection(parse_address(listener.address))
        await until(lambda server=server: server.events)
    await listener.aclose()
    with LoopFailures(wires), peers[id(sound)] as leaving, peers[id(faulty)] as crashing:
        crashing.sendall(b"crash")
        leaving.shutdown(socket.SHUT_WR)
        await until(lambda: sound.is_over and faulty.is_over)
    assert sound.events == ["opened", "eof", "ended"]
    assert faulty.events == ["opened", "ended"]
    assert [str(failure) for failure in wires.failures] == ["received"]


async def test_plain_bytes_at_a_tls_port_open_no_session(
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    server = Recorder()
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, lambda: server, tls=tls_contexts[0])
        client = Recorder()
        await dial(tasks, *parse_address(listener.address), client)
        client.wire.write(b"no TLS at all" * 10)
        await until(lambda: client.is_over)
        assert server.events == []
        await listener.aclose()


async def test_an_untrusted_certificate_is_an_oserror(
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, Recorder, tls=tls_contexts[0])
        client = Recorder()
        with pytest.raises(ssl.SSLCertVerificationError):
            await dial(
                tasks,
                *parse_address(listener.address),
                client,
                tls=ssl.create_default_context(),
            )
        assert client.events == []
        await listener.aclose()


@pytest.mark.parametrize(
    "text",
    ["", "7400", ":7400", "host:", "host:x", "host:-1", "host:65536", "::1:7400", "h:0074000"],
)
def test_an_unreadable_address_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:0", "[::1]:7400", "mill.example:65535"])
def test_addresses_read_and_write_alike(text: str) -> None:
    assert format_address(*parse_address(text)) == text

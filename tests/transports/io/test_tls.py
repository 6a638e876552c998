"""TLS between a wire and a session, by itself and at a listener
(docs/reference/wire-protocol.md)."""

from __future__ import annotations

import _ssl
import ctypes
import gc
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from random import Random

import anyio
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.transports.io.memory import Network
from millpond.transports.io.tcp import dial, listen, parse_address
from millpond.transports.io.tls import HandshakeFailed, KeyUpdateFlood, SecureWire
from millpond.transports.io.tls_handshake import TlsAcceptor, TlsConnector
from millpond.transports.io.tls_hello import HelloTooLong
from tests.node.tls.certificate_files import Files, files_of
from tests.transports.io.test_wires import Recorder, echo, until

NAME = "127.0.0.1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return files_of(tmp_path_factory.mktemp("tls"))


class Pipe:
    """A wire that keeps what is written, for a test to carry it on, in pieces or damaged."""

    peer, host, secure, congested, unsent_bytes = "here:1", "here", False, False, 0
    peer_certificate_hash = failure = None

    def __init__(self) -> None:
        self.out = bytearray()
        self.writes = 0
        self.is_closed = self.is_aborted = False
        self.later: list[Callable[[], None]] | None = None

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.out += data
        self.writes += 1

    def soon(self, callback: Callable[[], None]) -> None:
        if self.later is None:
            callback()
        else:
            self.later.append(callback)

    def pause(self) -> None: ...
    def resume(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Pair:
    """A client and a server with a pipe each; nothing moves by itself."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self.refused: list[OSError] = []
        self.sessions = (Recorder(), Recorder())
        self.pipes = (Pipe(), Pipe())
        acceptor = TlsAcceptor(
            lambda: server, lambda host, failure: self.refused.append(failure), now=lambda: 0.0
        )
        behind = acceptor.wrap(lambda: self.sessions[1])()
        assert isinstance(behind, SecureWire)
        self.ends = (SecureWire(self.sessions[0], client, TlsConnector(), NAME), behind)
        for end, pipe in zip(self.ends, self.pipes, strict=True):
            end.opened(pipe)

    @property
    def client(self) -> Recorder:
        return self.sessions[0]

    @property
    def server(self) -> Recorder:
        return self.sessions[1]

    def carry(self, size: Callable[[int], int] = lambda left: left) -> None:
        """Move what is written, in pieces of `size(left)`, until nothing is left."""
        while any(pipe.out for pipe in self.pipes):
            for near, far in ((0, 1), (1, 0)):
                out = self.pipes[near].out
                while out:
                    piece = bytes(out[: size(len(out))])
                    del out[: len(piece)]
                    if not self.pipes[far].is_closed:
                        self.ends[far].received(piece)


def opened(files: Files) -> Pair:
    pair = Pair(files.server(), files.client())
    pair.carry()
    assert pair.client.events == pair.server.events == ["opened"]
    return pair


@settings(max_examples=25, deadline=None)
@given(st.data(), st.lists(st.binary(min_size=1, max_size=40_000), min_size=1, max_size=4))
def test_any_split_gives_the_same_bytes(files: Files, data: st.DataObject, sent: list[bytes]):
    pair = Pair(files.server(), files.client())
    cuts = st.integers(1, 3000)
    pair.carry(lambda left: min(left, data.draw(cuts)) if left < 20_000 else 9_000)
    for each in sent:
        pair.client.wire.write(each)
        pair.server.wire.write(each[::-1])
    pair.carry(lambda left: min(left, data.draw(cuts)) if left < 20_000 else 9_000)
    assert pair.server.data == b"".join(sent)
    assert pair.client.data == b"".join(each[::-1] for each in sent)


def test_each_end_knows_the_certificate_that_the_other_showed(files: Files):
    """docs/reference/wire-protocol.md, tag 0d: the client compares what it saw; access rules know
    clients by theirs."""
    alone = opened(files)
    shown = ssl.PEM_cert_to_DER_cert(Path(files.cert).read_text())
    assert alone.client.wire.peer_certificate_hash == sha256(shown).digest()
    assert alone.server.wire.peer_certificate_hash is None
    both = Pair(files.server(client_ca=files.cert), files.client(cert=files.cert, key=files.key))
    both.carry()
    assert both.server.wire.peer_certificate_hash == sha256(shown).digest()


def test_writes_of_one_pass_are_encrypted_once(files: Files):
    pair = opened(files)
    pipe = pair.pipes[0]
    pipe.later, before = [], pipe.writes
    for _ in range(50):
        pair.client.wire.write(b"a")
    assert pipe.writes == before and pair.client.wire.unsent_bytes == 50
    for callback in pipe.later:
        callback()
    assert pipe.writes == before + 1 and len(pipe.out) < 100
    pair.carry()
    assert pair.server.data == b"a" * 50


def test_much_is_encrypted_before_the_pass_ends(files: Files):
    """Unencrypted bytes are bounded, so that `congested` of the wire below means something."""
    pair = opened(files)
    pair.pipes[0].later = []
    for _ in range(100):
        pair.client.wire.write(b"a" * 10_000)
    assert pair.client.wire.unsent_bytes < 2**16
    assert len(pair.pipes[0].out) > 900_000


def test_an_end_is_sent_and_received_once(files: Files):
    pair = opened(files)
    pair.client.wire.write(b"last words")
    pair.client.wire.close()
    pair.carry()
    assert pair.server.data == b"last words"
    assert pair.server.events == ["opened", "eof"]
    assert pair.pipes[0].is_closed and pair.pipes[1].is_closed
    pair.ends[1].ended()
    assert pair.server.events == ["opened", "eof", "ended"]
    assert pair.server.wire.failure is None


def test_an_end_without_close_notify_is_an_end(files: Files):
    pair = opened(files)
    pair.ends[1].eof()
    pair.ends[1].ended()
    assert pair.server.events == ["opened", "eof", "ended"]


def test_a_flood_of_key_updates_ends_the_connection(files: Files) -> None:
    """Each key update is answered; for a client that does not read, the answers would pile up."""
    openssl = ctypes.CDLL(_ssl.__file__)
    if not hasattr(openssl, "SSL_key_update"):
        pytest.skip("this interpreter hides its OpenSSL")
    pair = opened(files)
    [client, server], [pipe, answers] = pair.ends, pair.pipes
    inner = client._tls._sslobj  # type: ignore[attr-defined]
    ours = ctypes.c_void_p.from_address(id(inner) + object.__basicsize__ + tuple.__itemsize__)

    def demand() -> None:
        assert openssl.SSL_key_update(ours, 1) == openssl.SSL_do_handshake(ours) == 1
        pipe.out += client._outgoing.read()
        server.received(bytes(pipe.out))
        pipe.out.clear()

    for _ in range(1000):
        demand()
        pair.client.wire.write(b"a")  # data in between: it may go on as long as it likes
    assert pair.server.data == b"a" * 999 and not answers.is_closed
    answers.out.clear()
    for _ in range(1000):
        if not answers.is_closed:
            demand()
    assert answers.is_closed and len(answers.out) < 2**15
    assert isinstance(server.failure, KeyUpdateFlood)


def test_an_answer_of_any_size_leaves_no_memory_behind(files: Files) -> None:
    """OpenSSL keeps the memory of the longest output that it had to hold."""
    pair = opened(files)
    most = 0
    server, pipe = pair.ends[1], pair.pipes[1]
    written = pipe.write

    def write(data: bytes) -> None:
        nonlocal most
        most = max(most, len(data))
        written(data)

    pipe.write = write  # type: ignore[method-assign]
    server.write(bytes(2**22))
    assert len(pipe.out) > 2**22 and most < 2**17


def _records(message: bytes, size: int) -> bytes:
    pieces = [message[start : start + size] for start in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(each).to_bytes(2, "big") + each for each in pieces)


def _server(files: Files) -> tuple[SecureWire, Pipe]:
    pipe = Pipe()
    context = files.server()
    server = SecureWire(Recorder(), context, TlsAcceptor(lambda: context, now=lambda: 0.0))
    server.opened(pipe)
    return server, pipe


@pytest.mark.parametrize("record_bytes", [1, 3, 4, 2**14])
@pytest.mark.parametrize("piece_bytes", [1, 7, 2**14])
def test_a_client_hello_has_16_kib_at_most(
    files: Files, record_bytes: int, piece_bytes: int
) -> None:
    """A longer one is refused by its length, before OpenSSL makes room for it."""
    for size, is_refused in ((2**14, False), (2**14 + 1, True)):
        server, pipe = _server(files)
        sent = _records(b"\x01" + size.to_bytes(3, "big") + b"\3\3" + bytes(100), record_bytes)
        for start in range(0, len(sent), piece_bytes):
            server.received(sent[start : start + piece_bytes])
        assert pipe.is_aborted is is_refused
        assert isinstance(server.failure, HelloTooLong) is is_refused


def test_the_hello_after_a_retry_has_16_kib_at_most_too(files: Files) -> None:
    """A server asks again for a hello whose key share it does not know."""
    server, pipe = _server(files)
    client_out = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    client = context.wrap_bio(ssl.MemoryBIO(), client_out)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    server.received(client_out.read())
    assert not pipe.is_closed
    server.received(_records(b"\x01" + (2**17).to_bytes(3, "big"), 2**14))
    assert pipe.is_aborted


@pytest.mark.parametrize("place", [0, 1, 7, -1])
def test_a_changed_byte_ends_the_connection_and_reaches_no_session(files: Files, place: int):
    pair = opened(files)
    pair.client.wire.write(b"transfer 10")
    pair.pipes[0].out[place] ^= 1
    pair.carry()
    pair.ends[1].ended()
    assert pair.server.data == b""
    assert pair.server.events == ["opened", "ended"]
    assert isinstance(pair.server.wire.failure, ssl.SSLError)
    assert pair.pipes[1].is_closed


@pytest.mark.parametrize(
    "data", [b"\0\0\0\x05\x01\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n", b"*1\r\n", b"\x16\x03\x01", b""]
)
def test_bytes_that_are_no_handshake_open_no_session(files: Files, data: bytes):
    pair = Pair(files.server(), files.client())
    pair.pipes[0].out[:] = data
    pair.carry()
    pair.ends[1].eof()
    pair.ends[1].ended()
    assert pair.server.events == []
    assert pair.pipes[1].is_closed and not pair.pipes[1].is_aborted
    [failure] = pair.refused
    assert isinstance(failure, ssl.SSLError | HandshakeFailed)


@given(st.binary(max_size=300))
@settings(max_examples=50, deadline=None)
def test_hostile_bytes_open_no_session(files: Files, data: bytes):
    pair = Pair(files.server(), files.client())
    pair.ends[1].received(data) if data else None
    pair.ends[1].ended()
    assert pair.server.events == [] and len(pair.refused) == 1


def test_nothing_older_than_tls_1_3_is_spoken(files: Files):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.load_verify_locations(files.cert)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    pair = Pair(files.server(), old)
    pair.carry()
    assert pair.server.events == pair.client.events == []
    assert isinstance(pair.ends[0].failure, ssl.SSLError)  # told by an alert, not by a reset
    assert "PROTOCOL_VERSION" in str(pair.ends[0].failure.reason)


def test_a_client_gets_the_reason_for_its_refused_certificate(files: Files, tmp_path: Path):
    """The server's part comes after the client's handshake is done: an alert, and a reason."""
    stranger = files_of(tmp_path)
    for context, reason in (
        (files.client(), "CERTIFICATE_REQUIRED"),
        (files.client(cert=stranger.cert, key=stranger.key), "UNKNOWN_CA"),
    ):
        pair = Pair(files.server(client_ca=files.cert), context)
        pair.carry()
        pair.ends[0].ended()
        assert pair.server.events == []
        assert pair.client.events == ["opened", "ended"]
        assert isinstance(pair.client.wire.failure, ssl.SSLError)
        assert reason in str(pair.client.wire.failure.reason)


@pytest.fixture
def mock_clock() -> Iterator[trio.testing.MockClock]:
    yield trio.testing.MockClock(autojump_threshold=0)


def test_a_handshake_that_takes_too_long_is_over(
    files: Files, mock_clock: trio.testing.MockClock
) -> None:
    """Virtual time: ten seconds, give or take one."""
    told: list[tuple[str, OSError]] = []
    silent, prompt = Recorder(), Recorder()

    async def run() -> None:
        network = Network(Random(1))
        acceptor = TlsAcceptor(files.server, lambda *about: told.append(about))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(acceptor.watch)
            network.listen("alice", acceptor.wrap(echo), tasks)
            connector = TlsConnector()
            secured = SecureWire(prompt, files.client(), connector, NAME)
            await network.connect(tasks, "alice", secured)
            await connector.wait(5, secured)
            began = anyio.current_time()
            await network.connect(tasks, "alice", silent, source="mallory")
            while not silent.is_over:  # noqa: ASYNC110 (it happens in a session)
                await anyio.sleep(0.1)
            assert 9 < anyio.current_time() - began < 12
            assert not prompt.is_over
            [(host, failure)] = told
            assert host == "mallory" and isinstance(failure, HandshakeFailed)
            tasks.cancel_scope.cancel()

    anyio.run(run, backend="trio", backend_options={"clock": mock_clock})


async def test_a_dialled_handshake_that_takes_too_long_is_an_oserror(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.transports.io.tcp.HANDSHAKE_S", 0.2)
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, Recorder)
        session = Recorder()
        with pytest.raises(HandshakeFailed, match=r"within 0\.2 s"):
            await dial(tasks, *parse_address(listener.address), session, tls=files.client())
        assert session.events == []
        await listener.aclose()
        tasks.cancel_scope.cancel()


async def test_a_thousand_half_open_handshakes_stop_no_other_client(
    files: Files, anyio_backend_name: str
) -> None:
    """The oldest give way to the newest, and finished handshakes are served meanwhile. On trio
    fewer will do: there a thousand take seconds."""
    many = 1000 if anyio_backend_name == "asyncio" else 300
    refused: list[OSError] = []
    acceptor = TlsAcceptor(
        files.server, lambda host, failure: refused.append(failure), handshakes_max=many // 2
    )
    idle: list[socket.socket] = []
    with ExitStack() as sockets:
        async with anyio.create_task_group() as tasks:
            listener = await listen(tasks, "127.0.0.1", 0, echo, tls=acceptor)
            where = parse_address(listener.address)
            for number in range(many):
                idle.append(sockets.enter_context(socket.create_connection(where)))
                if number % 2:
                    idle[-1].sendall(b"\x16\x03\x01")
                if number % 100 == 99:
                    await anyio.sleep(0.01)
            client = Recorder()
            with anyio.fail_after(60):
                await dial(tasks, *where, client, tls=files.client())
            client.wire.write(b"here")
            await until(lambda: client.data == b"here", within_s=30)
            await until(lambda: len(refused) >= many // 2, within_s=30)
            assert all(isinstance(each, HandshakeFailed) for each in refused)
            for each in idle:
                each.close()
            await listener.aclose()
            await until(lambda: len(refused) == many, within_s=30)
            client.wire.close()
            await until(lambda: client.is_over, within_s=30)


async def test_plain_bytes_get_a_clean_end(files: Files) -> None:
    """No reset: a client without TLS reads an end, and is not left waiting."""
    async with anyio.create_task_group() as tasks:
        listener = await listen(tasks, "127.0.0.1", 0, echo, tls=TlsAcceptor(files.server))
        got: list[bytes] = []

        def ask() -> None:
            with socket.create_connection(parse_address(listener.address), timeout=5) as plain:
                plain.sendall(b"GET / HTTP/1.1\r\nHost: mill\r\n\r\n" * 100)
                while data := plain.recv(100):
                    got.append(data)
                got.append(b"")

        asking = threading.Thread(target=ask)
        asking.start()
        await until(lambda: got and got[-1] == b"")
        asking.join()
        await listener.aclose()
        tasks.cancel_scope.cancel()


async def test_a_closed_listener_and_its_task_end_when_the_last_handshake_does(
    files: Files,
) -> None:
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            acceptor = TlsAcceptor(files.server, handshake_s=0.1)
            listener = await listen(tasks, "127.0.0.1", 0, echo, tls=acceptor)
            idle = socket.create_connection(parse_address(listener.address))
            await anyio.sleep(0.05)
            await listener.aclose()
    idle.close()


@pytest.mark.parametrize(
    "sent", [b"\x16\x03\x01\x40\x00\x01\x01\xff\xff" + bytes(2**15), b"no TLS at all\r\n"]
)
def test_a_failed_handshake_leaves_nothing_behind(files: Files, sent: bytes):
    """Each has 40 KiB of OpenSSL, which must not wait for the garbage collector."""
    acceptor = TlsAcceptor(files.server, now=lambda: 0.0)
    gc.collect()
    gc.disable()
    try:
        pipe = Pipe()
        behind = acceptor.wrap(Recorder)()
        assert isinstance(behind, SecureWire)
        behind.opened(pipe)
        behind.received(sent)
        assert behind.failure is not None and (pipe.is_aborted or pipe.is_closed)
        behind.ended()
        left = weakref.ref(pipe)
        del pipe, behind
        assert left() is None
    finally:
        gc.enable()

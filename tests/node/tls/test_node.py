"""A node that speaks TLS on every listener: who comes in, what they know of it, and a reload."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.actors.errors import RequestError
from millpond.node.client import connect as client
from millpond.node.client.errors import ConnectionLost, HandshakeRefused
from millpond.node.client.rustlog.client import connect_rustlog
from millpond.node.client.s3p.client import connect_s3p
from millpond.node.config import OFF, Config, ConfigError
from millpond.node.node import Node
from millpond.node.peers.identity import Identity
from millpond.node.tls.certificates import read_certificate
from millpond.node.tls.contexts import TlsError
from millpond.node.tls.listeners import REASON
from tests.node.tls.certificate_files import Files, authority, files_of, signed_by

FREE = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "127.0.0.1:0")
SCHEMES = {"p2p": "tls", "ws": "wss"}
ALICE = Identity.from_seed(bytes(32))
REFUSED = (ConnectionLost, HandshakeRefused, RequestError)


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """TLS is the same on all three."""
    if request.param == "trio":
        return "trio", {}
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_of(tmp_path)


def config_of(files: Files, **options: Any) -> Config:
    config = Config(tls_cert=files.cert, tls_key=files.key, drain_timeout_s=0.3, http=OFF, **FREE)
    return replace(config, **options)


@asynccontextmanager
async def served(files: Files, **options: Any) -> AsyncIterator[Node]:
    with anyio.fail_after(60):
        async with Node(config_of(files, **options)) as node:
            yield node


def url_of(node: Node, listener: str) -> str:
    return f"{SCHEMES[listener]}://{node.listeners[listener]}"


async def exchange(node: Node, listener: str, tls: ssl.SSLContext) -> None:
    """Something there and back by the listener's own client."""
    address = node.listeners[listener]
    match listener:
        case "s3p":
            async with connect_s3p(address, tls=tls, reconnect=False) as s3p:
                await s3p.create("s3p")
                await s3p.append("s3p", [b"a" * 100_000])
                assert [each.data for each in await s3p.read("s3p")] == [b"a" * 100_000]
        case "rustlog":
            async with connect_rustlog(address, tls=tls, reconnect=False) as rustlog:
                await rustlog.create_topic("rustlog", 1)
                await rustlog.produce("rustlog", [b"b"])
                assert await rustlog.topics() == {"rustlog": 1}
        case _:
            url = url_of(node, listener)
            async with client.connect(url, b"chat/1", tls=tls, reconnect=False) as channel:
                receipt = await channel.put(b"c" * 100_000)
                assert await channel.get(receipt.id) == b"c" * 100_000
                await channel.ack(receipt.id)


@pytest.mark.parametrize("listener", sorted(FREE))
async def test_every_listener_speaks_tls(files: Files, listener: str) -> None:
    async with served(files) as node:
        await exchange(node, listener, files.client())


@pytest.mark.parametrize("listener", sorted(FREE))
async def test_who_speaks_plainly_gets_nothing_but_an_end(files: Files, listener: str) -> None:
    plain = {
        "p2p": b"\0\0\0\x01\0",
        "ws": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "s3p": b"*1\r\n$4\r\nPING\r\n",
        "rustlog": b'\0\0\0\x0f{"type":"Ping"}',
    }
    async with served(files) as node:
        host, _, port = node.listeners[listener].rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(plain[listener] * 10)
            said = b""
            with pytest.raises(anyio.EndOfStream):
                while True:
                    said += await stream.receive()
            assert said[:1] in (b"", b"\x15")  # at most an alert of TLS
        assert node.services.counters.reasons[REASON] == 1
        await exchange(node, listener, files.client())


async def test_listeners_that_are_not_named_stay_plain(files: Files) -> None:
    async with served(files, tls_listeners=("ws",)) as node:
        url = f"tcp://{node.listeners['p2p']}"
        async with client.connect(url, b"chat/1", reconnect=False) as channel:
            await channel.put(b"a")
        await exchange(node, "ws", files.client())


@pytest.mark.parametrize("listener", ["p2p", "ws"])
async def test_a_client_that_is_not_trusted_hears_why(files: Files, listener: str) -> None:
    async with served(files, tls_client_ca=files.cert) as node:
        for tls, reason in (
            (ssl.create_default_context(), "CERTIFICATE_VERIFY_FAILED"),
            (files.client(), "CERTIFICATE_REQUIRED"),
        ):
            with pytest.raises(ConnectionLost) as caught:
                async with client.connect(
                    url_of(node, listener), b"chat/1", tls=tls, reconnect=False
                ):
                    raise AssertionError("it came in")
            assert isinstance(caught.value.__cause__, ssl.SSLError)
            assert reason in str(caught.value.__cause__.reason)


@pytest.mark.parametrize("listener", sorted(FREE))
async def test_with_an_authority_for_clients_only_its_own_come_in(
    tmp_path: Path, files: Files, listener: str
) -> None:
    home = authority()
    (tmp_path / "home.crt").write_bytes(home.certificate)
    bob = files_of(tmp_path, signed_by(home, "bob"), "bob")
    async with served(files, tls_client_ca=str(tmp_path / "home.crt")) as node:
        await exchange(node, listener, files.client(cert=bob.cert, key=bob.key))
        with pytest.raises(REFUSED, match="the other end demands a certificate"):
            await exchange(node, listener, files.client())
        with pytest.raises(REFUSED, match="authority is not trusted there"):
            await exchange(node, listener, files.client(cert=files.cert, key=files.key))


@pytest.mark.parametrize("listener", sorted(FREE))
async def test_an_access_file_tells_certificates_apart(
    tmp_path: Path, files: Files, listener: str
) -> None:
    """mTLS is how clients of S3P and RustLog log in: their protocols have no place for a token."""
    home = authority()
    (tmp_path / "home.crt").write_bytes(home.certificate)
    bob, eve = (files_of(tmp_path, signed_by(home, name), name) for name in ("bob", "eve"))
    shown = sha256(read_certificate(Path(bob.cert)).der).hexdigest()
    rules = tmp_path / "access.conf"
    rules.write_text(f"cert:{shown} all\n")
    rules.chmod(0o600)
    options = {"tls_client_ca": str(tmp_path / "home.crt"), "access_file": str(rules)}
    async with served(files, **options) as node:
        await exchange(node, listener, files.client(cert=bob.cert, key=bob.key))
        with pytest.raises(REFUSED):
            await exchange(node, listener, files.client(cert=eve.cert, key=eve.key))


@pytest.mark.parametrize("listener", ["p2p", "ws"])
async def test_the_proof_of_a_node_s_key_is_bound_to_its_certificate(
    tmp_path: Path, files: Files, listener: str
) -> None:
    """docs/reference/wire-protocol.md, tag 0d. A client that trusts no certificate needs none: it
    knows the key."""
    any_certificate = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    any_certificate.check_hostname = False
    any_certificate.verify_mode = ssl.CERT_NONE
    async with served(files) as node:
        met: list[bytes] = []
        for _ in range(2):
            async with client.connect(
                url_of(node, listener),
                b"chat/1",
                identity=ALICE,
                on_peer=met.append,
                tls=any_certificate,
                reconnect=False,
            ) as channel:
                await channel.ping()
            files_of(tmp_path)  # a new certificate: the binding goes with it
            node.reload()
        assert len(met) == 2 and met[0] == met[1]


async def test_a_reload_ends_no_connection_and_holds_for_new_ones(
    tmp_path: Path, files: Files
) -> None:
    async with served(files) as node:
        old = files.client()
        url = url_of(node, "p2p")
        async with client.connect(url, b"chat/1", tls=old, reconnect=False) as standing:
            await standing.put(b"before")
            files_of(tmp_path)
            node.reload()
            await standing.put(b"after")
            assert len(await standing.list()) == 2
            with pytest.raises(ConnectionLost, match="nobody but itself vouches"):
                await exchange(node, "p2p", old)
            await exchange(node, "p2p", files.client())
            (tmp_path / "mill.crt").write_text("broken")
            node.reload()
            await standing.put(b"and on")


async def test_files_that_do_not_do_are_told_at_the_start(tmp_path: Path, files: Files) -> None:
    with pytest.raises(TlsError, match=r"none\.crt"):
        Node(config_of(files, tls_cert=str(tmp_path / "none.crt")))


async def test_a_guarded_listener_may_be_public(files: Files) -> None:
    """Nobody comes in without a certificate: that is an access control."""
    anywhere = {"p2p": "0.0.0.0:0", "ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF}
    async with served(files, tls_client_ca=files.cert, **anywhere) as node:
        assert node.listeners["p2p"].startswith("0.0.0.0:")
    for options in (
        {},
        {"tls_client_ca": files.cert, "tls_client": "optional"},
        {"tls_client_ca": files.cert, "tls_listeners": ("ws",)},
    ):
        with pytest.raises(ConfigError, match="access control"):
            async with served(files, **anywhere, **options):
                raise AssertionError("started without access control")


@pytest.mark.parametrize(
    "options",
    [
        {"tls_key": "a.key"},
        {"tls_client_ca": "ca.crt"},
        {"tls_listeners": ("p2p",)},
        {"tls_cert": "a.crt", "tls_listeners": ("smtp",)},
        {"tls_cert": "a.crt", "tls_client": "maybe"},
    ],
)
def test_settings_that_contradict_themselves_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tls_"):
        Config(**options)

"""HTTP by TLS: what is shown, who comes in, and what a reload changes (docs/guides/tls.md)."""

from __future__ import annotations

import ssl
from hashlib import sha256
from pathlib import Path

import anyio
import pytest
from anyio.streams.tls import TLSAttribute

from millpond.node.config import Config
from millpond.node.node import Node
from tests.node.http.clients import Http2, dial, get
from tests.node.tls.certificate_files import Files, authority, files_of, signed_by
from tests.transports.http.running_app import CLOSED


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return files_of(tmp_path)


def _config(files: Files, **more: object) -> Config:
    listeners = {**CLOSED, "http": "127.0.0.1:0", "drain_timeout_s": 0.3}
    return Config(tls_cert=files.cert, tls_key=files.key, **{**listeners, **more})  # type: ignore[arg-type]


def _client(files: Files, alpn: str = "http/1.1", own: Files | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.cert)
    context.set_alpn_protocols([alpn])
    if own is not None:
        context.load_cert_chain(own.cert, own.key)
    return context


async def _shown(address: str) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with await dial(address, context) as stream:
        return sha256(stream.extra(TLSAttribute.peer_certificate_binary)).digest()


async def test_both_protocols_are_chosen_by_alpn_and_nothing_below_tls_1_3(files: Files) -> None:
    async with Node(_config(files)) as node:
        address = node.listeners["http"]
        assert (await get(address, "/health", tls=_client(files)))[0] == 200
        async with Http2(await dial(address, _client(files, "h2"))) as client:
            assert await client.status(await client.ask("GET", "/health")) == 200
        old = _client(files)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((OSError, anyio.BrokenResourceError)):
            await dial(address, old)


async def test_a_listener_that_is_not_named_speaks_plainly(files: Files) -> None:
    async with Node(_config(files, tls_listeners=("p2p",))) as node:
        assert (await get(node.listeners["http"], "/health"))[0] == 200


async def test_without_a_certificate_of_the_authority_nobody_comes_in(
    files: Files, tmp_path: Path
) -> None:
    above = authority()
    trusted = files_of(tmp_path, above, "authority")
    own = files_of(tmp_path, signed_by(above, "carol"), "carol")
    async with Node(_config(files, http="0.0.0.0:0", tls_client_ca=trusted.cert)) as node:
        address = "127.0.0.1:" + node.listeners["http"].rpartition(":")[2]
        assert (await get(address, "/health", tls=_client(files, own=own)))[0] == 200
        with pytest.raises((OSError, anyio.BrokenResourceError, IndexError, ValueError)):
            await get(address, "/health", tls=_client(files))


async def test_a_reload_shows_the_new_certificate_and_ends_no_request(
    files: Files, tmp_path: Path
) -> None:
    async with Node(_config(files)) as node:
        address = node.listeners["http"]
        before = await _shown(address)
        assert node.tls.certificates is not None and before == node.tls.certificates.hash
        files_of(tmp_path)
        node.reload()
        assert node.tls.certificates.hash != before
        await anyio.sleep(0.2)
        for _ in range(5):
            assert await _shown(address) == node.tls.certificates.hash
            assert (await get(address, "/health", tls=_client(files)))[0] == 200


async def test_files_that_cannot_be_used_change_nothing(files: Files) -> None:
    async with Node(_config(files)) as node:
        address = node.listeners["http"]
        before = await _shown(address)
        await anyio.Path(files.cert).write_text("nothing")
        node.reload()
        await anyio.sleep(0.05)
        assert await _shown(address) == before

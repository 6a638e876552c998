"""The certificate of the node's own: its files, its renewal, and the listeners that show it."""

from __future__ import annotations

import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import anyio
import pytest

from millpond import connect
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.node.tls.certificates import key_hash, make_certificate, read_certificate
from millpond.node.tls.contexts import DAY_S, TlsError, client_context
from millpond.node.tls.listeners import TlsListeners
from millpond.node.tls.own_certificate import (
    CERTIFICATE_FILE,
    KEY_FILE,
    own_certificate,
    replace_key,
    shown_key_hash,
)
from millpond.node.tls.pins import key_pin_of
from millpond.transports.server.interface import ConnectionCounters
from tests.node.tls.certificate_files import files_of

HERE_BY_NAME = "127.1:0"
"""This machine, by what is no number: a name may be another machine's."""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def der(folder: Path) -> bytes:
    return read_certificate(folder / CERTIFICATE_FILE).der


def test_key_and_certificate_are_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    own = own_certificate(folder, time.time())
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    assert set(before) == {KEY_FILE, CERTIFICATE_FILE}
    assert mode(folder / KEY_FILE) == mode(folder / CERTIFICATE_FILE) == 0o600
    assert own.key_hash == key_hash(der(folder)) == shown_key_hash(folder)
    assert own_certificate(folder, time.time()) == own
    assert before == {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize("days", [306, 400, -2])
def test_a_certificate_that_expires_is_renewed_with_its_key(tmp_path: Path, days: int) -> None:
    """Also after its end, and where the clock was set back before its beginning."""
    now = time.time()
    own, before = own_certificate(tmp_path, now), der(tmp_path)
    assert own_certificate(tmp_path, now + days * DAY_S).key_hash == own.key_hash
    found = read_certificate(tmp_path / CERTIFICATE_FILE)
    assert found.der != before and key_hash(found.der) == own.key_hash
    assert found.not_before <= now + days * DAY_S < found.not_after - 300 * DAY_S


def test_before_that_it_stays(tmp_path: Path) -> None:
    now = time.time()
    own_certificate(tmp_path, now)
    before = der(tmp_path)
    own_certificate(tmp_path, now + 304 * DAY_S)
    assert der(tmp_path) == before


def _remove(path: Path) -> None:
    path.unlink()


def _garble(path: Path) -> None:
    path.write_text("nothing")


def _replace(path: Path) -> None:
    path.write_bytes(make_certificate("other", ["other"], 9, time.time()).certificate)


@pytest.mark.parametrize("damage", [_remove, _garble, _replace])
def test_a_certificate_that_is_not_that_of_the_key_is_made_again(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """As after a crash between the two."""
    own = own_certificate(tmp_path, time.time())
    damage(tmp_path / CERTIFICATE_FILE)
    assert own_certificate(tmp_path, time.time()).key_hash == own.key_hash
    assert key_hash(der(tmp_path)) == own.key_hash


def test_a_disk_that_takes_nothing_keeps_the_old_certificate(tmp_path: Path) -> None:
    now = time.time()
    own, before = own_certificate(tmp_path, now), der(tmp_path)
    (tmp_path / f"{CERTIFICATE_FILE}.new").mkdir()  # in the place of the draft
    assert own_certificate(tmp_path, now + 306 * DAY_S) == own
    assert der(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "bits", "reason"),
    [("nothing", 0o600, "keys tls --new-key"), (None, 0o644, "others can read the key")],
)
def test_a_key_that_cannot_be_used_is_never_replaced(
    tmp_path: Path, text: str | None, bits: int, reason: str
) -> None:
    own_certificate(tmp_path, time.time())
    key = tmp_path / KEY_FILE
    if text is not None:
        key.write_text(text)
    key.chmod(bits)
    before = key.read_bytes()
    with pytest.raises(TlsError, match=reason):
        own_certificate(tmp_path, time.time())
    assert key.read_bytes() == before


def test_a_new_key_has_a_certificate_of_its_own(tmp_path: Path) -> None:
    before = own_certificate(tmp_path, time.time())
    after = replace_key(tmp_path, time.time())
    assert after.key_hash != before.key_hash
    assert key_hash(der(tmp_path)) == after.key_hash
    assert own_certificate(tmp_path, time.time()) == after


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def listeners(folder: Path, clock: Clock, shown: list[bytes]) -> TlsListeners:
    config = Config(data=str(folder), p2p=HERE_BY_NAME)
    found = TlsListeners(config, clock, ConnectionCounters(), shown.append)
    found.open()
    return found


def test_a_running_node_renews_it(tmp_path: Path) -> None:
    clock, shown = Clock(), list[bytes]()
    tls = listeners(tmp_path, clock, shown)
    tls.reload()
    assert len(shown) == 1, "there is nothing to renew yet"
    clock.now += 306 * DAY_S
    tls.reload()
    assert len(set(shown)) == 2 and shown[-1] == sha256(der(tmp_path)).digest()
    assert tls.own_key_hash == key_hash(der(tmp_path))


def test_a_key_that_changes_below_a_node_is_shown_from_the_next_start_on(tmp_path: Path) -> None:
    """The cards of this run have the pin of the old one."""
    clock, shown = Clock(), list[bytes]()
    tls = listeners(tmp_path, clock, shown)
    new = replace_key(tmp_path, clock.now)
    tls.reload()
    assert len(shown) == 1 and tls.own_key_hash != new.key_hash
    assert listeners(tmp_path, clock, shown).own_key_hash == new.key_hash


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"p2p": "0.0.0.0:0"}, ("p2p",)),
        ({"p2p": "mill.lan:7400", "ws": "[::]:0"}, ("p2p", "ws")),
        ({"p2p": "127.0.0.1:0", "ws": "[::1]:0", "http": "0.0.0.0:0"}, ()),
        ({"p2p": "localhost:0"}, ()),
    ],
)
def test_listeners_between_machines_speak_tls(
    tmp_path: Path, settings: dict[str, str], names: tuple[str, ...]
) -> None:
    """Those of nodes; and none of this machine alone, which costs a start 50 ms."""
    config = Config(**{"ws": OFF, **settings}, data=str(tmp_path))
    tls = TlsListeners(config, time.time, ConnectionCounters(), lambda shown: None)
    tls.open()
    assert tls.names == names
    assert [each for each in ("p2p", "ws", "http") if tls.acceptor(each)] == list(names)
    assert (tmp_path / KEY_FILE).exists() is bool(names)


def test_a_configured_certificate_takes_its_place(tmp_path: Path) -> None:
    """And cards no longer have the pin of a key that nobody is shown. The key itself stays."""
    own = own_certificate(tmp_path, time.time())
    files = files_of(tmp_path)
    config = Config(data=str(tmp_path), p2p="0.0.0.0:0", tls_cert=files.cert, tls_key=files.key)
    tls = TlsListeners(config, time.time, ConnectionCounters(), lambda shown: None)
    tls.open()
    assert tls.own_key_hash is None and shown_key_hash(tmp_path) is None
    assert own_certificate(tmp_path, time.time()).key_hash == own.key_hash


async def exchange(url: str, tls: ssl.SSLContext | None = None) -> None:
    async with connect(url, "chat/1", tls=tls, reconnect=False) as channel:
        receipt = await channel.put(b"a" * 100_000)
        assert await channel.get(receipt.id) == b"a" * 100_000
        await channel.ack(receipt.id)


@pytest.mark.parametrize("listener", ["p2p", "ws"])
@pytest.mark.parametrize("is_stored", [True, False])
async def test_clients_with_tls_and_without_use_one_address(
    tmp_path: Path, listener: str, is_stored: bool
) -> None:
    settings = {listener: HERE_BY_NAME, "data": str(tmp_path) if is_stored else ""}
    config = Config(**{"p2p": OFF, "ws": OFF, "s3p": OFF, "rustlog": OFF, "http": OFF} | settings)
    plain, secure = ("tcp", "tls") if listener == "p2p" else ("ws", "wss")
    with anyio.fail_after(60):
        async with Node(replace(config, insecure_public=True, drain_timeout_s=0.3)) as node:
            address = node.listeners[listener]
            assert node.tls.own_key_hash is not None
            await exchange(f"{plain}://{address}")
            await exchange(f"{secure}://{address}#{key_pin_of(node.tls.own_key_hash)}")
            pinned = client_context(key_pins=[node.tls.own_key_hash])
            await exchange(f"{secure}://{address}", pinned)
            assert (tmp_path / KEY_FILE).exists() is is_stored

"""A node's life: its listeners, whom it refuses to be exposed to, and how it ends."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from millpond.node.config import OFF, Config, ConfigError
from millpond.node.node import Node
from tests.conformance import packets as p
from tests.conformance.peer import LengthPrefixed, Peer, connect_tcp, upgrade

ANY = "127.0.0.1:0"
QUICK = Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, drain_timeout_s=0.3)


async def _greeted(node: Node, tags: p.Tags | None = None) -> Peer:
    peer = Peer(await connect_tcp(node.listeners["p2p"]), LengthPrefixed())
    await peer.send(p.hello(b"chat/1", tags))
    p.read_ready(await peer.packet())
    return peer


@asynccontextmanager
async def _connected(node: Node) -> AsyncIterator[Peer]:
    """A running node with a peer that never says goodbye."""
    async with node:
        async with await _greeted(node) as peer:
            yield peer


def _is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return False
    return True


async def test_a_node_gives_its_addresses() -> None:
    async with Node(Config(p2p=ANY, ws=ANY, s3p=OFF, rustlog=OFF, http=OFF)) as node:
        assert set(node.listeners) == {"p2p", "ws"}
        async with await _greeted(node) as peer:
            await peer.quiet()
        pipe = await connect_tcp(node.listeners["ws"])
        async with Peer(pipe, await upgrade(pipe, b"chat/1", "p2pbuf.v1")) as peer:
            await peer.quiet()
        addresses = list(node.listeners.values())
    assert all(map(_is_free, addresses))


async def test_a_listener_that_is_off_is_absent() -> None:
    async with Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as node:
        assert list(node.listeners) == ["p2p"]
    async with Node(Config(p2p=OFF, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as node:
        assert node.listeners == {}


async def test_a_taken_port_is_an_os_error_and_leaves_nothing_behind() -> None:
    async with Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as first:
        taken = first.listeners["p2p"]
        second = Node(Config(p2p=ANY, ws=taken, s3p=OFF, rustlog=OFF, http=OFF))
        with pytest.raises(OSError):
            async with second:
                raise AssertionError("started on a taken port")
        assert _is_free(second.listeners["p2p"])
        async with await _greeted(first) as peer:
            await peer.quiet()


@pytest.mark.parametrize(
    "address", ["", ":0", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000", "[::1:0"]
)
async def test_an_address_that_is_none_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="ws"):
        async with Node(Config(p2p=OFF, ws=address, s3p=OFF, rustlog=OFF, http=OFF)):
            raise AssertionError("started")


@pytest.mark.parametrize(
    "address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "example.invalid:0", "127.0.0.1.x:0"]
)
async def test_without_access_control_a_node_is_not_exposed(address: str) -> None:
    for config in (
        Config(p2p=address, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF),
        Config(p2p=OFF, ws=address, s3p=OFF, rustlog=OFF, http=OFF),
    ):
        with pytest.raises(ConfigError, match="--token-file"):
            async with Node(config):
                raise AssertionError("started")


async def test_this_machine_needs_no_access_control() -> None:
    for host in ("127.0.0.1", "localhost", "[::1]"):
        async with Node(Config(p2p=f"{host}:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as node:
            assert node.listeners["p2p"].rpartition(":")[2] != "0"


async def test_with_tokens_or_on_demand_it_is_exposed(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("s3cret all\n")
    tokens.chmod(0o600)
    exposed = Config(
        p2p="0.0.0.0:0", ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, token_file=str(tokens)
    )
    for config in (exposed, replace(exposed, token_file="", insecure_public=True)):
        async with Node(config) as node:
            port = node.listeners["p2p"].rpartition(":")[2]
            async with Peer(await connect_tcp(f"127.0.0.1:{port}"), LengthPrefixed()) as peer:
                await peer.send(p.hello(b"chat/1", {p.TOKEN: b"s3cret"}))
                p.read_ready(await peer.packet())


async def test_pa_36_leaving_takes_the_drain_timeout_at_most() -> None:
    node = Node(QUICK)
    start = anyio.current_time()
    async with node:
        peer = await _greeted(node)
        waiting = Peer(await connect_tcp(node.listeners["p2p"]), LengthPrefixed())
    assert 0.2 < anyio.current_time() - start < 2
    await peer.ends_with(p.GOODBYE)
    await waiting.rest()
    for each in (peer, waiting):
        await each.aclose()


async def test_pa_36_leaving_is_quick_when_all_have_left() -> None:
    start = anyio.current_time()
    async with Node(
        Config(p2p=ANY, ws=ANY, s3p=OFF, rustlog=OFF, http=OFF, drain_timeout_s=30)
    ) as node:
        async with await _greeted(node) as peer:
            await peer.quiet()
    assert anyio.current_time() - start < 2


async def test_pa_36_acks_during_the_drain_are_kept() -> None:
    async with Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as node:
        producer, reader = await _greeted(node), await _greeted(node)
        first = await producer.put(1, b"a")
        await reader.expect(p.msg(first, b"a"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(node.drain)
            await reader.expect(p.GOODBYE)
            await producer.expect(p.GOODBYE)
            await reader.send(p.ack(first), p.GOODBYE)
            await reader.ends_with()
            second = await producer.put(2, b"b")
            assert await producer.ids() == [second]
            await producer.send(p.GOODBYE)
            await producer.ends_with()
        for each in (producer, reader):
            await each.aclose()
        assert node._store.usage.messages == 1


async def test_a_draining_node_takes_no_new_connections() -> None:
    async with Node(QUICK) as node:
        async with await _greeted(node), anyio.create_task_group() as tasks:
            tasks.start_soon(node.drain)
            await anyio.sleep(0.05)
            with pytest.raises(OSError):
                await connect_tcp(node.listeners["p2p"])


async def test_an_exception_of_the_block_is_raised_bare() -> None:
    with pytest.raises(KeyError, match="mine"):
        async with _connected(Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF))):
            raise KeyError("mine")


async def test_a_cancelled_block_ends_at_once() -> None:
    node = Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF))
    start = anyio.current_time()
    with anyio.move_on_after(0.1) as scope:
        async with _connected(node):
            await anyio.sleep_forever()
    assert scope.cancelled_caught and anyio.current_time() - start < 2
    assert _is_free(node.listeners["p2p"])


async def test_a_cancelled_drain_ends_at_once() -> None:
    node = Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF, drain_timeout_s=30))
    start = anyio.current_time()
    peer: Peer | None = None
    with anyio.move_on_after(0.3) as scope:
        async with node:
            peer = await _greeted(node)
    assert scope.cancelled_caught and anyio.current_time() - start < 2
    assert _is_free(node.listeners["p2p"])
    assert peer is not None
    assert (await peer.rest())[:1] == [p.GOODBYE]
    await peer.aclose()


async def test_two_nodes_share_nothing() -> None:
    async with (
        Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as one,
        Node(Config(p2p=ANY, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF)) as two,
    ):
        async with await _greeted(one) as here, await _greeted(two) as there:
            message_id = await here.put(1, b"x")
            assert await there.ids() == [] and await here.ids() == [message_id]


@pytest.mark.parametrize(
    ("listeners", "told"),
    [({"s3p": ANY, "rustlog": ANY}, "s3p rustlog"), ({"rustlog": ANY}, "rustlog"), ({}, "")],
)
async def test_p2p_24_a_token_file_closes_listeners_without_tokens_and_is_logged(
    listeners: dict[str, str], told: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("secret all\n")
    tokens.chmod(0o600)
    async with Node(replace(QUICK, token_file=str(tokens), **listeners)):
        pass
    lines = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    text = f"no access rule applies to these listeners, which take no tokens: {told}"
    assert lines == ([text] if told else [])


async def test_without_a_token_file_nothing_is_shut(caplog: pytest.LogCaptureFixture) -> None:
    async with Node(replace(QUICK, s3p=ANY, rustlog=ANY)):
        pass
    assert not [each for each in caplog.records if each.levelname == "WARNING"]

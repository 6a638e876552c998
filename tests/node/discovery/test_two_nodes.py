"""Nodes that find each other by mDNS, on real sockets of the loopback network."""

from __future__ import annotations

import errno
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.from_thread
import pytest
from zeroconf import DNSOutgoing, ServiceInfo, Zeroconf

from millpond.node.chat.records import State
from millpond.node.config import Config, ConfigError
from millpond.node.discovery import discovery, networks
from millpond.node.discovery.announcement import SERVICE, properties_of
from millpond.node.discovery.discovery import CARD_S, RETRY_S, WrongCard, check_card
from millpond.node.discovery.found_nodes import WAITING_MAX
from millpond.node.discovery.networks import LocalNetwork, interface_networks
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.outbox.own_card import make_own_card
from millpond.node.peers.address_book import Trust
from millpond.node.peers.identity import peer_id
from tests.node.chat.chat_client import ask, received, say, states
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode, until

pytestmark = [pytest.mark.anyio, pytest.mark.together("mdns")]  # else they find other tests
HERE: dict[str, Any] = {"discover": True, "discover_interfaces": ("127.0.0.1",)}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "TICK_S", 0.05)
    monkeypatch.setattr(discovery, "NETWORKS_S", 0.2)


@pytest.fixture
def alice(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "alice", **HERE)


@pytest.fixture
def bob(tmp_path: Path) -> PeerNode:
    return PeerNode(tmp_path, "bob", message_requests=True, **HERE)


async def nodes(node: Node) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await ask(node, PeerOperation.DISCOVERED))["nodes"]
    return found


async def seen(node: Node, other: PeerNode, *, is_there: bool = True) -> dict[str, Any]:
    """The found node `other`, once it is in the list, or no longer in it."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            found = [each for each in await nodes(node) if each["id"] == other.identity.id]
            if bool(found) is is_there:
                return found[0] if found else {}
            await anyio.sleep(0.05)


async def test_two_nodes_find_each_other_and_a_goodbye_ends_it(
    alice: PeerNode, bob: PeerNode
) -> None:
    """Nothing is added by that. A message to a found node is a message request there."""
    async with alice.node() as here:
        async with bob.node() as there:
            found = await seen(here, bob)
            assert (await seen(there, alice))["address"] == alice.address
            assert found["address"] == bob.address and found["name"] is None
            assert not [*alice.book.peers, *bob.book.peers]
            added = await ask(here, PeerOperation.PEER_ADD, name="bob", card=found["card"])
            assert added["error"] is None
            peer = alice.book.by_name("bob")
            assert peer is not None and peer.trust is Trust.ADDED
            await say(here, "bob", "hello from next door")
            requests: list[dict[str, Any]] = []
            with anyio.fail_after(DEADLINE_S):
                while not requests:
                    requests = (await ask(there, PeerOperation.CHAT_REQUESTS))["requests"]
                    await anyio.sleep(0.05)
            await ask(there, PeerOperation.CHAT_ACCEPT, id=alice.identity.id, name="alice")
            assert await received(there, alice, 1) == ["hello from next door"]
            await states(here, bob, State.DELIVERED, 1)
            assert (await seen(here, bob))["name"] == "bob"
        await seen(here, bob, is_there=False)


async def test_another_nodes_key_at_an_address_is_refused(
    alice: PeerNode, bob: PeerNode, caplog: pytest.LogCaptureFixture
) -> None:
    """The announcement has the key of bob and the address of a third node."""
    third = PeerNode(alice.folder.parent, "third", **HERE)
    async with alice.node() as here, third.node():
        await seen(here, third)
        zeroconf = Zeroconf(interfaces=["127.0.0.1"], use_asyncio=False)
        try:
            info = ServiceInfo(
                SERVICE,
                f"liar.{SERVICE}",
                int(third.address.rpartition(":")[2]),
                properties=properties_of(bob.identity.id, "1"),
                server="liar.local.",
                parsed_addresses=["127.0.0.1"],
            )
            await anyio.to_thread.run_sync(
                lambda: zeroconf.register_service(info, cooperating_responders=True)
            )
            await until(lambda: f"announced node refused: peer={bob.identity.id}" in caplog.text)
            assert [each["id"] for each in await nodes(here)] == [third.identity.id]
        finally:
            await anyio.to_thread.run_sync(zeroconf.close)


async def test_another_nodes_card_is_refused(
    alice: PeerNode, bob: PeerNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Bob proves its key, and gives a card of the third node."""
    third = PeerNode(alice.folder.parent, "third", **HERE)
    async with third.node() as other, bob.node() as there:
        lies = there.peer_services.discovery
        assert lies is not None
        lies._card = (await make_own_card(other.outbox.context, is_short=True)).line
        lies._card_until = there.outbox.context.now() + CARD_S
        async with alice.node() as here:
            await until(lambda: "the card of another one" in caplog.text)
            await seen(here, third)
            assert [each["id"] for each in await nodes(here)] == [third.identity.id]
            assert here.outbox.context.refusals["announced node"] == 1
            assert here._sources().discovered_nodes == 1


@pytest.mark.parametrize(
    "url", ["tcp://127.0.0.1:7400", "tls://[fe80::1]:7400", "tls://0.0.0.0:7400"]
)
async def test_a_card_with_addresses_of_this_machine_is_refused(
    alice: PeerNode, bob: PeerNode, url: str
) -> None:
    """It would lead its readers to themselves. Nodes of one machine may have it."""
    async with bob.node(addresses=(url,)) as node:
        line = (await make_own_card(node.outbox.context, is_short=True)).line
    for address in ("192.168.7.9", "fd12::9"):
        with pytest.raises(WrongCard, match="of this machine"):
            check_card(line, bob.public, address)
    check_card(line, bob.public, "127.0.0.1")
    with pytest.raises(WrongCard, match="another one"):
        check_card(line, alice.public, "127.0.0.1")


async def test_nodes_are_found_anew_when_the_networks_change(
    alice: PeerNode, bob: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loopback interface of alice goes and comes back, as a Wi-Fi does."""
    now: list[LocalNetwork] = interface_networks()
    monkeypatch.setattr(networks, "interface_networks", lambda: now)
    async with alice.node() as here, bob.node() as there:
        await seen(here, bob)
        await seen(there, alice)
        kept, now[:] = now[:], []
        await seen(here, bob, is_there=False)
        await seen(there, alice, is_there=False)
        now[:] = kept
        await seen(here, bob)
        await seen(there, alice)


async def test_a_flood_of_damaged_packets_stops_nothing(alice: PeerNode, bob: PeerNode) -> None:
    """Damaged packets, and announcements of nodes that are not there. A real one that was dropped
    meanwhile is found later."""
    rng = Random(7)
    async with alice.node() as here:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            on_loopback = socket.inet_aton("127.0.0.1")
            sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, on_loopback)
            for number in range(500):
                body = _announcement(rng, number)
                if number % 2:
                    spot = rng.randrange(len(body))
                    body = body[:spot] + rng.randbytes(rng.randrange(40)) + body[spot + 1 :]
                sender.sendto(body, ("224.0.0.251", 5353))
                await anyio.lowlevel.checkpoint()
        found = here.peer_services.discovery
        assert found is not None
        async with bob.node():
            await seen(here, bob)
            assert [each["id"] for each in await nodes(here)] == [bob.identity.id]
            assert found.found.waiting <= WAITING_MAX


def _announcement(rng: Random, number: int) -> bytes:
    """A packet of a node that is not there."""
    name = f"{'n' * rng.randrange(1, 50)}{number}"
    key = peer_id(rng.randbytes(32))
    info = ServiceInfo(
        SERVICE,
        f"{name}.{SERVICE}",
        1,
        properties=properties_of(key, "v" * rng.randrange(90)),
        server=f"{name}.local.",
        parsed_addresses=[f"127.0.{number % 256}.1", "8.8.8.8"],
    )
    out = DNSOutgoing(0x8400)
    for each in (info.dns_pointer(), info.dns_service(), info.dns_text(), *info.dns_addresses()):
        out.add_answer_at_time(each, 0)
    return out.packets()[0]


async def test_a_blocked_node_is_not_listed(alice: PeerNode, bob: PeerNode) -> None:
    third = PeerNode(alice.folder.parent, "third", **HERE)
    alice.knows(bob, trust=Trust.BLOCKED)
    async with alice.node() as here, bob.node() as there, third.node():
        await seen(there, third)
        await seen(here, third)
        assert bob.identity.id not in [each["id"] for each in await nodes(here)]
        # Nor does it get the card of the node that blocks it.
        assert alice.identity.id not in [each["id"] for each in await nodes(there)]


def test_a_node_without_discovery_gives_no_card_and_loads_no_zeroconf() -> None:
    code = (
        "import anyio, sys\n"
        "from millpond import Config, Node\n"
        "async def main():\n"
        "    off = dict.fromkeys(('ws', 's3p', 'rustlog', 'http'), 'off')\n"
        "    async with Node(Config(p2p='127.0.0.1:0', **off)) as node:\n"
        "        assert node.peer_services.discovery is None\n"
        "        assert not node.peer_requests._client_handlers.get(60)\n"
        "anyio.run(main)\n"
        "print([n for n in sys.modules if 'zeroconf' in n or 'node.discovery' in n])\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"p2p": "off"}, "no P2P listener"),
        ({"p2p": "127.0.0.1:0"}, "no other machine"),
        ({"p2p": "8.8.8.8:7400"}, "no private network"),
        ({"discover_interfaces": ("8.8.8.8",)}, "not on a private network"),
        ({"discover_interfaces": ("eth0",)}, "no IP address"),
        ({"discover_interfaces": ("fe80::1",)}, "not on a private network"),
        ({"p2p": "[2606:4700::7]:7400"}, "no private network"),
    ],
)
def test_listeners_that_no_neighbour_reaches_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        Config(**({"p2p": "0.0.0.0:7400", "discover": True} | settings))


async def test_without_zeroconf_the_error_says_what_to_install(
    alice: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "zeroconf", None)
    with pytest.raises(ConfigError, match=r"millpond\[discovery\]"):
        async with alice.node():
            pass


async def test_what_cannot_announce_is_closed_before_it_is_tried_again(
    alice: PeerNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = anyio.Event()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENETDOWN, "the network is down")

    def close(zeroconf: Zeroconf, inner: Callable[[Zeroconf], None] = Zeroconf.close) -> None:
        inner(zeroconf)
        anyio.from_thread.run_sync(closed.set)

    monkeypatch.setattr(Zeroconf, "register_service", refuse)
    monkeypatch.setattr(Zeroconf, "close", close)
    async with alice.node():
        with anyio.fail_after(RETRY_S / 2):
            await closed.wait()

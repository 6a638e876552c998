"""Lines between two nodes, with somebody in between: real nodes, real sockets, a real proxy.

`127.1` is this machine by a name. A name may be another machine's, so nodes treat it as one.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import RequestError
from millpond.node.config import OFF
from millpond.node.node import Node
from millpond.node.outbox.context import DeliveryStatus
from millpond.node.outbox.messages import Nothing, PeerOperation, WhoAnswer, write_body
from millpond.node.peers.address_book import Peer, Trust
from millpond.node.peers.card import decode_card
from millpond.node.tls.pins import key_pin_of
from millpond.transports.p2p.bodies import read_body
from tests.node.outbox.middle import Middle, middle
from tests.node.outbox.peer_nodes import PeerNode, read, remaining, until
from tests.ports import free_port

pytestmark = pytest.mark.anyio

THERE = "127.1"
HELLO = b"P2PB"
QUIET_S = 1.0
"""Long enough for a message to be sent, were it sent at all."""


class Line:
    """Alice, who writes to Bob by way of Mallory."""

    def __init__(self, folder: Path) -> None:
        self.alice = PeerNode(folder, "alice")
        self.bob = PeerNode(folder, "bob")
        self.bob.address = f"{THERE}:{free_port()}"
        self.bob.config = replace(self.bob.config, p2p=self.bob.address)
        self.bob.knows(self.alice, dials=False)
        self.alice.learns_key_of(self.bob)
        self.reports: list[DeliveryStatus] = []

    def alice_dials(self, url: str) -> None:
        bob = self.bob
        self.alice.book.add(Peer("bob", bob.public, Trust.ADDED, (url,), (), 0.0))

    @asynccontextmanager
    async def sending(self, text: bytes, *, allow_plain_peers: bool = False) -> AsyncIterator[Node]:
        """The node of Alice, with this message on its way."""
        async with self.alice.node(allow_plain_peers=allow_plain_peers) as here:
            here.outbox.on_status(self._hear)
            await here.outbox.send(self.bob.public, b"notes", text)
            yield here

    async def _hear(self, peer: bytes, uuids: Sequence[bytes], status: DeliveryStatus) -> None:
        self.reports.extend(status for _ in uuids)


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


@asynccontextmanager
async def between(line: Line, tmp_path: Path) -> AsyncIterator[Middle]:
    async with middle(line.bob.address, tmp_path) as mallory:
        yield mallory


async def test_plain_lines_lose_messages_to_whoever_is_in_between(
    line: Line, tmp_path: Path
) -> None:
    """The reason for all that follows, and what `allow_plain_peers` allows: Alice hears that her
    message was sent, and nobody has it."""
    async with line.bob.node(allow_plain_peers=True) as there, between(line, tmp_path) as mallory:
        mallory.strips_tls = mallory.forges = True
        line.alice_dials(f"tcp://{THERE}:{mallory.port}")
        async with line.sending(b"hello", allow_plain_peers=True):
            await until(lambda: line.reports == [DeliveryStatus.SENT])
        assert len(mallory.swallowed) == 1
        assert await remaining(there, b"notes") == []


async def test_a_node_whose_peer_seems_to_speak_no_tls_sends_nothing(
    line: Line, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The message waits, the log says why, and it is sent when nobody is in between."""
    async with line.bob.node() as there, between(line, tmp_path) as mallory:
        mallory.strips_tls = mallory.forges = True
        line.alice_dials(f"tcp://{THERE}:{mallory.port}")
        with caplog.at_level(logging.WARNING):
            async with line.sending(b"hello") as here:
                await until(lambda: bool(warnings_of(caplog)))
                assert HELLO not in mallory.heard
                assert here.outbox.queued(line.bob.public) == 1 and line.reports == []
                mallory.strips_tls = False
                assert await read(there, b"notes") == [b"hello"]
                await until(lambda: line.reports == [DeliveryStatus.SENT])
        assert mallory.swallowed == [] and HELLO not in mallory.heard
    [warning] = warnings_of(caplog)
    assert "allow_plain_peers" in warning


@pytest.mark.parametrize(("listener", "scheme"), [("p2p", "tcp"), ("ws", "ws")])
async def test_a_plain_address_of_another_machine_is_dialled_with_tls(
    line: Line, tmp_path: Path, listener: str, scheme: str
) -> None:
    """Also an old card or peer book, without any change."""
    at = {"p2p": OFF, "ws": OFF, listener: line.bob.address}
    async with line.bob.node(**at) as there, between(line, tmp_path) as mallory:
        line.alice_dials(f"{scheme}://{THERE}:{mallory.port}")
        async with line.sending(b"hello"):
            assert await read(there, b"notes") == [b"hello"]
        assert mallory.heard and HELLO not in mallory.heard and b"GET " not in mallory.heard


@pytest.mark.parametrize("is_pinned", [False, True])
async def test_another_certificate_in_between_is_refused(
    line: Line, tmp_path: Path, is_pinned: bool
) -> None:
    """Without a pin by the proof of Bob's key, which names his certificate; with one before Alice
    has said who she is."""
    async with line.bob.node() as there, between(line, tmp_path) as mallory:
        mallory.ends_tls = mallory.forges = True
        pin = f"#{pin_of_own(there)}" if is_pinned else ""
        line.alice_dials(f"tls://{THERE}:{mallory.port}{pin}")
        async with line.sending(b"hello") as here:
            await until(lambda: mallory.connections >= 3 and (is_pinned or HELLO in mallory.heard))
            assert here.outbox.queued(line.bob.public) == 1 and line.reports == []
            assert not is_pinned or mallory.heard == b""
            assert mallory.swallowed == []
            mallory.ends_tls = mallory.forges = False
            assert await read(there, b"notes") == [b"hello"]


async def test_a_pin_outlives_the_certificate(line: Line) -> None:
    async with line.bob.node() as there:
        line.alice_dials(f"tls://{line.bob.address}#{pin_of_own(there)}")
    (line.bob.folder / "own-tls.crt").unlink()
    async with line.bob.node() as there, line.sending(b"hello"):
        assert await read(there, b"notes") == [b"hello"]


async def test_the_card_of_a_node_leads_to_its_key_and_to_no_other(
    line: Line, tmp_path: Path
) -> None:
    """As people exchange it, from one end to the other."""
    async with between(line, tmp_path) as mallory:
        address = f"tls://{THERE}:{mallory.port}"
        async with line.bob.node(addresses=(address, "tcp://127.0.0.1:1")) as there:
            card = decode_card(await card_of(there))
            assert card.addresses == (f"{address}#{pin_of_own(there)}", "tcp://127.0.0.1:1")
            line.alice_dials(card.addresses[0])
            mallory.ends_tls = mallory.forges = True
            async with line.sending(b"hello"):
                await until(lambda: mallory.connections >= 3)
                assert mallory.heard == b"", "not even HELLO"
                mallory.ends_tls = mallory.forges = False
                assert await read(there, b"notes") == [b"hello"]


async def test_a_new_key_is_refused_until_there_is_a_new_card(line: Line) -> None:
    async with line.bob.node() as there:
        line.alice_dials(f"tls://{line.bob.address}#{pin_of_own(there)}")
    (line.bob.folder / "own-tls.key").unlink()
    async with line.bob.node() as there:
        async with line.sending(b"hello") as here:
            await anyio.sleep(QUIET_S)
            assert here.outbox.queued(line.bob.public) == 1
            url = f"tls://{line.bob.address}#{pin_of_own(there)}"
            line.alice.changes(line.bob, addresses=(url,))
            assert await read(there, b"notes") == [b"hello"]


async def test_lines_of_one_machine_stay_plain(line: Line, tmp_path: Path) -> None:
    """No certificate is made for them, and nothing has to be configured."""
    line.bob.address = f"127.0.0.1:{free_port()}"
    line.bob.config = replace(line.bob.config, p2p=line.bob.address)
    async with line.bob.node() as there, between(line, tmp_path) as mallory:
        line.alice_dials(f"tcp://127.0.0.1:{mallory.port}")
        async with line.sending(b"hello"):
            assert await read(there, b"notes") == [b"hello"]
        assert HELLO in mallory.heard
    assert not (line.bob.folder / "own-tls.key").exists()


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    texts = [each.getMessage() for each in caplog.records]
    return [text for text in texts if text.startswith("peer without tls")]


async def card_of(node: Node) -> str:
    """The contact card that a running node makes."""
    answer: list[bytes | RequestError] = []
    node.peer_requests.ask(PeerOperation.WHO, write_body(Nothing()), answer.append)
    await until(lambda: bool(answer))
    assert isinstance(answer[0], bytes)
    return read_body(answer[0], WhoAnswer).card


def pin_of_own(node: Node) -> str:
    assert node.tls.own_key_hash is not None
    return key_pin_of(node.tls.own_key_hash)

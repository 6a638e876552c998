"""Several addresses of one service: the next is tried on loss or refusal."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
import trio.testing
from anyio.abc import TaskGroup

from millpond.actors.messages import Put
from millpond.node.client.connect import connect
from millpond.node.client.errors import ConnectionLost, HandshakeRefused
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.s3p.client import connect_s3p
from millpond.node.client.url import parse_urls
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.io.interface import Session
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.nacks import HelloCode, encode_hello_refusal
from tests.node.client.scripted_node import Line, Peer, greet, keep, take_settings

URLS = "tcp://a:7400,tcp://b:7400"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


class Peers:
    """Peers by host name."""

    def __init__(self, **peers: Peer) -> None:
        self.peers = peers
        self.dialled: list[str] = []

    async def dial(self, tasks: TaskGroup, host: str, _: int, session: Session) -> None:
        self.dialled.append(host)
        await self.peers[host].dial(tasks, "peer", 0, session)

    def connect(self, **options: Any) -> Any:
        return connect(
            URLS,
            "chat/1",
            settings=take_settings(options, dialer=self.dial, rng=Random(7)),
            **options,
        )


def refuse(line: Line, packet: p.Packet) -> None:
    if isinstance(packet, p.Handshake):
        line.say(encode_hello_refusal(HelloCode.AUTHENTICATION_FAILED), p.ABORT)


async def test_the_second_address_is_tried_at_once_where_the_first_is_not_there() -> None:
    a, b = Peer(), Peer(keep)
    a.up = False
    peers, started = Peers(a=a, b=b), anyio.current_time()
    async with peers.connect() as channel:
        await channel.put(b"x")
    assert peers.dialled == ["a", "b"]
    assert anyio.current_time() - started < 1


async def test_unanswered_puts_are_repeated_at_the_next_address_with_their_keys() -> None:
    a, b = Peer(greet), Peer(keep)
    async with Peers(a=a, b=b).connect() as channel:
        answers = [channel.put_nowait(b"%d" % n) for n in range(3)]
        sent = await a.received(Put, 3)
        a.line.cut()
        receipts = [await answer for answer in answers]
    assert b.line.of(Put) == sent
    assert [receipt.key for receipt in receipts] == [put.key for put in sent]


async def test_the_last_address_is_followed_by_the_first() -> None:
    a, b = Peer(keep), Peer(keep)
    peers = Peers(a=a, b=b)
    async with peers.connect() as channel:
        for count, peer in enumerate((a, b, a), 2):
            await channel.put(b"x")
            await anyio.sleep(20)
            peer.line.cut()
            await peer.until(lambda count=count: len(peers.dialled) == count and channel.connected)
    assert peers.dialled == ["a", "b", "a", "b"]


async def test_an_address_that_refuses_is_left_for_the_next() -> None:
    peers = Peers(a=Peer(refuse), b=Peer(keep))
    async with peers.connect() as channel:
        await channel.put(b"x")
    assert peers.dialled == ["a", "b"]


async def test_a_refusal_by_all_addresses_is_final() -> None:
    peers = Peers(a=Peer(refuse), b=Peer(refuse))
    with pytest.raises(HandshakeRefused):
        async with peers.connect(wait_s=60):
            pass
    assert peers.dialled == ["a", "b"]


async def test_a_refusal_is_told_where_the_other_address_is_down() -> None:
    """A client that was connected goes on, as the other node may come back."""
    a, b = Peer(keep), Peer(keep)
    peers, events = Peers(a=a, b=b), list[Event]()
    async with peers.connect(on_event=events.append) as channel:
        b.answer = refuse
        a.up = False
        a.line.cut()
        await anyio.sleep(60)
        assert not channel.connected
        ends = [each for each in events[1:] if isinstance(each, Disconnected)]
        refusals = [each for each in ends if each.refused]
        assert {each.address for each in refusals} == {"b:7400"}
        assert "authentication failed" in refusals[0].reason
        assert {each.address for each in ends if not each.refused} == {"a:7400"}
        a.up = True
        await a.until(lambda: channel.connected)


async def test_a_client_that_never_was_connected_raises_the_refusal() -> None:
    a, b = Peer(refuse), Peer()
    b.up = False
    with pytest.raises(HandshakeRefused, match="authentication failed"):
        async with Peers(a=a, b=b).connect():
            pass


async def test_a_service_that_nobody_offers_is_told_after_one_try_of_each_address() -> None:
    a, b = Peer(), Peer()
    a.up = b.up = False
    peers = Peers(a=a, b=b)
    with pytest.raises(ConnectionLost):
        async with peers.connect():
            pass
    assert peers.dialled == ["a", "b"]


async def test_addresses_that_fail_in_turn_are_dialled_ever_more_slowly() -> None:
    """A sweep without success is followed by a delay, and so is a connection that lived shortly."""
    a, b = Peer(keep), Peer(keep)
    peers, events = Peers(a=a, b=b), list[Event]()
    async with peers.connect(on_event=events.append) as channel:
        a.up = b.up = False
        a.line.cut()
        await anyio.sleep(600)
        assert len(peers.dialled) < 120
        delays = [each.delay_s for each in events if isinstance(each, Retrying)]
        assert delays[1::2][:5] == [0.0] * 5
        assert max(delays) > 5
        a.up = b.up = True
        await b.until(lambda: channel.connected)
    assert len([each for each in events if isinstance(each, Connected)]) == 2


@pytest.mark.parametrize(
    ("urls", "text"),
    [
        ("tcp://a:7400,", "scheme"),
        ("tcp://a:7400,tcp://a:7400", "twice"),
        (",".join(f"tcp://a:{port}" for port in range(1, 18)), "16 addresses"),
    ],
)
def test_a_list_that_makes_no_sense_is_refused(urls: str, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        parse_urls(urls)


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_real_nodes_take_over_from_each_other(anyio_backend: str) -> None:
    local = "127.0.0.1:0"
    config = Config(p2p=local, ws="off", s3p=local, rustlog="off", http="off", drain_timeout_s=0.1)
    async with Node(config) as b:
        async with Node(config) as a:
            urls = ",".join(f"tcp://{node.listeners['p2p']}" for node in (a, b))
            addresses = ",".join(node.listeners["s3p"] for node in (a, b))
            lost = anyio.Event()
            channel = await connect(urls, "c").open()
            s3p = await connect_s3p(addresses, on_event=lambda each: told(each, lost)).open()
            await channel.put(b"to a")
            await s3p.create("orders")
        with anyio.fail_after(20):
            await channel.put(b"to b")
            await lost.wait()
            await s3p.create("orders")
            assert len(await channel.list()) == 1
        await channel.close()
        await s3p.close()


def told(event: Event, lost: anyio.Event) -> None:
    if isinstance(event, Disconnected):
        lost.set()

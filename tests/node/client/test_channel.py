"""The client against a real node over loopback sockets, as a program uses it."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.abc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from millpond import (
    ChannelClosed,
    ConnectionLost,
    HandshakeRefused,
    LeaseLost,
    NotFound,
    connect,
)
from millpond.actors.errors import (
    BufferFull,
    DataTooLarge,
    EmptyData,
    KeyReused,
    Malformed,
    NotNegotiated,
    SlowDown,
    WrongRole,
)
from millpond.actors.messages import (
    U64_MAX,
    Ack,
    Durability,
    Mode,
    Msg,
    Nack,
    NackReason,
    Put,
    PutAck,
)
from millpond.node.client.idempotency import BLOCK, KeyCounter
from millpond.node.client.settings import ConnectSettings
from millpond.node.client.url import parse_url
from millpond.node.config import ChannelRule, Config
from millpond.node.node import Node
from millpond.transports.io import tcp
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import encode_ready
from millpond.transports.p2p.packets import encode
from tests.node.client.scripted_node import READY, Line, Peer, greet, keep, take_settings

SOON_S = 5


@pytest.fixture(params=["asyncio", "uvloop", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """The client runs on all three."""
    if request.param == "trio":
        return "trio", {}
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
async def node(anyio_backend: object) -> AsyncIterator[Node]:
    rules = (ChannelRule("jobs/*", mode=Mode.QUEUE, attempts=2),)
    config = Config(
        p2p="127.0.0.1:0",
        ws="127.0.0.1:0",
        s3p="off",
        rustlog="off",
        http="off",
        channels=rules,
        packet_bytes_max=4096,
        channel_messages_max=2000,
        drain_timeout_s=0.5,
    )
    async with Node(config) as node:
        yield node


@pytest.fixture(params=["tcp", "ws"])
def url(node: Node, request: pytest.FixtureRequest) -> str:
    return f"{request.param}://{node.listeners['p2p' if request.param == 'tcp' else 'ws']}"


async def test_a_message_is_kept_pushed_and_acknowledged(url: str) -> None:
    """P2P-06, P2P-09, P2P-10, and the worked example of README."""
    async with connect(url, channel="chat/1") as alice, connect(url, channel="chat/1") as bob:
        receipt = await alice.put(b"hi", ttl=60)
        assert receipt.ttl == 60
        assert receipt.durability is Durability.MEMORY is alice.durability
        assert (alice.mode, alice.window) == (Mode.PAIR, 32)
        message = await bob.receive(SOON_S)
        assert (message.id, message.data, message.attempt) == (receipt.id, b"hi", 1)
        assert message.channel is bob
        assert await bob.get(receipt.id) == b"hi"
        await message.ack()
        assert await bob.list() == []
        with pytest.raises(NotFound):
            await bob.get(receipt.id)


async def test_a_channel_says_whether_messages_wait(url: str) -> None:
    """Several are taken at once then, without a wait for more."""
    async with connect(url, channel="chat/1") as alice, connect(url, channel="chat/1") as bob:
        assert not bob.has_messages
        for number in range(3):
            await alice.put(b"%d" % number)
        await bob.ping()  # all pushes came before its answer
        assert bob.has_messages
        received = []
        while bob.has_messages:
            received.append((await bob.receive()).data)
        assert received == [b"0", b"1", b"2"]


async def test_names_may_be_any_bytes(url: str) -> None:
    name = b"\xff / ?#%00\n"
    async with connect(url, name) as one, connect(url, name) as other:
        await one.put(b"hi")
        assert (await other.receive(SOON_S)).data == b"hi"


async def test_a_block_acknowledges_on_success_and_gives_back_on_an_error() -> None:
    """PA-37: and does neither for what the block has settled itself."""
    peer = Peer()
    async with memory(peer) as channel:
        peer.line.say(*[encode(Msg(n, 1, b"work")) for n in range(1, 5)])
        async with await channel.receive(SOON_S):
            pass
        with pytest.raises(ZeroDivisionError):
            async with await channel.receive(SOON_S):
                raise ZeroDivisionError
        with pytest.raises(ZeroDivisionError):
            async with await channel.receive(SOON_S) as message:
                await message.ack()
                raise ZeroDivisionError
        async with await channel.receive(SOON_S) as message:
            await message.nack(delay=1.5)
    said = [packet for packet in peer.line.packets if isinstance(packet, Ack | Nack)]
    assert said == [Ack(1), Nack(2, NackReason.LATER), Ack(3), Nack(4, NackReason.LATER, 1500)]


async def test_cancellation_neither_acknowledges_nor_gives_back(url: str) -> None:
    async with connect(url, "c", role="producer") as producer, connect(url, "c") as consumer:
        receipt = await producer.put(b"work")
        message = await consumer.receive(SOON_S)
        with anyio.CancelScope() as scope:
            async with message:
                scope.cancel()
                await anyio.sleep(1)
        assert await consumer.list() == [receipt.id]
        with pytest.raises(TimeoutError):
            await consumer.receive(0.05)


async def test_iteration_ends_when_the_channel_is_closed(url: str) -> None:
    seen: list[bytes] = []
    async with connect(url, "c") as channel, connect(url, "c", role="producer") as producer:

        async def iterate() -> None:
            async for message in channel:
                async with message:
                    seen.append(message.data)
                    if len(seen) == 3:
                        tasks.start_soon(channel.aclose)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(iterate)
            for n in range(3):
                await producer.put(b"%d" % n)
        assert seen == [b"0", b"1", b"2"]
        assert channel.closed
        with pytest.raises(ChannelClosed):
            await channel.put(b"late")
    async with connect(url, "c") as channel:
        assert await channel.list() == []


async def test_the_windows_edge_holds_pushes_back_and_credit_moves_it(url: str) -> None:
    """PS-03: window 0 is legal."""
    async with connect(url, "c", role="producer") as producer:
        receipts = [await producer.put(b"%d" % n) for n in range(5)]
        async with connect(url, "c", role="consumer", window=0) as consumer:
            assert consumer.window == 0
            with pytest.raises(TimeoutError):
                await consumer.receive(0.05)
            await consumer.credit(2)
            got = [await consumer.receive(SOON_S) for _ in range(2)]
            with pytest.raises(TimeoutError):
                await consumer.receive(0.05)
            await got[0].ack()
            got.append(await consumer.receive(SOON_S))
    assert [message.id for message in got] == [receipt.id for receipt in receipts[:3]]


async def test_ids_pages_in_both_directions(url: str) -> None:
    """PA-03, PA-04, PA-05."""
    async with connect(url, "c", role="producer") as producer, connect(url, "c") as channel:
        answers = [producer.put_nowait(b"x") for _ in range(1000)]
        kept = [(await answer).id for answer in answers]
        kept += [(await producer.put(b"x")).id for _ in range(300)]
        assert len(await channel.list()) < len(kept)
        assert [message_id async for message_id in channel.ids()] == kept
        assert [message_id async for message_id in channel.ids(U64_MAX)] == kept[::-1]
        assert [message_id async for message_id in channel.ids(kept[3], kept[-3])] == kept[3:-2]
        assert [i async for i in channel.ids(kept[-3], kept[3])] == kept[3:-2][::-1]
        assert await channel.list(kept[1], kept[5], limit=2) == kept[1:3]
        with pytest.raises(ValueError):
            await channel.list(limit=65_536)


async def test_a_queue_tells_attempts_prolongs_leases_and_buries(url: str) -> None:
    """docs/reference/wire-protocol.md: TOUCH, NACK with delay, reject, dead letters."""
    async with (
        connect(url, "jobs/q", role="producer") as producer,
        connect(url, "jobs/q", role="worker") as worker,
    ):
        assert (worker.mode, worker.window) == (Mode.QUEUE, 1)
        receipt = await producer.put(b"job")
        job = await worker.receive(SOON_S)
        assert job.attempt == 1
        assert 0 < await job.touch(60) <= 60
        await job.nack(delay=0.05)
        again = await worker.receive(SOON_S)
        assert (again.id, again.attempt) == (receipt.id, 2)
        await again.nack(reject=True)
        with pytest.raises(LeaseLost):
            await again.touch(60)
        async with connect(url, "jobs/q!dead") as dead:
            async with await dead.receive(SOON_S) as dead_letter:
                assert dead_letter.data == b"job"


async def test_requests_fail_with_their_own_errors(url: str) -> None:
    """P2P-16: and come out of the block as they are, not in a group."""
    with pytest.raises(NotFound):
        async with connect(url, "c") as channel:
            await channel.get(42)
    with pytest.raises(WrongRole):
        async with connect(url, "c", role="consumer") as channel:
            await channel.put(b"x")
    async with connect(url, "c") as channel:
        with pytest.raises(EmptyData):
            await channel.put(b"")
        with pytest.raises(DataTooLarge):
            await channel.put(b"x" * (4096 - 9 - 1))
        with pytest.raises(DataTooLarge):
            await channel.put(b"x" * 5000)
        with pytest.raises(ValueError):
            await channel.put(b"x", ttl=2**32)
        with pytest.raises(ValueError):
            await channel.put(b"x", key=-1)
        with pytest.raises(Malformed):
            await channel.admin(255, {})
        assert await channel.ping() < SOON_S
        assert channel.connected


async def test_a_key_makes_a_retry_harmless(url: str) -> None:
    """P2P-07, PA-09, PA-10."""
    async with connect(url, "c") as channel:
        first = await channel.put(b"once", key=7)
        assert await channel.put(b"once", key=7) == first
        with pytest.raises(KeyReused):
            await channel.put(b"other", key=7)
        assert await channel.list() == [first.id]


async def test_the_same_key_twice_at_once_is_one_request_or_an_error_at_once(url: str) -> None:
    async with connect(url, "c") as channel:
        one, same = channel.put_nowait(b"once", key=7), channel.put_nowait(b"once", key=7)
        with pytest.raises(KeyReused):
            channel.put_nowait(b"other", key=7)
        assert await one == await same
        await channel.put(b"fits", key=8)


async def test_administration_answers(url: str) -> None:
    """docs/reference/wire-protocol.md."""
    async with connect(url, "c") as channel:
        info = await channel.admin(1, {})
        assert info["connections"] == 1


async def test_many_tasks_share_one_channel(url: str) -> None:
    """PA-27: each caller gets the answer to its own request."""
    async with connect(url, "c", settings=ConnectSettings(in_flight_max=16)) as channel:

        async def use(n: int) -> None:
            data = b"%d" % n
            receipt = await channel.put(data)
            assert await channel.get(receipt.id) == data
            assert await channel.list(receipt.id, receipt.id) == [receipt.id]
            await channel.ack(receipt.id)

        async with anyio.create_task_group() as tasks:
            for n in range(200):
                tasks.start_soon(use, n)
        assert await channel.list() == []


async def test_leaving_the_block_waits_for_puts_that_nobody_awaited(url: str) -> None:
    async with connect(url, "c", role="producer") as producer:
        for n in range(500):
            producer.put_nowait(b"%d" % n)
    async with connect(url, "c") as channel:
        assert len([i async for i in channel.ids()]) == 500


async def test_a_wrong_token_is_refused(url: str, tmp_path: Path) -> None:
    """PS-08, P2P-24: the same refusal on both wires."""
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)
    config = Config(
        p2p="127.0.0.1:0",
        ws="127.0.0.1:0",
        s3p="off",
        rustlog="off",
        http="off",
        token_file=str(tokens),
    )
    async with Node(config) as node:
        name = "p2p" if url.startswith("tcp") else "ws"
        address = url.split(":")[0] + "://" + node.listeners[name]
        async with connect(address, "c", token=SECRET) as channel:
            await channel.put(b"let in")
        with pytest.raises(HandshakeRefused):
            async with connect(address, "c", token="wrong"):
                raise AssertionError("must not get here")


SECRET = "s3cret-s3cret-s3cret-s3cret"
TOKENS = f"{SECRET} all c\n"


async def test_a_cancelled_block_leaves_in_order_and_at_once() -> None:
    """P2P-17: acks that wait are sent, then goodbye."""
    peer = Peer()
    with anyio.CancelScope() as scope:
        async with memory(peer) as channel:
            peer.line.say(encode(Msg(5, 1, b"x")))
            await (await channel.receive()).ack()
            scope.deadline = anyio.current_time() + 0.05
            async for _ in channel:
                raise AssertionError("nothing more was pushed")
    assert scope.cancelled_caught
    assert peer.line.packets[1:] == [Ack(5), p.Close(goodbye=True)]


async def test_a_lost_channel_raises_the_same_error_over_and_over_without_growing() -> None:
    peer = Peer()
    async with memory(peer, reconnect=False) as channel:
        peer.line.cut()
        depths = []
        for _ in range(3):
            with pytest.raises(ConnectionLost) as caught:
                await channel.receive(SOON_S)
            depths.append(len(caught.traceback))
    assert depths[0] >= depths[1] == depths[2]


async def test_backpressure_waits_or_says_so() -> None:
    """The table of what is in flight is bounded; order is first come, first served."""
    peer = Peer()
    async with memory(peer, in_flight_max=2) as channel, anyio.create_task_group() as tasks:
        answers = [channel.put_nowait(b"1"), channel.put_nowait(b"2")]
        with pytest.raises(anyio.WouldBlock):
            channel.put_nowait(b"3")
        for data in (b"4", b"5", b"6"):
            tasks.start_soon(channel.put, data)
            await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            tasks.start_soon(cancel_soon, scope)
            await channel.put(b"never sent")
        assert [put.data for put in peer.line.of(Put)] == [b"1", b"2"]
        peer.answer = keep
        for put in peer.line.of(Put):
            keep(peer.line, put)
        assert [(await answer).id - 1000 for answer in answers] == [
            put.key for put in peer.line.of(Put)[:2]
        ]
    sent = [put.data for put in peer.line.of(Put)]
    # The two that found room at once are no order of ours: their tasks run as the library likes.
    assert [*sent[:2], *sorted(sent[2:4]), sent[4]] == [b"1", b"2", b"4", b"5", b"6"]


async def cancel_soon(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


@pytest.mark.parametrize(("code", "error"), [(0xA0, SlowDown), (0x26, BufferFull)])
async def test_a_full_node_is_an_error_or_asked_again_with_the_same_key(
    code: int, error: type[Exception]
) -> None:
    """docs/reference/wire-protocol.md: a0 and 26, with the delay the node asks for."""

    def full_thrice(line: Line, packet: p.Packet) -> None:
        if isinstance(packet, Put) and len(line.of(Put)) <= 3:
            delay = packet.key.to_bytes(4, "big") + (20).to_bytes(4, "big")
            line.say(encode(p.Refused(p.PUT, code, delay)))
        else:
            keep(line, packet)

    peer = Peer(full_thrice)
    async with memory(peer) as channel:
        with pytest.raises(error) as caught:
            await channel.put(b"x")
        assert getattr(caught.value, "delay_ms", None) == 20
        receipt = await channel.put(b"y", retry_for=5)
        puts = peer.line.of(Put)
        assert [put.data for put in puts] == [b"x", b"y", b"y", b"y"]
        assert {put.key for put in puts[1:]} == {receipt.key}


async def test_a_refusal_without_correlation_meets_the_oldest_request() -> None:
    """The seed text makes the correlation optional."""
    peer = Peer()
    async with memory(peer) as channel:
        first, second = channel.put_nowait(b"1"), channel.put_nowait(b"2")
        await peer.received(Put, 2)
        peer.line.say(encode(p.Refused(p.PUT, 0x26)))
        with pytest.raises(BufferFull):
            await first
        assert not second.done
        keep(peer.line, peer.line.of(Put)[1])
        await second


async def test_what_the_node_should_not_send_is_dropped_or_acknowledged() -> None:
    """PA-22, P2P-19, PA-23, PA-28: empty pushes, unknown types, malformed acks, idle PONGs."""
    peer = Peer(keep)
    async with memory(peer) as channel:
        line = peer.line
        line.say(encode(Msg(5, 1, b"")), b"\xc0what", b"\x07short", b"\x01", b"\x7f")
        line.say(encode(p.Refused(0x44, 0x55, b"whatever")), encode(Ack(9)), b"\x02short")
        line.say(encode(Msg(6, 1, b"real")))
        assert (await channel.receive(SOON_S)).id == 6
        assert await peer.received(Ack) == [Ack(5)]
        await channel.ping()
        assert channel.counts.malformed == 2


async def test_a_node_that_overruns_its_window_costs_no_memory() -> None:
    """The newest wait; the oldest will be pushed again or were settled elsewhere."""
    peer = Peer(keep)
    async with memory(peer) as channel:
        peer.line.say(*[encode(Msg(n, 1, b"x")) for n in range(1, 11)])
        await channel.ping()
        assert [(await channel.receive(0)).id for _ in range(4)] == [7, 8, 9, 10]
        assert channel.counts.overflowed == 6


async def test_extensions_are_not_used_unless_negotiated() -> None:
    """P2P-26."""

    def plain(line: Line, packet: p.Packet) -> None:
        if isinstance(packet, p.Handshake):
            line.say(encode_ready(READY.__class__(window=4)))

    peer = Peer(plain)
    async with memory(peer) as channel:
        peer.line.say(encode(Msg(5, 1, b"x")))
        message = await channel.receive(SOON_S)
        for call in (channel.credit(1), channel.admin(1, {}), message.touch(1)):
            with pytest.raises(NotNegotiated):
                await call


async def test_writes_of_one_turn_leave_together() -> None:
    peer = Peer(keep)
    async with memory(peer) as channel:
        wire = peer.line._wire
        before = len(peer.reads)
        answers = [channel.put_nowait(b"x") for _ in range(100)]
        for answer in answers:
            await answer
        assert len(peer.reads) - before <= 3
        assert wire is peer.line._wire


async def test_puts_of_many_who_were_answered_together_leave_together() -> None:
    """Each read here is a commit of a node: one read for all, and not one for the first alone."""
    waiting: list[Put] = []

    def keep_eight(line: Line, packet: p.Packet) -> None:
        greet(line, packet)
        if isinstance(packet, Put):
            waiting.append(packet)
        if len(waiting) == 8:
            line.say(*(encode(PutAck(put.key, put.ttl, 1)) for put in waiting))
            waiting.clear()

    peer = Peer(keep_eight)
    async with memory(peer) as channel, anyio.create_task_group() as tasks:

        async def produce() -> None:
            for _ in range(20):
                await channel.put(b"x")

        before = len(peer.reads)
        for _ in range(8):
            tasks.start_soon(produce)
        await peer.received(Put, 8 * 20)
        assert len(peer.reads) - before <= 20 + 1


def memory(peer: Peer, **options: Any) -> Any:
    return connect(
        "tcp://peer:1",
        "c",
        settings=take_settings(options, dialer=peer.dial, rng=Random(3)),
        **options,
    )


async def test_tls_needs_a_certificate_that_holds() -> None:
    """P2P spec: TLS is strongly recommended; a stranger's certificate is no connection."""
    server, client = certificates()
    peer = Peer(keep)
    async with anyio.create_task_group() as tasks:
        listener = await tcp.listen(tasks, "127.0.0.1", 0, lambda: Line(peer), tls=server)
        url = f"tls://{listener.address}"
        async with connect(url, "c", tls=client) as channel:
            await channel.put(b"secret")
        with pytest.raises(ConnectionError, match="certificate"):
            async with connect(url, "c"):
                raise AssertionError("must not get here")
        await listener.aclose()
        tasks.cancel_scope.cancel()


def certificates() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, SHA256())
    ).public_bytes(serialization.Encoding.PEM)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(private + certificate)
        file.flush()
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        server.load_cert_chain(file.name)
    return server, ssl.create_default_context(cadata=certificate.decode())


@pytest.mark.parametrize(
    "url",
    ["http://h:1", "h:1", "tcp://", "tcp://h:1/path", "tcp://u:p@h:1", "tcp://h:0", "tcp://h:x"],
)
def test_an_unusable_address_is_a_value_error(url: str) -> None:
    with pytest.raises(ValueError):
        parse_url(url)


def test_addresses_have_defaults() -> None:
    assert str(parse_url("tcp://localhost")) == "localhost:7400"
    assert str(parse_url("ws://[::1]")) == "[::1]:7401"
    assert parse_url("wss://h:1").secure and parse_url("wss://h:1").websocket


@pytest.mark.parametrize(
    "options",
    [
        {"role": "boss"},
        {"mode": "stack"},
        {"channel": ""},
        {"channel": "x" * 256},
        {"window": 65_536},
        {"token": "x" * 5000},
        {"tls": ssl.create_default_context()},
    ],
)
async def test_unusable_arguments_are_value_errors(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        async with connect(**{"url": "tcp://h:1", "channel": "c", **options}):
            raise AssertionError("must not get here")
    with pytest.raises(ValueError):
        async with connect("ws://h:1"):
            raise AssertionError("must not get here")


def test_kept_keys_never_repeat_across_runs_and_are_written_once_per_block(
    tmp_path: Path,
) -> None:
    """PA-08: random keys collide, a persisted counter does not."""
    path = tmp_path / "keys"
    used: set[int] = set()
    for run in range(3):
        keys = KeyCounter(Random(run), path)
        fresh = [keys.next() for _ in range(BLOCK + 1)]
        assert not used & set(fresh)
        used |= set(fresh)
    before = path.read_text()
    keys = KeyCounter(Random(9), path)
    keys.next()
    written = path.read_text()
    for _ in range(BLOCK - 1):
        keys.next()
    assert before != written == path.read_text()
    path.write_text("not a number")
    assert 0 <= KeyCounter(Random(9), path).next() < 2**32
    path.write_text(str(2**32 - 1))
    keys = KeyCounter(Random(9), path)
    assert [keys.next(), keys.next()] == [2**32 - 1, 0]


async def test_the_key_counter_file_is_used(tmp_path: Path) -> None:
    peer = Peer(keep)
    path = tmp_path / "keys"
    path.write_text("500")
    async with memory(peer, key_counter=path) as channel:
        assert (await channel.put(b"x")).key == 500
    async with memory(peer, key_counter=path) as channel:
        assert (await channel.put(b"x")).key == 500 + BLOCK

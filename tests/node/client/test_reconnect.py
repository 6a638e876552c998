"""Connections end; channels do not. On trio's virtual clock, against a scripted peer."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest
import trio.testing

from millpond import ConnectionLost, HandshakeRefused, NotFound
from millpond.actors.errors import Code, DataTooLarge, LeaseLost, OutcomeUnknown
from millpond.actors.messages import (
    Ack,
    Credit,
    Failed,
    Get,
    GetAck,
    List,
    ListAck,
    Mode,
    Msg,
    Nack,
    Put,
    PutAck,
    Touch,
    TouchAck,
)
from millpond.node.client.connect import connect
from millpond.node.client.errors import ModeMismatch
from millpond.node.client.events import Connected, Disconnected, Event, Retrying
from millpond.node.client.link import TEMPORARY_REFUSALS
from millpond.node.client.retry import ReconnectBackoff
from millpond.node.client.settings import SimulatedSettings
from millpond.node.clock import Clock
from millpond.node.config import OFF, Config
from millpond.node.node import Node
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.handshake import decode_hello, encode_ready
from millpond.transports.p2p.nacks import HelloCode, encode_failed, encode_hello_refusal
from millpond.transports.p2p.packets import encode
from tests.node.client.scripted_node import READY, Line, Peer, greet, keep, take_settings

URL = "tcp://peer:7400"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}


def join(peer: Peer, **options: Any) -> Any:
    return connect(
        URL, "chat/1", settings=take_settings(options, dialer=peer.dial, rng=Random(7)), **options
    )


def push(peer: Peer, message_id: int, data: bytes = b"x") -> None:
    peer.line.say(encode(Msg(message_id, 1, data)))


async def lose(peer: Peer, lines: int = 2) -> None:
    """Cut the newest connection and wait for the client to be back."""
    peer.line.cut()
    await peer.until(lambda: len(peer.lines) == lines and peer.line.packets)


async def test_unanswered_puts_are_sent_again_in_order_with_their_keys_before_new_ones() -> None:
    """P2P-07, PA-08, PA-38: one key for one message, however many connections it takes."""
    peer = Peer()
    async with join(peer) as channel:
        answers = [channel.put_nowait(b"%d" % n, ttl=60) for n in range(3)]
        before = await peer.received(Put, 3)
        peer.answer = keep
        peer.up = False
        peer.line.cut()
        await peer.until(lambda: not channel.connected)
        late = channel.put_nowait(b"late", ttl=60)
        peer.up = True
        receipts = [await answer for answer in (*answers, late)]
        after = await peer.received(Put, 4)
    assert after[:3] == before
    assert after[3].data == b"late"
    assert [receipt.key for receipt in receipts] == [put.key for put in after]
    assert len({put.key for put in after}) == 4


async def test_what_was_asked_and_cancelled_without_a_connection_is_never_sent() -> None:
    peer = Peer()
    async with join(peer) as channel:
        peer.up = False
        peer.line.cut()
        await peer.until(lambda: not channel.connected)
        await anyio.sleep(30)
        for call in (channel.get(1), channel.list(), channel.ping(), channel.put(b"given up")):
            with anyio.move_on_after(0):
                await call
        peer.answer, peer.up = keep, True
        await peer.until(lambda: channel.connected)
        await channel.put(b"kept")
        assert [put.data for put in peer.line.of(Put)] == [b"kept"]
        assert not [
            packet for packet in peer.line.packets if isinstance(packet, Get | List | p.Ping)
        ]


async def test_a_cancelled_put_is_not_sent_again() -> None:
    peer = Peer()
    async with join(peer) as channel:
        with anyio.move_on_after(1):
            await channel.put(b"given up")
        await lose(peer)
        peer.answer = keep
        await channel.put(b"kept")
        assert [put.data for put in peer.line.of(Put)] == [b"kept"]


async def test_reads_are_asked_again() -> None:
    """P2P-11, P2P-13, PA-27: GET by id, LIST in order."""
    peer = Peer()
    results: dict[str, object] = {}
    async with join(peer) as channel, anyio.create_task_group() as tasks:

        async def run(name: str, call: Any) -> None:
            results[name] = await call

        tasks.start_soon(run, "get", channel.get(42))
        tasks.start_soon(run, "list", channel.list(1, 9))
        tasks.start_soon(run, "ping", channel.ping())
        await peer.until(lambda: len(peer.line.packets) == 4)
        await lose(peer)
        await peer.until(lambda: len(peer.line.packets) == 4)
        assert {type(packet) for packet in peer.line.packets[1:]} == {Get, List, p.Ping}
        answers = encode(GetAck(42, b"there")), encode(ListAck([3, 4])), encode(p.Pong())
        peer.line.say(*answers)
    assert results.pop("ping") == 0
    assert results == {"get": b"there", "list": [3, 4]}


async def test_leases_and_administration_do_not_survive_a_connection() -> None:
    peer = Peer()
    failures: list[Exception] = []
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()

        async def fails(call: Any) -> None:
            try:
                await call
            except (LeaseLost, OutcomeUnknown) as error:
                failures.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fails, message.touch(30))
            tasks.start_soon(fails, channel.admin(1, {}))
            await peer.until(lambda: len(peer.line.packets) == 3)
            await lose(peer)
        assert {type(error) for error in failures} == {LeaseLost, OutcomeUnknown}
        with pytest.raises(LeaseLost):
            await message.touch(30)
        await message.nack()
        assert not peer.line.of(Nack)


async def test_a_touch_tells_what_is_left_of_a_lease_when_its_answer_came_late() -> None:
    """The program hung, or the node: the lease counts from the request, to be sure."""
    peer = Peer()
    left: list[float] = []
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()

        async def touch(seconds: float) -> None:
            left.append(await message.touch(seconds))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(touch, 10)
            await peer.received(Touch)
            await anyio.sleep(6)
            peer.line.say(encode(TouchAck(5, 10_000)))
        assert left == [pytest.approx(4, abs=0.1)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(touch, 0)
            await peer.received(Touch, 2)
            peer.line.say(encode(TouchAck(5, 0)))
        assert left[1:] == [0.0]


async def test_a_touch_whose_time_is_over_when_its_answer_comes_is_a_lost_lease() -> None:
    peer = Peer()
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()

        async def touch() -> None:
            with pytest.raises(LeaseLost):
                await message.touch(10)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(touch)
            await peer.received(Touch)
            await anyio.sleep(11)
            peer.line.say(encode(TouchAck(5, 10_000)))


async def test_each_touch_has_the_answer_of_its_own() -> None:
    """The answer to an earlier one says nothing of the lease at the time of a later one."""
    peer = Peer()
    outcomes: dict[int, str] = {}
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()

        async def touch(seconds: int) -> None:
            try:
                outcomes[seconds] = f"{await message.touch(seconds):.0f}"
            except LeaseLost:
                outcomes[seconds] = "lost"

        async with anyio.create_task_group() as tasks:
            for count, seconds in enumerate((10, 20, 30), start=1):
                tasks.start_soon(touch, seconds)
                await peer.received(Touch, count)
            peer.line.say(encode(TouchAck(5, 10_000)))
            peer.line.say(encode_failed(Failed(Touch(5, 20_000), Code.LEASE_LOST)))
            peer.line.say(encode(TouchAck(5, 30_000)))
    assert outcomes == {10: "10", 20: "lost", 30: "30"}


async def test_an_ack_of_an_earlier_connections_message_is_sent_on_the_next() -> None:
    """P2P-09, PA-17."""
    peer = Peer()
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()
        peer.up = False
        peer.line.cut()
        await peer.until(lambda: not channel.connected)
        await message.ack()
        peer.up = True
        assert await peer.received(Ack) == [Ack(5)]


async def test_what_was_acknowledged_is_acknowledged_again_and_not_shown_again() -> None:
    """P2P-15: the ack may have been lost with its connection."""
    peer = Peer()
    async with join(peer) as channel:
        push(peer, 5)
        await (await channel.receive()).ack()
        await lose(peer)
        push(peer, 5)
        push(peer, 6)
        assert (await channel.receive()).id == 6
        assert await peer.received(Ack) == [Ack(5)]
        assert channel.counts.duplicates == 1


async def test_what_waited_when_the_connection_ended_is_shown_once() -> None:
    """PA-38: the node pushes it again."""
    peer = Peer()
    async with join(peer) as channel:
        push(peer, 5)
        push(peer, 6)
        assert (await channel.receive()).id == 5
        await lose(peer)
        push(peer, 6)
        push(peer, 7)
        assert [(await channel.receive()).id for _ in range(2)] == [6, 7]
        with pytest.raises(TimeoutError):
            await channel.receive(timeout_s=1)


async def test_the_same_hello_and_the_same_credit_on_every_connection() -> None:
    """PS-03."""
    peer = Peer()
    async with join(peer, role="consumer", mode="pair", window=4) as channel:
        await channel.credit(3)
        await peer.received(Credit)
        await lose(peer)
        assert await peer.received(Credit) == [Credit(3)]
    first, second = (line.of(p.Handshake)[0] for line in peer.lines)
    assert first == second
    hello = decode_hello(first.raw)
    assert (hello.channel, hello.mode, hello.window) == (b"chat/1", Mode.PAIR, 4)


async def test_dialling_backs_off_with_jitter_and_tells_so() -> None:
    peer = Peer()
    events: list[Event] = []
    async with join(peer, on_event=events.append):
        peer.up = False
        peer.line.cut()
        await anyio.sleep(300)
        peer.up = True
        await peer.until(lambda: len(peer.lines) == 2 and Connected(2) in events)
    delays = [event.delay_s for event in events if isinstance(event, Retrying)]
    assert all(delay <= min(30, 0.1 * 2**n) for n, delay in enumerate(delays))
    assert len(set(delays)) == len(delays)
    assert 10 < len(delays) < 100
    assert [type(event) for event in events[:3]] == [Connected, Disconnected, Retrying]
    assert events[-1] == Connected(2)


async def test_a_connection_that_stood_is_replaced_at_once_unless_the_node_said_goodbye() -> None:
    peer = Peer(keep)
    events: list[Event] = []
    async with join(peer, on_event=events.append):
        await anyio.sleep(11)
        await lose(peer)
        await anyio.sleep(11)
        peer.line.say(p.GOODBYE)
        await peer.until(lambda: len(peer.lines) == 3)
    delays = [event.delay_s for event in events if isinstance(event, Retrying)]
    assert delays[0] == 0
    assert delays[1] > 0


def test_full_jitter_grows_to_its_ceiling_and_is_forgotten_after_stability() -> None:
    backoff = ReconnectBackoff(Random(3), base_s=1, max_s=8, stable_s=10)
    delays = [backoff.delay_s(0) for _ in range(2000)]
    assert max(delays[3:]) <= 8 and max(delays[3:]) > 7.5 and min(delays[3:]) < 0.5
    assert backoff.delay_s(11) == 0
    assert backoff.delay_s(0) <= 1


@pytest.mark.parametrize("farewell", [p.GOODBYE, p.ABORT])
async def test_a_closing_nack_closes_and_waiting_acks_are_flushed(farewell: bytes) -> None:
    """P2P-17, PA-36."""
    peer = Peer()
    async with join(peer) as channel:
        push(peer, 5)
        message = await channel.receive()
        await message.ack()
        first = peer.line
        first.say(farewell)
        await peer.until(lambda: first.over and len(peer.lines) == 2)
        assert first.of(Ack) == [Ack(5)]
        assert not first.of(p.Close)


async def test_silence_is_pinged_twice_and_then_the_connection_is_replaced() -> None:
    """PA-28: 20 s idle, 10 s, 10 s, goodbye."""
    peer = Peer()
    async with join(peer):
        first = peer.line
        start = anyio.current_time()
        await peer.until(lambda: len(first.of(p.Ping)) == 1)
        assert anyio.current_time() - start == pytest.approx(20)
        await peer.until(lambda: len(first.of(p.Ping)) == 2)
        assert anyio.current_time() - start == pytest.approx(30)
        await peer.until(lambda: first.of(p.Close))
        assert anyio.current_time() - start == pytest.approx(40)
        assert first.of(p.Close) == [p.Close(goodbye=True)]
        await peer.until(lambda: len(peer.lines) == 2)


async def test_any_traffic_counts_as_life_and_pings_are_answered() -> None:
    """PA-28, P2P-05."""
    peer = Peer()
    async with join(peer):
        for _ in range(5):
            await anyio.sleep(19)
            peer.line.say(encode(p.Ping(77)))
        assert len(peer.lines) == 1
        assert not peer.line.of(p.Ping)
        assert await peer.received(p.Pong, 5) == [p.Pong((77, 0, 0))] * 5


@pytest.mark.parametrize("seed", range(8))
async def test_silence_is_noticed_at_any_fraction_of_a_second(seed: int) -> None:
    """PA-28: a rest that is too short for the clock to tell must not be waited for, for ever."""
    peer = Peer()
    async with join(peer):
        await anyio.sleep(Random(seed).uniform(12.5, 15.5))
        peer.line.say(encode(p.Ping()))
        await anyio.sleep(20.001)
        assert len(peer.line.of(p.Ping)) == 1


async def test_a_partition_is_noticed_and_mended() -> None:
    peer = Peer(keep)
    async with join(peer) as channel:
        peer.network.partition("client", "peer")
        answer = channel.put_nowait(b"across")
        await anyio.sleep(60)
        assert not channel.connected
        peer.network.heal("client", "peer")
        await answer
    assert peer.line.of(Put)[0].data == b"across"


@pytest.mark.parametrize("code", sorted(set(HelloCode) - set(TEMPORARY_REFUSALS)))
async def test_a_refused_handshake_is_final(code: HelloCode) -> None:
    def refuse(line: Line, packet: p.Packet) -> None:
        line.say(encode_hello_refusal(code), p.ABORT)

    peer = Peer(refuse)
    with pytest.raises(HandshakeRefused) as caught:
        async with join(peer, wait_s=60):
            raise AssertionError("must not get here")
    assert caught.value.code is code
    assert len(peer.lines) == 1


async def test_a_refusal_after_a_lost_connection_reaches_every_caller() -> None:
    """No caller hangs."""
    peer = Peer()

    def refuse(line: Line, packet: p.Packet) -> None:
        line.say(encode_hello_refusal(HelloCode.NOT_ALLOWED), p.ABORT)

    async with join(peer) as channel:
        outcomes = await all_calls_after(channel, lambda: cut_for_good(peer, refuse))
        assert set(outcomes) == {HandshakeRefused}
        for call in (channel.put(b"x"), channel.get(1), channel.receive(), channel.ack(1)):
            with pytest.raises(HandshakeRefused):
                await call
        assert channel.closed


async def test_without_reconnect_every_caller_gets_connection_lost() -> None:
    """No caller hangs."""
    peer = Peer()
    async with join(peer, reconnect=False, in_flight_max=2) as channel:
        outcomes = await all_calls_after(channel, lambda: peer.line.cut())
        assert set(outcomes) == {ConnectionLost}
    assert len(peer.lines) == 1


def cut_for_good(peer: Peer, script: Any) -> None:
    peer.answer = script
    peer.line.cut()


async def all_calls_after(channel: Any, event: Any) -> list[type[Exception]]:
    """Everything a user may be waiting in, and how each of it ends."""
    outcomes: list[type[Exception]] = []

    async def run(call: Any) -> None:
        try:
            await call
        except (ConnectionLost, LeaseLost, OutcomeUnknown) as error:
            outcomes.append(ConnectionLost if isinstance(error, OutcomeUnknown) else type(error))

    async def iterate() -> None:
        async for _ in channel:
            pass

    calls = [channel.put(b"1"), channel.put(b"2"), channel.put(b"waits for room"), channel.get(1)]
    calls += [channel.list(), channel.ping(), channel.receive(), iterate()]
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(run, call)
        await anyio.sleep(0.01)
        event()
    assert len(outcomes) == len(calls)
    return outcomes


async def test_a_first_connection_fails_at_once_unless_told_to_wait() -> None:
    peer = Peer()
    peer.up = False
    with pytest.raises(ConnectionLost, match="nobody listens"):
        async with join(peer):
            raise AssertionError("must not get here")
    assert len(peer.dialled_at) == 1

    async def start_later() -> None:
        await anyio.sleep(5)
        peer.up = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start_later)
        async with join(peer, wait_s=60) as channel:
            assert channel.connected


async def test_a_peer_without_handshake_is_an_error_unless_bare_is_allowed() -> None:
    """PA-40, P2P-26: 3 s, then on as the seed text has it."""

    def old(line: Line, packet: p.Packet) -> None:
        if not isinstance(packet, p.Handshake):
            keep(line, packet)

    peer = Peer(old)
    with pytest.raises(ConnectionLost, match="handshake"):
        async with join(peer):
            raise AssertionError("must not get here")
    start = anyio.current_time()
    async with join(peer, bare=True) as channel:
        assert anyio.current_time() - start == pytest.approx(3)
        receipt = await channel.put(b"old friend", ttl=9)
        assert (receipt.ttl, receipt.durability.name, channel.mode) == (9, "MEMORY", None)
        push(peer, 5)
        await (await channel.receive()).ack()
        assert await peer.received(Ack) == [Ack(5)]


async def test_a_channel_of_another_mode_is_left_with_a_goodbye() -> None:
    """PS-05."""
    peer = Peer()
    with pytest.raises(ModeMismatch, match="pair"):
        async with join(peer, mode="queue"):
            raise AssertionError("must not get here")
    assert peer.lines[0].of(p.Close) == [p.Close(goodbye=True)]


async def test_a_put_that_the_next_node_would_not_take_fails_alone() -> None:
    """PA-34: sending it would break the connection, for ever."""
    peer = Peer()

    def small(line: Line, packet: p.Packet) -> None:
        if isinstance(packet, p.Handshake):
            line.say(encode_ready(READY.__class__(packet_max=1024, extensions=p.EXTENSIONS)))
        elif isinstance(packet, Put):
            line.say(encode(PutAck(packet.key, packet.ttl, 1)))

    async with join(peer) as channel:
        large, little = channel.put_nowait(b"x" * 2000), channel.put_nowait(b"y")
        await peer.received(Put, 2)
        peer.answer = small
        peer.line.cut()
        await little
        with pytest.raises(DataTooLarge):
            await large
        with pytest.raises(DataTooLarge):
            await channel.put(b"x" * 2000)


async def test_a_broken_frame_from_the_node_is_answered_with_an_abort() -> None:
    """PA-24."""
    peer = Peer()
    async with join(peer):
        first = peer.line
        first._wire.write(b"\0\0\0\0")
        await peer.until(lambda: first.over and len(peer.lines) == 2)
        assert first.of(p.Close) == [p.Close(goodbye=False)]


async def test_leaving_says_goodbye_and_a_peer_that_stays_cannot_hold_us() -> None:
    """P2P-17."""
    peer = Peer(greet)
    async with join(peer) as channel:
        push(peer, 5)
        await (await channel.receive()).ack()
    assert peer.line.of(Ack) == [Ack(5)]
    assert peer.line.packets[-1] == p.Close(goodbye=True)


@pytest.mark.parametrize("seed", range(5))
async def test_a_real_node_keeps_every_message_once_however_often_connections_break(
    seed: int,
) -> None:
    """P2P-06, P2P-07, P2P-15: acknowledged means kept; retries make no copies."""
    rng = Random(seed)
    peer = Peer(seed=seed)
    network = peer.network
    network.latency_s, network.split = 0.01, True
    all_seen = anyio.Event()

    async def break_often() -> None:
        while not all_seen.is_set():
            await anyio.sleep(rng.uniform(0.02, 0.2))
            network.reset("node")

    clock = Clock(monotonic=anyio.current_time, wall=lambda: 1.7e9)
    async with Node(
        Config(p2p=OFF, ws=OFF, s3p=OFF, rustlog=OFF, http=OFF), rng=rng, clock=clock
    ) as node:
        node.listen_in(network, "node")
        url = "tcp://node:1"
        consumed: set[bytes] = set()
        async with (
            anyio.create_task_group() as tasks,
            connect(
                url, "c", role="producer", settings=SimulatedSettings(dialer=peer.dial, rng=rng)
            ) as producer,
            connect(
                url, "c", role="consumer", settings=SimulatedSettings(dialer=peer.dial, rng=rng)
            ) as consumer,
        ):

            async def consume() -> None:
                async for message in consumer:
                    async with message:
                        consumed.add(message.data)
                    if len(consumed) == 300:
                        all_seen.set()

            tasks.start_soon(consume)
            tasks.start_soon(break_often)
            receipts = []
            for batch in range(30):
                answers = [producer.put_nowait(b"%d/%d" % (batch, n), ttl=600) for n in range(10)]
                receipts += [await answer for answer in answers]
            with anyio.fail_after(600):
                await all_seen.wait()
            await anyio.sleep(60)
            assert await consumer.list() == []
            assert len({receipt.id for receipt in receipts}) == 300
            assert consumer.counts.connections > 3
            with pytest.raises(NotFound):
                await consumer.get(receipts[0].id)
            tasks.cancel_scope.cancel()

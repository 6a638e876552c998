"""The blocking client, from ordinary threads, against a node of its own thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from millpond import ChannelClosed, ConnectionLost, NotFound
from millpond.actors.errors import UnknownStream
from millpond.actors.messages import Mode
from millpond.node.client.settings import ConnectSettings
from millpond.node.config import ChannelRule, Config
from millpond.node.node import Node
from millpond.sync import connect, connect_streams

SOON_S = 5


@pytest.fixture(scope="module")
def listeners() -> Iterator[dict[str, str]]:
    rules = (ChannelRule("jobs/*", mode=Mode.QUEUE),)
    config = Config(
        p2p="127.0.0.1:0",
        ws="127.0.0.1:0",
        s3p="off",
        rustlog="off",
        http="off",
        channels=rules,
        drain_timeout_s=0.5,
    )

    async def serve() -> Node:
        return Node(config)

    with start_blocking_portal() as portal:
        node = portal.call(serve)
        with portal.wrap_async_context_manager(node):
            yield node.listeners


@pytest.fixture(params=["p2p", "ws"])
def url(listeners: dict[str, str], request: pytest.FixtureRequest) -> str:
    scheme = "tcp" if request.param == "p2p" else "ws"
    return f"{scheme}://{listeners[request.param]}"


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return request.node.name


def test_a_message_is_kept_pushed_and_acknowledged(url: str, name: str) -> None:
    """P2P-06, P2P-09, P2P-10."""
    with connect(url, channel=name) as alice, connect(url, channel=name) as bob:
        receipt = alice.put(b"hi", ttl=60)
        message = bob.receive(SOON_S)
        assert (message.id, message.data, message.attempt) == (receipt.id, b"hi", 1)
        assert message.channel == bob
        assert bob.get(receipt.id) == b"hi"
        assert bob.list() == list(bob.ids()) == [receipt.id]
        message.ack()
        with pytest.raises(NotFound):
            bob.get(receipt.id)
        assert 0 <= bob.ping() < SOON_S
        assert bob.admin(1, {})["connections"] >= 2
        assert (bob.mode, bob.window, bob.connected, bob.closed) == (Mode.PAIR, 32, True, False)


def test_a_worker_loops_over_jobs(url: str, name: str) -> None:
    """An error gives the job back, success removes it, closing ends the loop."""
    queue = f"jobs/{name}"
    done: list[bytes] = []
    with connect(url, queue, role="producer") as producer, connect(url, queue) as worker:
        for n in range(3):
            producer.put(b"%d" % n)
        for job in worker:
            assert 0 < job.touch(30) <= 30
            if job.data == b"1" and job.attempt == 1:
                job.nack(delay=0.01)
                continue
            with job:
                done.append(job.data)
            if len(done) == 3:
                worker.close()
        assert sorted(done) == [b"0", b"1", b"2"]
        with pytest.raises(ChannelClosed):
            worker.put(b"late")


def test_an_error_in_the_block_gives_the_message_back_and_comes_out_as_it_is(
    url: str, name: str
) -> None:
    with pytest.raises(ZeroDivisionError), connect(url, name, role="producer") as producer:
        with connect(url, name) as consumer:
            producer.put(b"x")
            with consumer.receive(SOON_S):
                raise ZeroDivisionError


def test_threads_share_a_channel(url: str, name: str) -> None:
    with connect(url, name) as channel, ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(channel.put, [b"%d" % n for n in range(40)]))
        assert sorted(receipt.id for receipt in receipts) == channel.list()


def test_puts_can_be_pipelined_and_are_bounded(url: str, name: str) -> None:
    with connect(url, name, settings=ConnectSettings(in_flight_max=1000)) as channel:
        pending = [channel.put_nowait(b"x") for _ in range(50)]
        assert len({each.wait().id for each in pending}) == 50
        assert all(each.done for each in pending)
    with connect(url, name, settings=ConnectSettings(in_flight_max=0)) as channel:
        channel.put_nowait(b"alone")
        with pytest.raises(anyio.WouldBlock):
            for _ in range(100):
                channel.put_nowait(b"x" * 10_000)


def test_a_blocked_reader_is_released_when_another_thread_closes(url: str, name: str) -> None:
    with connect(url, name) as channel:
        timer = threading.Timer(0.05, channel.close)
        timer.start()
        assert list(channel) == []
        timer.join()


def test_receive_gives_up_in_time_and_a_missing_node_is_an_error(url: str, name: str) -> None:
    with connect(url, name) as channel, pytest.raises(TimeoutError):
        channel.receive(0.02)
    with pytest.raises(ConnectionLost), connect("tcp://127.0.0.1:1", name):
        raise AssertionError("must not get here")


def test_streams_are_used_from_ordinary_threads(url: str, name: str) -> None:
    with connect_streams(url) as streams, ThreadPoolExecutor() as pool:
        orders = streams.stream(name)
        orders.create(exist_ok=True)
        waiting = pool.submit(orders.read, orders.info().tail, wait_s=SOON_S)
        first = orders.append([b"a", b"b"]).first
        assert [record.data for record in waiting.result(SOON_S)] in ([b"a"], [b"a", b"b"])
        assert [record.data for record in orders.records(first)] == [b"a", b"b"]
        assert [record.data for record in orders.tail(1)] == [b"b"]
        assert name.encode() in list(streams.names())
        follower = orders.follow(first + 1)
        assert next(follower).data == b"b"
        later = pool.submit(next, follower)
        orders.append(b"c")
        assert later.result(SOON_S).data == b"c"
        orders.trim(first + 1)
        assert orders.info().trim_point == first + 1
        orders.commit("mail", 1)
        assert orders.committed("mail") == 1
        orders.delete()
        with pytest.raises(UnknownStream):
            orders.info()


def test_topics_are_used_from_ordinary_threads(url: str, request: pytest.FixtureRequest) -> None:
    topic = request.node.name.partition("[")[0] + request.node.callspec.id
    with connect(url, channel="chat/1") as channel:
        streams = channel.streams
        streams.create_topic(topic, 2)
        assert streams.partitions(topic) == 2
        assert (topic.encode(), 2) in list(streams.topics())
        streams.partition(topic, 1).append(b"x")
        streams.delete_topic(topic)
        assert streams.partitions(topic) is None

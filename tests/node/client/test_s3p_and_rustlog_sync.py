"""The blocking clients of S3P and RustLog, from ordinary threads, against a node of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from millpond.actors.errors import StreamExists, UnknownStream
from millpond.node.client.errors import ClientClosed, ConnectionLost
from millpond.node.client.requests.batching import BatchSettings
from millpond.node.client.rustlog.client import ConsumerSettings
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.sync import connect_rustlog, connect_s3p

NEVER_MS = 3_600_000.0


@pytest.fixture(scope="module")
def listeners() -> Iterator[dict[str, str]]:
    free = dict.fromkeys(("p2p", "ws", "s3p", "rustlog"), "127.0.0.1:0") | {"http": "off"}

    async def serve() -> Node:
        return Node(Config(drain_timeout_s=0.5, **free))

    with start_blocking_portal() as portal:
        node = portal.call(serve)
        with portal.wrap_async_context_manager(node):
            yield node.listeners


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def test_s3p_blocking(listeners: dict[str, str], name: str) -> None:
    with connect_s3p(listeners["s3p"]) as s3p:
        s3p.create(name)
        with pytest.raises(StreamExists):
            s3p.create(name)
        last = s3p.append(name, [b"a", b"b"])
        assert [record.data for record in s3p.read(name)] == [b"a", b"b"]
        assert [record.data for record in s3p.read(name, last, count=1)] == [b"b"]
        s3p.trim(name, last)
        assert len(s3p.read(name)) == 1
        assert s3p.connected
        assert not s3p.closed
        s3p.delete(name)
        with pytest.raises(UnknownStream):
            s3p.read(name)
        s3p.close()
        with pytest.raises(ClientClosed):
            s3p.create(name)


def test_a_thread_follows_what_another_produces(listeners: dict[str, str], name: str) -> None:
    got: list[bytes] = []
    with connect_s3p(listeners["s3p"]) as s3p:
        s3p.create(name)

        def follow() -> None:
            for record in s3p.follow(name, block_ms=1000):
                got.append(record.data)
                if len(got) == 21:
                    return

        follower = threading.Thread(target=follow)
        follower.start()
        with s3p.producer(name, BatchSettings(linger_ms=NEVER_MS)) as producer:
            sent = [producer.send(b"%d" % n) for n in range(10)]
            sent += [producer.send_nowait(b"%d" % n) for n in range(10, 20)]
            assert producer.buffered == 20
            assert not sent[0].done
            producer.flush()
            ids = [each.wait() for each in sent]
            assert ids == sorted(set(ids))
        with s3p.producer(name) as producer:
            assert producer.append(b"20") > ids[-1]
            producer.close()
        follower.join(5)
    assert got == [b"%d" % n for n in range(21)]


def test_threads_share_a_client(listeners: dict[str, str], name: str) -> None:
    with connect_s3p(listeners["s3p"]) as s3p, ThreadPoolExecutor(8) as pool:
        s3p.create(name)
        ids = list(pool.map(lambda n: s3p.append(name, b"%d" % n), range(40)))
        assert sorted(ids) == [record.id for record in s3p.read(name)]


def test_rustlog_blocking(listeners: dict[str, str], name: str) -> None:
    with connect_rustlog(listeners["rustlog"]) as rustlog:
        rustlog.ping()
        rustlog.create_topic(name, 2)
        assert rustlog.topics()[name] == 2
        assert rustlog.produce(name, [b"a", b"b"], partition=1) == 0
        assert [one.data for one in rustlog.fetch(name, 0, partition=1).records] == [b"a", b"b"]
        assert rustlog.committed("g", name, 1) is None
        rustlog.commit("g", name, 1, 1)
        assert rustlog.committed("g", name, 1) == 1
        assert [row.high_watermark for row in rustlog.describe(name)] == [0, 2]
        assert rustlog.describe_partition(name, 1).high_watermark == 2
        assert rustlog.metrics().metrics["messages_produced_total"] >= 2
        assert rustlog.connected
        assert not rustlog.closed
        rustlog.close()
        with pytest.raises(ClientClosed):
            rustlog.ping()


def test_a_worker_consumes_what_is_produced(listeners: dict[str, str], name: str) -> None:
    with connect_rustlog(listeners["rustlog"]) as rustlog:
        rustlog.create_topic(name, 3)
        with rustlog.producer(name, BatchSettings(linger_ms=1)) as producer:
            assert producer.partitions == 3
            sent = [producer.send(b"%d" % n) for n in range(5)]
            sent.append(producer.send_nowait(b"5"))
            assert producer.produce(b"6", partition=2).partition == 2
            producer.flush()
            assert {each.wait().partition for each in sent} == {0, 1, 2}
            assert producer.buffered == 0
            producer.close()
        got = set()
        with rustlog.consumer("g", name, settings=ConsumerSettings(commit_ms=None)) as consumer:
            for record in consumer:
                got.add(record.data)
                if len(got) == 7:
                    break
            consumer.commit()
            assert sum(consumer.positions.values()) == 6
            consumer.seek(record.partition, record.offset)
            assert next(consumer).data == record.data
            assert consumer.skipped == 0


def test_a_server_that_is_not_there() -> None:
    for connect in (connect_s3p, connect_rustlog):
        with pytest.raises(ConnectionLost), connect("127.0.0.1:1"):
            raise AssertionError("must not get here")


def test_a_full_buffer_says_so(listeners: dict[str, str], name: str) -> None:
    settings = BatchSettings(linger_ms=NEVER_MS, buffer_records=1)
    with connect_s3p(listeners["s3p"]) as s3p:
        s3p.create(name)
        with s3p.producer(name, settings) as producer:
            producer.send(b"a")
            with pytest.raises(anyio.WouldBlock):
                producer.send_nowait(b"b")

"""Metrics with names as labels: few of each kind, the rest in one row, and no private ones."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from millpond import connect
from millpond.actors.channels.context import (
    QUEUES_COUNTED_MAX,
    DeliveryCounters,
    QueueCounters,
)
from millpond.actors.messages import Mode
from millpond.node.client.rustlog.client import connect_rustlog
from millpond.node.config import Config, ConfigError
from millpond.node.http.named_metrics import OTHER, Busiest
from millpond.node.node import Node
from millpond.transports.http.app import Application
from tests.node.http.clients import eventually
from tests.node.http_services import http_services, plain, samples

ANY_PORT = "127.0.0.1:0"
PEER = "a" * 52
SOON_S = 20


def url(node: Node) -> str:
    return f"tcp://{node.listeners['p2p']}"


async def put(node: Node, channel: str, count: int, data: bytes = b"1234", **how: object) -> None:
    async with connect(url(node), channel, role="producer", **how) as client:  # type: ignore[arg-type]
        for _ in range(count):
            await client.put(data)


async def detailed(application: Application, name: str) -> dict[str, float]:
    """The values of a metric by the values of its labels, joined with blanks."""
    full = f"millpond_detailed_{name}"
    return {
        " ".join(labels): value
        for (each, labels), value in (await samples(application)).items()
        if each == full
    }


async def test_the_fullest_channels_are_shown_and_the_rest_is_one_row() -> None:
    async with http_services(p2p=ANY_PORT, metrics_names_max=2) as (running, _, application):
        for name, count in (("a", 1), ("b", 5), ("c", 2), ("d", 4)):
            await put(running.node, name, count)
        await eventually(lambda: not running.node.registry.connections)
        assert await detailed(application, "channel_messages") == {"b": 5, "d": 4, OTHER: 3}
        assert await detailed(application, "channel_bytes") == {"b": 20, "d": 16, OTHER: 12}
        assert await detailed(application, "channel_clients") == {"b": 0, "d": 0, OTHER: 0}
        ages = await detailed(application, "channel_oldest_seconds")
        assert set(ages) == {"b", "d"} and all(0 <= each < SOON_S for each in ages.values())
        # One that was shown stays until another has twice its messages.
        await put(running.node, "c", 4)
        assert set(await detailed(application, "channel_messages")) == {"b", "d", OTHER}
        await put(running.node, "c", 4)
        assert await detailed(application, "channel_messages") == {"b": 5, "c": 10, OTHER: 5}
        total = (await plain(application))["channel_messages"]
        assert sum((await detailed(application, "channel_messages")).values()) == total


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"metrics_names": ("orders/*", "mail")}, {"orders/1", "mail", OTHER}),
        ({"metrics_names": ()}, {OTHER}),
        ({"metrics_names_max": 0}, set()),
    ],
)
async def test_patterns_choose_names(settings: dict[str, object], shown: set[str]) -> None:
    async with http_services(p2p=ANY_PORT, **settings) as (running, _, application):
        for name in ("orders/1", "mail", "secret"):
            await put(running.node, name, 1)
        assert set(await detailed(application, "channel_messages")) == shown


async def test_private_names_and_mailboxes_of_results_are_no_labels() -> None:
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        hidden = [f"chat/{PEER}", "jobs/x/r/" + "0f" * 16]
        for name in (*hidden, "chat/1"):
            await put(running.node, name, 1)
        assert await detailed(application, "channel_messages") == {"chat/1": 1, OTHER: 2}


def test_there_are_at_most_a_thousand_names_of_each_kind() -> None:
    with pytest.raises(ConfigError, match="metrics_names_max"):
        Config(metrics_names_max=1001)


async def test_the_jobs_of_a_queue() -> None:
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        node = running.node
        async with (
            connect(url(node), "jobs/mail", role="producer", mode="queue") as producer,
            connect(url(node), "jobs/mail", role="worker", window=3) as worker,
        ):
            for _ in range(5):
                await producer.put(b"work")
            await (await worker.receive(SOON_S)).ack()
            await (await worker.receive(SOON_S)).nack(60_000)
            await (await worker.receive(SOON_S)).nack(reject=True)
            await worker.flush()
            counters = node._queues.by_name[b"jobs/mail"]
            await eventually(lambda: counters.dead_letters == 1)
            await eventually(lambda: counters.pushes == 5)
            for name, count in (
                ("jobs_waiting", 0),
                ("jobs_delayed", 1),
                ("jobs_running", 2),
                ("jobs_dead", 1),
                ("job_workers", 1),
            ):
                assert await detailed(application, name) == {"jobs/mail": count, OTHER: 0}, name
        await eventually(lambda: counters.lost == 2)
        assert (await detailed(application, "jobs_waiting"))["jobs/mail"] == 2
        assert (await detailed(application, "job_oldest_seconds"))["jobs/mail"] >= 0
        for name, count in (("put", 5), ("done", 1), ("failed", 4), ("died", 1)):
            assert await detailed(application, f"jobs_{name}_total") == {"jobs/mail": count}, name
        told = await plain(application)
        assert told["acks_total"] == 1 and told["messages_kept_total"] == 6


def test_queues_beyond_the_first_count_in_the_totals_alone() -> None:
    queues = QueueCounters(DeliveryCounters())
    for number in range(QUEUES_COUNTED_MAX + 2):
        queues.of(b"%d" % number, Mode.QUEUE).kept += 1
    queues.of(b"chat", Mode.PAIR).kept += 1
    assert len(queues.by_name) == QUEUES_COUNTED_MAX and queues.shared.kept == 3
    assert queues.total.kept == QUEUES_COUNTED_MAX + 3


async def test_a_queue_at_rest_still_tells_its_jobs_and_their_age(tmp_path: Path) -> None:
    settings = {"p2p": ANY_PORT, "data": str(tmp_path), "passivate_after_s": 0.05}
    async with http_services(**settings) as (running, _, application):
        node = running.node
        async with connect(url(node), "jobs/mail", role="producer", mode="queue") as producer:
            for _ in range(3):
                await producer.put(b"work")
            before = time.monotonic()
            await detailed(application, "jobs_waiting")
        await eventually(lambda: node.scheduler.view(b"jobs/mail") is None)
        assert (await detailed(application, "jobs_waiting"))["jobs/mail"] == 3
        await anyio.sleep(0.05)
        age = (await detailed(application, "channel_oldest_seconds"))["jobs/mail"]
        assert 0.05 <= age <= time.monotonic() - before + SOON_S
        assert (await detailed(application, "job_oldest_seconds"))["jobs/mail"] > 0


async def test_streams_topics_and_groups() -> None:
    async with http_services(p2p=ANY_PORT, rustlog=ANY_PORT) as (running, _, application):
        node = running.node
        async with connect_rustlog(node.listeners["rustlog"]) as log:
            await log.create_topic("clicks", 2)
            await log.produce("clicks", [b"x"] * 5, partition=1)
            await log.commit("readers", "clicks", 1, 2)
        async with connect(url(node), "any") as channel:
            await channel.streams.stream("orders").create()
            await channel.streams.stream("orders").append(b"12345678")
        records = await detailed(application, "stream_records_total")
        assert records == {"clicks/1 clicks": 5, "orders ": 1}
        sizes = await detailed(application, "stream_bytes")
        assert set(sizes) == {"clicks/1 clicks", "orders ", f"{OTHER} "} and sizes["orders "] >= 8
        lags = await detailed(application, "group_lag_records")
        assert lags == {"readers clicks/1 clicks": 3, f"{OTHER} {OTHER} ": 0}


def test_a_hundred_thousand_names_are_offered_quickly_and_few_are_looked_at() -> None:
    """The patterns are asked only of names that would be shown."""
    asked = 0

    def allows(name: bytes) -> bool:
        nonlocal asked
        asked += 1
        return True

    busiest = Busiest(50, frozenset(), allows)
    for number in range(100_000):
        busiest.offer(b"channel/%d" % number, number * 7919 % 100_003)
    assert len(busiest.names) == 50 and asked < 2000


async def test_many_channels_make_no_larger_answer() -> None:
    async with http_services(p2p=ANY_PORT, metrics_names_max=10) as (running, _, application):
        for number in range(300):
            await put(running.node, f"c/{number}", 1)
        told = await samples(application)
        names = {labels for (name, labels) in told if name.startswith("millpond_detailed_channel")}
        assert len(names) == 11
        assert (await detailed(application, "channel_messages"))[OTHER] == 290

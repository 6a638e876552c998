"""Metrics after requests and failures: deliveries, lag, latencies, the disk, crashes."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from millpond import Channel, connect
from millpond.actors.messages import Attach, Batch, Credit, Put, Role
from millpond.actors.store.filesystem import File, OsDisk, OsFile
from millpond.node.client.rustlog.client import connect_rustlog
from millpond.node.client.s3p.client import connect_s3p
from millpond.node.http.metrics import CELLS_PER_PASS, MetricsApi
from millpond.node.http.named_metrics import ROWS_PER_PASS
from millpond.node.http.prometheus import SAMPLES_PER_PASS
from millpond.node.node import Node
from millpond.transports.http.app import Application
from tests.actors.recording_port import RecordingPort
from tests.node.http.clients import eventually
from tests.node.http_services import http_services, plain, samples
from tests.transports.http.client import Client
from tests.transports.http.running_app import RunningApp

ANY_PORT = "127.0.0.1:0"
OPEN = {"p2p": ANY_PORT, "ws": ANY_PORT, "s3p": ANY_PORT, "rustlog": ANY_PORT}
SOON_S = 5


@asynccontextmanager
async def joined(node: Node, channel: str, **how: object) -> AsyncIterator[Channel]:
    url = f"tcp://{node.listeners['p2p']}"
    async with connect(url, channel, **how) as client:  # type: ignore[arg-type]
        yield client


async def test_deliveries_are_counted() -> None:
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        node = running.node
        async with (
            joined(node, "jobs/1", role="producer", mode="queue") as producer,
            joined(node, "jobs/1", role="worker") as worker,
        ):
            for _ in range(3):
                await producer.put(b"work")
            first = await worker.receive(SOON_S)
            await first.ack()
            second = await worker.receive(SOON_S)
            await second.nack(0)
            again = await worker.receive(SOON_S)
            if again.id != second.id:  # the third one may come before it
                await again.ack()
                again = await worker.receive(SOON_S)
            assert (again.id, again.attempt) == (second.id, 2)
            await again.nack(reject=True)
            await worker.flush()
            await eventually(lambda: node._queues.total.dead_letters == 1)
        told = await plain(application)
        assert told["messages_kept_total"] == 4, "the dead letter among them"
        assert told["pushes_total"] >= 3 and told["redeliveries_total"] == 1
        assert told["nacks_total"] == 2 and told["acks_total"] >= 1
        assert told["dead_letters_total"] == 1
        assert told["pushes_total"] == (
            told["acks_total"] + told["nacks_total"] + told["pushes_lost_total"]
        )


async def test_credit_and_lag_of_subscribers() -> None:
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        node = running.node
        async with (
            joined(node, "news", role="producer", mode="fanout") as producer,
            joined(node, "news", role="consumer", window=5) as quick,
            joined(node, "news", role="consumer", window=2),
        ):
            told = await plain(application)
            assert told["channel_credit_messages"] == 7
            for _ in range(4):
                await producer.put(b"news")
            for _ in range(4):
                await (await quick.receive(SOON_S)).ack()
            await quick.flush()
            await eventually(lambda: node._channels.counters.acks == 4)
            told = await plain(application)
            assert told["channel_credit_messages"] == 5 and told["channel_leased_messages"] == 2
            assert told["subscriber_lag_messages"] == 4
            assert told["subscriber_lag_max_messages"] == 4


async def test_lag_of_groups_also_of_streams_that_rest() -> None:
    async with http_services(rustlog=ANY_PORT, passivate_after_s=0.05) as (running, _, application):
        async with connect_rustlog(running.node.listeners["rustlog"]) as log:
            for topic, records, offset in (("clicks", 5, 2), ("views", 3, 3)):
                await log.create_topic(topic)
                await log.produce(topic, [b"x"] * records)
                await log.commit("readers", topic, 0, offset)
            await log.commit("others", "clicks", 0, 4)
            for _ in range(2):
                told = await plain(application)
                assert told["stream_groups"] == 3
                assert told["group_lag_records"] == 4
                assert told["group_lag_max_records"] == 3
                await eventually(lambda: _are_at_rest(running.node))
            await log.produce("views", b"x")
            assert (await plain(application))["group_lag_records"] == 5


def _are_at_rest(node: Node) -> bool:
    return all(cell.behaviour is None for cell in node.scheduler.cells.values())


async def test_each_protocol_has_its_requests_and_latencies() -> None:
    async with http_services(**OPEN) as (running, _, application):
        await _ask_by_each(running, application)
        told = await samples(application)
        for protocol in ("p2p", "ws", "s3p", "rustlog", "http"):
            assert told["millpond_requests_total", (protocol,)] >= 1, protocol
            assert told["millpond_received_bytes_total", (protocol,)] > 0, protocol
            assert told["millpond_request_seconds_count", (protocol,)] >= 1, protocol
            took_s = told["millpond_request_seconds_sum", (protocol,)]
            assert 0 < took_s < SOON_S, protocol
            steps = [
                amount
                for (name, labels), amount in told.items()
                if name == "millpond_request_seconds_bucket" and protocol in labels
            ]
            assert steps == sorted(steps), "each bound has all that is below it"
            assert steps[-1] == told["millpond_request_seconds_count", (protocol,)]
            if protocol != "http":
                assert told["millpond_connections_total", (protocol,)] == 1


async def _ask_by_each(running: RunningApp, application: Application) -> None:
    listeners = running.node.listeners
    async with joined(running.node, "box") as channel:
        await channel.put(b"x")
    async with connect(f"ws://{listeners['ws']}", "box") as channel:
        await channel.put(b"y")
    async with connect_s3p(listeners["s3p"]) as s3p:
        await s3p.create("orders")
    async with connect_rustlog(listeners["rustlog"]) as log:
        await log.create_topic("clicks")
        await log.produce("clicks", b"x")
    body = b'{"records":[{"body":"x"}]}'
    json = [(b"content-type", b"application/json"), (b"s2-basin", b"millpond")]
    got = await Client(application).request("POST", "/v1/streams/orders/records", json, body)
    assert got.status == 200, got.body


class SlowDisk(OsDisk):
    """Its journal's syncs wait for `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()

    def create(self, path: Path, size: int) -> OsFile:
        return SlowFile(super().create(path, size), self.gate)  # type: ignore[return-value]


class SlowFile:
    def __init__(self, file: File, gate: threading.Event) -> None:
        self._file = file
        self._gate = gate

    def write(self, data: bytes, offset: int) -> None:
        self._file.write(data, offset)

    def sync(self) -> None:
        assert self._gate.wait(SOON_S), "the test forgot the disk"
        self._file.sync()

    def close(self) -> None:
        self._file.close()


async def test_the_disk_shows_how_long_it_takes(tmp_path: Path) -> None:
    disk = SlowDisk()
    settings = {"data": str(tmp_path / "data"), "p2p": ANY_PORT, "disk": disk}
    async with http_services(**settings) as (running, _, application):
        async with joined(running.node, "box") as channel:
            await channel.put(b"x" * 1000)
            told = await plain(application)
            commits = told["journal_commit_seconds_count"]
            assert commits >= 1 and told["journal_sync_seconds_count"] >= 1
            assert told["journal_commit_records_sum"] >= 1
            assert told["journal_commits_total"] == told["journal_commit_records_count"]
            assert told["journal_written_bytes_total"] > 1000
            assert told["journal_busy_seconds"] == 0
            disk.gate.clear()
            waiting = [channel.put_nowait(b"y") for _ in range(5)]
            await channel.ping()
            await anyio.sleep(0.06)
            told = await plain(application)
            disk.gate.set()
            assert 0.05 < told["journal_busy_seconds"] < SOON_S
            assert told["journal_commit_seconds_count"] == commits
            for each in waiting:
                await each
        told = await plain(application)
        assert told["journal_commit_seconds_sum"] > 0.05 < told["journal_sync_seconds_sum"]
        assert told["journal_commit_seconds_count"] > commits


async def test_restarts_and_quarantines_of_cells(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    async with http_services(p2p=ANY_PORT) as (running, _, application):
        scheduler = running.node.scheduler
        async with joined(running.node, "frail") as channel:
            await channel.put(b"x")
            for crashes in range(1, 7):
                # No cell ever sends another one a Credit.
                scheduler.submit(b"frail", Batch(None, [Credit(1)]), running.node.clock.now())
                await eventually(lambda n=crashes: scheduler.counters.crashes == n)  # type: ignore[misc]
            told = await plain(application)
            assert told["cell_crashes_total"] == 6
            assert (told["cell_restarts_total"], told["cell_quarantines_total"]) == (5, 1)
            assert (told["cells_quarantined"], told["cells_unreadable"]) == (1, 0)


async def test_info_tells_the_same_of_deliveries_and_of_all_listeners() -> None:
    async with http_services(p2p=ANY_PORT, s3p=ANY_PORT) as (running, _, application):
        async with joined(running.node, "box") as channel:
            await channel.put(b"x")
        async with connect_s3p(running.node.listeners["s3p"]) as s3p:
            await s3p.create("orders")
        async with joined(running.node, "millpond!probe") as probe:
            info = await probe.admin(1, {})
        told = await samples(application)
        assert info["delivery"]["kept"] == told["millpond_messages_kept_total", ()] == 1
        wire = info["wire"]
        for field, name in (("connections", "connections"), ("bytes_in", "received_bytes")):
            assert (
                0
                < wire[field]
                <= sum(told[f"millpond_{name}_total", (each,)] for each in ("p2p", "s3p"))
            )
        assert wire["connections"] == 3 and wire["malformed"] == 0


async def test_a_scrape_of_many_channels_is_done_in_steps() -> None:
    many = dict.fromkeys(("node_messages_max", "metrics_names_max"), 1_000)
    async with http_services(**many) as (running, _, application):
        scheduler, now = running.node.scheduler, running.node.clock.now()
        for number in range(600):
            port = RecordingPort(number + 1, received_at=now)
            requests = [Attach(role=Role.PRODUCER, push=False), Put(1, 60, b"x")]
            scheduler.submit(b"box/%d" % number, Batch(port, requests), now)
        turns = 0
        async with anyio.create_task_group() as tasks:

            async def count() -> None:
                nonlocal turns
                while True:
                    await checkpoint()
                    turns += 1

            tasks.start_soon(count)
            await checkpoint()
            before = turns
            told = await samples(application)
            took = turns - before
            tasks.cancel_scope.cancel()
    families = 6
    assert took >= 600 // CELLS_PER_PASS + 600 // ROWS_PER_PASS + families
    shown = [labels[0] for name, labels in told if name == "millpond_detailed_channel_bytes"]
    assert len(shown) == 601 and told["millpond_detailed_channel_bytes", ("_other",)] == 0


async def test_openmetrics_that_is_encoded_in_steps_ends_once() -> None:
    async with http_services() as (_, _, application):
        accept = [(b"accept", b"application/openmetrics-text; version=1.0.0")]
        got = await Client(application).request("GET", "/metrics", accept)
        assert got.headers[b"content-type"].startswith(b"application/openmetrics-text")
        assert got.body.count(b"# EOF") == 1 and got.body.endswith(b"# EOF\n")
        assert got.body.count(b"# TYPE") > SAMPLES_PER_PASS / 2


async def test_scrapes_that_wait_share_the_next_one() -> None:
    async with http_services() as (running, services, application):
        api = services.apis[(b"metrics",)]
        assert isinstance(api, MetricsApi)
        scheduler, now = running.node.scheduler, running.node.clock.now()
        found: list[float] = []

        async def scrape() -> None:
            found.append((await plain(application))["channels"])

        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(scrape)
            await checkpoint()
            port = RecordingPort(1, received_at=now)
            scheduler.submit(b"box", Batch(port, [Attach(), Put(1, 60, b"x")]), now)
            tasks.start_soon(scrape)
        assert api.scrapes <= 3 and found[-1] == 1, "no scrape tells of a time before it came"

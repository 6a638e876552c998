"""`/health`, `/ready` and `/metrics`: what they tell, and whom."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from millpond.actors.streams import messages as m
from millpond.actors.streams.names import stream_cell
from millpond.transports.http.cell_client import CellClient
from tests.node.http_services import http_services, samples
from tests.transports.http.client import Client

NAME = re.compile(r"(millpond|process)_[a-z0-9_]+")


async def test_health_is_ok_as_long_as_the_process_answers() -> None:
    async with http_services() as (running, _, application):
        for client in (Client(application), Client(application, host="192.0.2.1")):
            for path in ("/health", "/ping"):
                got = await client.request("GET", path)
                assert (got.status, got.body) == (200, b"OK\n")
                assert (await client.request("HEAD", path)).body == b""
                assert (await client.request("POST", path)).status == 405
        assert (await Client(application).request("GET", "/health/x")).status == 404
        await running.node.drain()
        assert (await Client(application).request("GET", "/health")).status == 200


async def test_ready_says_why_it_is_not() -> None:
    async with http_services() as (running, http, application):
        client = Client(application)
        got = await client.request("GET", "/ready")
        assert (got.status, got.json()) == (503, {"ready": False, "reasons": ["starting"]})
        http.started()
        got = await client.request("GET", "/ready")
        assert (got.status, got.json()) == (200, {"ready": True, "reasons": []})
        health = running.node._store.health
        health.is_writable, health.reason = False, "disk full"
        assert (await client.request("GET", "/ready")).json()["reasons"] == ["store: disk full"]
        health.is_writable = True
        running.node.clock.jump.seconds = 7200.0
        got = await client.request("GET", "/ready")
        assert got.status == 200 and "expiry is held" in got.json()["warnings"][0]
        assert (await samples(application))["millpond_clock_jump_seconds", ()] == 7200
        running.node.clock.jump.seconds = 0.0
        running.node._channels.ids.resume(0, 2**63 - 1)
        got = await client.request("GET", "/ready")
        assert got.status == 503 and got.json()["reasons"][0].startswith("ids: they have ended")
        running.node._channels.ids.resume(0, 0)
        await running.node.drain()
        got = await client.request("GET", "/ready")
        assert (got.status, got.json()["reasons"]) == (503, ["draining"])


@pytest.mark.parametrize("path", ["/ready", "/metrics"])
async def test_from_elsewhere_they_need_the_right_admin(path: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("keeper all\nreader get\n")
    tokens.chmod(0o600)
    async with http_services(token_file=str(tokens)) as (_, http, application):
        http.started()
        far = Client(application, host="192.0.2.1")
        got = await far.request("GET", path)
        assert (got.status, got.headers[b"www-authenticate"]) == (401, b"Bearer")
        for token, status in ((b"keeper", 200), (b"reader", 403), (b"nobody", 401)):
            bearer = [(b"authorization", b"Bearer " + token)]
            assert (await far.request("GET", path, bearer)).status == status
        # Probes of this machine have no token. The metrics are for whoever the rules say.
        here = await Client(application).request("GET", path)
        assert here.status == (200 if path == "/ready" else 401)


async def test_metrics_follow_the_conventions_and_tell_what_happened() -> None:
    async with http_services() as (running, _, application):
        before = await samples(application)
        with CellClient(running.services) as cells:
            for name in (b"secret-one", b"secret-two"):
                await cells.request(stream_cell(name), m.Create)
            await cells.request(
                stream_cell(b"secret-one"), lambda number: m.Append(number, [b"x"] * 3)
            )
        await Client(application).request("GET", "/nothing")
        after = await samples(application)
        changed = {name: value - before.get(name, 0) for name, value in after.items()}
        assert changed["millpond_streams", ()] == 2
        assert changed["millpond_stream_records_appended_total", ()] == 3
        assert changed["millpond_http_answers_total", ("none", "404")] == 1
        assert changed["millpond_http_answers_total", ("metrics", "200")] == 1
        assert after["millpond_open_connections", ("http",)] == 1
        assert after["process_resident_memory_bytes", ()] > 10 * 2**20
        assert all(NAME.fullmatch(name) for name, _ in after)
        assert all(math.isfinite(value) for value in after.values())
        text = (await Client(application).request("GET", "/metrics")).body
        # Names are in the metrics by name alone (docs/guides/monitoring.md), which may be off.
        named = [each for each in text.splitlines() if b"secret" in each]
        assert named and all(each.startswith(b"millpond_detailed_") for each in named)
    async with http_services(metrics_names_max=0) as (running, _, application):
        with CellClient(running.services) as cells:
            await cells.request(stream_cell(b"secret-one"), m.Create)
        text = (await Client(application).request("GET", "/metrics")).body
        assert b"millpond_streams 1" in text and b"secret" not in text


async def test_metrics_of_a_store_on_the_disk(tmp_path: Path) -> None:
    async with http_services(data=str(tmp_path / "data")) as (running, _, application):
        with CellClient(running.services) as cells:
            await cells.request(stream_cell(b"orders"), m.Create)
        told = await samples(application)
        assert told["millpond_journal_bytes", ()] > 0
        assert told["millpond_journal_commits_total", ()] >= 1
        assert told["millpond_journal_syncs_total", ()] >= 1
        assert told["millpond_damaged_partitions", ()] == 0
        assert told["millpond_store_writable", ()] == 1


async def test_open_metrics_for_who_asks_for_it() -> None:
    async with http_services() as (_, _, application):
        accept = [(b"accept", b"application/openmetrics-text; version=1.0.0")]
        got = await Client(application).request("GET", "/metrics", accept)
        assert got.headers[b"content-type"].startswith(b"application/openmetrics-text")
        assert got.body.endswith(b"# EOF\n")

"""Metrics of batches: staged, published, published before, and left behind."""

from __future__ import annotations

import json

import anyio
import anyio.lowlevel
import pytest
from msgspec.structs import replace

from millpond.actors.streams import idempotent_writers
from millpond.pipeline.client.s2_codec import encode_records
from millpond.transports.http.transactions import publish as publishing
from millpond.transports.http.transactions import stage as staging
from tests.node.http_services import http_services, plain
from tests.transports.http.client import Client
from tests.transports.http.durable.api_client import CLOCKED

BASIN = (b"s2-basin", b"millpond")


class Asking:
    """One client of the node."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, stream: str) -> None:
        headers = [BASIN, (b"content-type", b"application/json")]
        assert (
            await self._client.request("PUT", f"/v1/streams/{stream}", headers, b"{}")
        ).status < 300

    async def stage(self, batch: int, part: str, *rows: bytes) -> None:
        body = encode_records([(row, [], None) for row in rows])
        headers = [BASIN, (b"content-type", b"application/protobuf")]
        path = f"/millpond/v1/transactions/s/w/{batch}/{part}?at=0"
        assert (await self._client.request("POST", path, headers, body)).status == 200

    async def publish(self, batch: int, writer: str = "w", **parts: int) -> str:
        plan = {"parts": [{"id": name, "rows": rows} for name, rows in parts.items()]}
        headers = [BASIN, (b"content-type", b"application/json")]
        path = f"/millpond/v1/transactions/s/{writer}/{batch}"
        got = await self._client.request("POST", path, headers, json.dumps(plan).encode())
        told = got.json()
        return str(told.get("outcome") or told["code"])

    async def append(self, stream: str, body: bytes) -> None:
        given = encode_records([(body, [], None)])
        headers = [BASIN, (b"content-type", b"application/protobuf")]
        path = f"/v1/streams/{stream}/records"
        assert (await self._client.request("POST", path, headers, given)).status == 200

    async def rows(self, stream: str) -> list[bytes]:
        path = f"/v1/streams/{stream}/records?seq_num=0"
        got = (await self._client.request("GET", path, [BASIN])).json()
        return [each["body"].encode() for each in got.get("records", ())]

    async def delete(self, stream: str) -> None:
        assert (await self._client.request("DELETE", f"/v1/streams/{stream}", [BASIN])).status < 300

    async def drop(self, batch: int, part: str) -> int:
        path = f"/millpond/v1/transactions/s/w/{batch}/{part}"
        return (await self._client.request("DELETE", path, [BASIN])).status

    async def outcome(self, batch: int) -> tuple[str, int]:
        path = f"/millpond/v1/transactions/s/w/{batch}"
        told = (await self._client.request("GET", path, [BASIN])).json()
        return told["outcome"], told["rows"]


async def test_batches_are_counted_by_what_became_of_them() -> None:
    async with http_services() as (_, _, application):
        asking = Asking(Client(application))
        await asking.create("s")
        await asking.stage(0, "a", b"1", b"2")
        await asking.stage(0, "b", b"3")
        assert (await plain(application))["transaction_parts"] == 2
        assert await asking.publish(0, a=2, b=1) == "published"
        await asking.stage(0, "c", b"1")
        assert await asking.publish(0, c=1) == "duplicate"
        await asking.stage(1, "d", b"4")
        assert await asking.drop(1, "d") == 204
        told = await plain(application)
        assert told["transaction_parts"] == told["transaction_parts_expired_total"] == 0
        assert told["transaction_rows_staged_total"] == 5
        assert told["transactions_published_total"] == 1
        assert told["transaction_rows_published_total"] == 3
        assert told["transactions_duplicate_total"] == 1


@CLOCKED
async def test_a_batch_that_was_begun_is_ended_however_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node is full in the middle of a batch, and for longer than parts are kept otherwise."""
    monkeypatch.setattr(staging, "_KEPT", replace(staging._KEPT, age_s=60))
    monkeypatch.setattr(publishing, "SLICE_ROWS", 2)
    monkeypatch.setattr(publishing, "READ_ROWS", 2)
    rows = [b"%d" % number * 100 for number in range(6)]
    async with http_services(node_stream_bytes_max=1350) as (_, _, application):
        asking = Asking(Client(application))
        await asking.create("s")
        await asking.create("full")
        await asking.stage(0, "a", *rows)
        await asking.append("full", bytes(500))
        assert await asking.outcome(0) == ("none", 0)
        assert await asking.publish(0, a=6) == "quota_exhausted"
        assert await asking.rows("s") == rows[:2]
        assert await asking.outcome(0) == ("publishing", 2)
        assert await asking.drop(0, "a") == 409, "the batch is decided"
        await anyio.sleep(300)
        await asking.delete("full")
        assert await asking.publish(0, a=6) == "duplicate"
        assert await asking.rows("s") == rows
        assert await asking.outcome(0) == ("published", 0)
        assert (await plain(application))["transaction_parts"] == 0


async def test_parts_are_not_dropped_while_they_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Requests to drop each part, and to publish again, at every step of a publication."""
    monkeypatch.setattr(publishing, "SLICE_ROWS", 2)
    monkeypatch.setattr(publishing, "READ_ROWS", 2)
    rows = [b"%d" % number for number in range(6)]
    for steps in (*range(8), *range(8, 30, 3)):
        async with http_services() as (_, _, application):
            asking = Asking(Client(application))
            await asking.create("s")
            await asking.stage(0, "a", *rows[:3])
            await asking.stage(0, "b", *rows[3:])
            outcomes: list[str] = []

            async def publish(asking: Asking = asking, outcomes: list[str] = outcomes) -> None:
                outcomes.append(await asking.publish(0, a=3, b=3))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                for _ in range(steps):
                    await anyio.lowlevel.checkpoint()
                dropped = [await asking.drop(0, part) for part in ("b", "a")]
                tasks.start_soon(publish)
            there = await asking.rows("s")
            if there:
                assert there == rows and set(outcomes) <= {"published", "duplicate"}, (
                    steps,
                    outcomes,
                )
            else:
                assert outcomes == ["transaction_conflict"] * 2 and 204 in dropped
            assert await asking.outcome(0) == (("published", 0) if there else ("none", 0))


async def test_a_writer_beyond_the_limit_is_told_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not as a failure of the node, after which clients repeat the request."""
    monkeypatch.setattr(idempotent_writers, "WRITERS_MAX", 2)
    async with http_services() as (_, _, application):
        asking = Asking(Client(application))
        await asking.create("s")
        assert await asking.publish(0, "one") == "published"
        assert await asking.publish(0, "two") == "published"
        assert await asking.publish(0, "three") == "too_many_writers"
        assert await asking.publish(1, "one") == "published"


@CLOCKED
async def test_a_part_that_nobody_publishes_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a minute here, for a day of a node is long even in virtual time."""
    monkeypatch.setattr(staging, "_KEPT", replace(staging._KEPT, age_s=60))
    async with http_services() as (_, _, application):
        asking = Asking(Client(application))
        await asking.create("s")
        await asking.stage(0, "a", b"1")
        await anyio.sleep(50)
        assert (await plain(application))["transaction_parts"] == 1
        await anyio.sleep(180)
        told = await plain(application)
        assert told["transaction_parts"] == 0 and told["transaction_parts_expired_total"] == 1

"""The tails of many streams in one request."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millpond.pipeline.client.s2_codec import encode_records
from millpond.transports.http.tails import app as tails_app
from tests.node.http_services import http_services
from tests.transports.http.client import Client

BASIN = (b"s2-basin", b"millpond")
JSON = (b"content-type", b"application/json")


class Reader:
    """A client of the node."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def create(self, *names: str) -> None:
        for name in names:
            path = f"/v1/streams/{name.replace('/', '%2F')}"
            assert (await self._client.request("PUT", path, [BASIN, JSON], b"{}")).status < 300

    async def delete(self, name: str) -> None:
        assert (await self._client.request("DELETE", f"/v1/streams/{name}", [BASIN])).status < 300

    async def append(self, name: str, *bodies: bytes) -> None:
        headers = [BASIN, (b"content-type", b"application/protobuf")]
        path = f"/v1/streams/{name.replace('/', '%2F')}/records"
        body = encode_records([(each, [], None) for each in bodies])
        assert (await self._client.request("POST", path, headers, body)).status == 200

    async def ask(self, **query: Any) -> Any:
        body = json.dumps(query).encode()
        return await self._client.request("POST", "/millpond/v1/tails", [BASIN, JSON], body)

    async def tails(self, **query: Any) -> dict[str, int]:
        return {row[0]: row[2] for row in (await self.ask(**query)).json()["streams"]}


async def test_streams_are_found_by_topics_and_by_prefix() -> None:
    async with http_services() as (_, _, application):
        reader = Reader(Client(application))
        await reader.create("orders", "orders/0", "paid/0", "paid/1", "paid/x", "ordersx")
        await reader.append("paid/1", b"a", b"b")
        assert await reader.tails(topics=["paid", "none"]) == {"paid/0": 0, "paid/1": 2}
        assert await reader.tails(topics=["orders"]) == {"orders": 0, "orders/0": 0}
        assert await reader.tails(topics=[]) == {}
        both = await reader.tails(topics=["orders", "paid"])
        assert list(both) == ["orders", "orders/0", "paid/0", "paid/1"]
        assert len(await reader.tails(prefix="")) == 6
        assert list(await reader.tails(prefix="orders", after="orders")) == ["orders/0", "ordersx"]
        for wrong in ({}, {"topics": [], "prefix": ""}):
            assert (await reader.ask(**wrong)).status == 422


async def test_a_tail_is_that_of_the_last_record_and_an_identity_that_of_the_stream() -> None:
    async with http_services() as (_, _, application):
        reader = Reader(Client(application))
        await reader.create("s")
        rows = []
        for number in range(3):
            await reader.append("s", b"%d" % number * 10)
            ((name, identity, tail),) = (await reader.ask(prefix="s")).json()["streams"]
            assert (name, tail) == ("s", number + 1)
            rows.append(identity)
        assert len(set(rows)) == 1
        ((*_, first, size),) = (await reader.ask(topics=["s"], details=True)).json()["streams"]
        assert first == 0 and size >= 30
        await reader.delete("s")
        assert await reader.tails(prefix="") == {}
        await reader.create("s")
        ((_, identity, tail),) = (await reader.ask(prefix="s")).json()["streams"]
        assert tail == 0 and identity not in rows
        await reader.append("s", b"again")
        assert await reader.tails(topics=["s"]) == {"s": 1}


async def test_many_streams_come_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tails_app, "PAGE_MAX", 3)
    monkeypatch.setattr(tails_app, "GROUP_MAX", 2)
    async with http_services() as (_, _, application):
        reader = Reader(Client(application))
        names = [f"s{number}" for number in range(8)]
        await reader.create(*names)
        for details in (False, True):
            found, after = [], ""
            while after is not None:
                page = (await reader.ask(prefix="", after=after, details=details)).json()
                found += [row[0] for row in page["streams"]]
                after = page["next"]
            assert found == names

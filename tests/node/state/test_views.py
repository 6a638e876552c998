"""Events that come through any protocol make the same state (rows E1 to T2)."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from millpond.actors.messages import Mode
from millpond.node.config import ChannelRule
from tests.node.state.node_clients import BASIN, node_clients, put
from tests.state.vectors import STREAMS, records

PLAIN = [each for each in STREAMS if "collections" not in each and "deliveries" not in each]


async def test_every_vector_through_every_protocol_makes_its_state() -> None:
    """A node knows no schemas, so all vectors but those of definitions."""
    async with node_clients() as clients:
        for number, vector in enumerate(PLAIN):
            for way in clients.ways:
                name = f"v{number}-{way.__name__}"
                await clients.streams.stream(name).create()
                await way(name, records(vector))
                assert await clients.state(name) == vector["state"], (way.__name__, vector["name"])
                info = await clients.streams.stream(name).state.info()
                told: dict[str, Any] = vector.get("counts", {})
                assert {key: getattr(info, key) for key in told} == told


async def test_every_vector_through_a_channel_that_feeds_the_stream_makes_its_state() -> None:
    """A client with the receipt of a message finds it in the state; empty messages are not kept."""
    names = [f"tee-{number}" for number in range(len(PLAIN))]
    rules = tuple(ChannelRule(f"in/{name}", Mode.FANOUT, tee=name) for name in names)
    async with node_clients(channels=rules) as clients:
        for name, vector in zip(names, PLAIN, strict=True):
            await clients.by_tee(name, records(vector))
            assert await clients.state(name) == vector["state"], vector["name"]
            info = await clients.streams.stream(name).state.info()
            told: dict[str, Any] = vector.get("counts", {})
            assert {key: getattr(info, key) for key in told} == told


async def test_a_teed_stream_is_read_by_every_protocol() -> None:
    bodies = [put(f"{number}", number) for number in range(30)]
    rules = (ChannelRule("in/*", Mode.QUEUE, tee="users"),)
    async with node_clients(channels=rules) as clients:
        await clients.by_tee("users", bodies)
        assert [each.data async for each in clients.streams.stream("users").records()] == bodies
        assert [each.data for each in await clients.s3p.read("users", count=100)] == bodies
        fetched = await clients.rustlog.fetch("users", 0)
        assert [each.data for each in fetched.records] == bodies
        path = "/v1/streams/users/records?seq_num=0&count=100"
        got = await clients.http.request("GET", path, (*BASIN, (b"s2-format", b"base64")))
        found = json.loads(got.body)["records"]
        assert [base64.b64decode(each["body"]) for each in found] == bodies
        assert not any(each.get("headers") for each in found)


async def test_protocols_take_turns_on_one_stream() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        for turn in range(3):
            for number, way in enumerate([*clients.ways, clients.by_http]):
                await way("users", [put(f"{number}", turn), put("last", way.__name__)])
                assert (await clients.state("users"))["user"]["last"] == way.__name__
        assert (await clients.state("users"))["user"] == {
            **{str(number): 2 for number in range(5)},
            "last": "by_http",
        }


@pytest.mark.parametrize("number", range(4))
async def test_what_was_acked_is_in_the_next_answer(number: int) -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        way = clients.ways[number]
        for turn in range(100):
            await way("users", [put("a", turn)])
            row = await clients.streams.stream("users").state.get("user", "a")
            assert row is not None and row.value == turn


async def test_commands_of_s2_and_empty_records_are_no_events() -> None:
    async with node_clients() as clients:
        await clients.streams.stream("users").create()
        await clients.by_rustlog("users", [put("a", 1), b""])
        from millpond.node.client.streams.records import NewRecord

        await clients.streams.stream("users").append(NewRecord(b"token", [(b"", b"fence")]))
        info = await clients.streams.stream("users").state.info()
        assert info.rejected == {} and info.types == {"user": 1}
        await clients.streams.stream("users").append(put("b", 2))
        assert (await clients.state("users"))["user"] == {"a": 1, "b": 2}

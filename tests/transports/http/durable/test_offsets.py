"""Offsets that clients compute: each way to read gives all records that end above the offset
(docs/reference/durable-streams.md, "Offsets")."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count

import anyio
import pytest
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.actors.runtime.supervisor import contain
from millpond.actors.streams import messages as m
from millpond.transports.http import paths
from millpond.transports.http.app import Api, Application
from millpond.transports.http.durable.app import DurableApi
from millpond.transports.http.durable.interface import DurableSettings
from millpond.transports.http.response import Response
from millpond.transports.http.s2.app import S2Api
from millpond.transports.http.state.app import StateApi
from tests.transports.http.client import Client, Exchange, Got
from tests.transports.http.durable.api_client import (
    CLOCKED,
    JSON,
    TEXT,
    ApiClient,
    api_client,
    header_of,
)

HALF_MAX = 10**16 - 1
LAST = f"{HALF_MAX}_{HALF_MAX}"


def offset(first: int, second: int = 0) -> str:
    return f"{first:016d}_{second:016d}"


def bodies_of_events(output: bytes) -> list[bytes]:
    """The data of the data events of server-sent events, joined."""
    events = output.split(b"\n\n")
    found = [each.split(b"\n")[1:] for each in events if each.startswith(b"event: data\n")]
    return [b"".join(line.removeprefix(b"data:") for line in lines) for lines in found]


async def rest_of(exchange: Exchange) -> bytes:
    output = b""
    while (piece := await exchange.piece()) is not None:
        output += piece
    return output


@pytest.mark.parametrize(
    ("given_", "expected", "following"),
    [
        (offset(0), "123", 3),
        (offset(0, 1), "123", 3),
        (offset(1), "23", 3),
        (offset(1, 1), "23", 3),
        (offset(1, HALF_MAX), "23", 3),
        (offset(3), "", 3),
        (offset(3, 1), "", 3),
        (offset(9), "", 3),
        (LAST, "", 3),
    ],
)
@pytest.mark.parametrize("kind", [TEXT, JSON])
@CLOCKED
async def test_the_worked_offsets_of_a_stream_of_three_appends(
    given_: str, expected: str, following: int, kind: str
) -> None:
    body = (
        expected.encode()
        if kind == TEXT
        else b"[%b]" % b",".join(expected.encode()[i : i + 1] for i in range(len(expected)))
    )
    async with api_client(DurableSettings(long_poll_s=1, events_s=1)) as ds:
        await ds.ask("PUT", "orders", content_type=kind)
        for each in (b"1", b"2", b"3"):
            await ds.ask("POST", "orders", each, content_type=kind)
        got = await ds.ask("GET", f"orders?offset={given_}")
        assert (got.status, got.body) == (200, body)
        assert header_of(got, "stream-next-offset") == offset(following)
        assert header_of(got, "stream-up-to-date") == "true"

        minted = await ds.ask("GET", f"orders?offset={offset(min(int(given_[:16]), 3))}")
        assert header_of(got, "etag") == header_of(minted, "etag")

        got = await ds.ask("GET", f"orders?offset={given_}&live=long-poll")
        assert (got.status, got.body) == ((200, body) if expected else (204, b""))
        assert header_of(got, "stream-next-offset") == offset(following)

        async with ds.open("GET", f"orders?offset={given_}&live=sse") as events:
            assert await events.head() == 200
            output = await rest_of(events)
        assert bodies_of_events(output) == ([body] if expected else [])
        assert b'"streamNextOffset":"%b"' % offset(following).encode() in output


@pytest.mark.parametrize("beyond", [offset(4), offset(9, 5), LAST])
@CLOCKED
async def test_a_live_read_beyond_the_tail_delivers_what_comes_next(beyond: str) -> None:
    """The client was at a node that lost its memory: nothing new is passed over."""
    async with api_client(DurableSettings(long_poll_s=30, events_s=30)) as ds:
        await ds.ask("PUT", "orders", b"1", content_type=TEXT)
        await ds.ask("POST", "orders", b"2", content_type=TEXT)
        async with (
            ds.open("GET", f"orders?offset={beyond}&live=long-poll") as poll,
            ds.open("GET", f"orders?offset={beyond}&live=sse") as events,
        ):
            await events.head()
            first = await events.piece() or b""
            assert offset(2).encode() in first and b"upToDate" in first
            await anyio.sleep(1)
            await ds.ask("POST", "orders", b"3", content_type=TEXT)
            got = await poll.got()
            assert (got.status, got.body) == (200, b"3")
            assert header_of(got, "stream-next-offset") == offset(3)
            assert bodies_of_events(await events.piece() or b"") == [b"3"]


@CLOCKED
async def test_a_closed_stream_is_closed_beyond_its_tail_as_well() -> None:
    async with api_client(DurableSettings(long_poll_s=30)) as ds:
        await ds.ask("PUT", "orders", b"1", content_type=TEXT, stream_closed="true")
        for live in ("", "&live=long-poll"):
            got = await ds.ask("GET", f"orders?offset={offset(7, 7)}{live}")
            assert (got.status, got.body) == (204 if live else 200, b"")
            assert header_of(got, "stream-closed") == "true"
            assert header_of(got, "stream-next-offset") == offset(1)
        async with ds.open("GET", f"orders?offset={LAST}&live=sse") as events:
            await events.head()
            assert b"streamClosed" in await rest_of(events)


ZEROS = "0" * 16
NO_OFFSETS = [
    *("", "-2", "1", "-1%20", "Now", "0" * 33, "0" * 15 + "_" + ZEROS, "0" * 17 + "_" + ZEROS),
    *(ZEROS + "_" + "0" * 15, ZEROS + "_" + "0" * 17, ZEROS + "_" + "0" * 15 + "%20"),
    *("%20" + offset(0), offset(0) + "%0A", offset(0) + "%00", "%D9%A0" * 16 + "_" + ZEROS),
    *(ZEROS + "_-" + "0" * 15, ZEROS + "__" + "0" * 15, "0x" + "0" * 14 + "_" + ZEROS),
]


@CLOCKED
async def test_another_form_is_refused() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"1", content_type=TEXT)
        for live in ("", "&live=long-poll", "&live=sse"):
            for each in NO_OFFSETS:
                got = await ds.ask("GET", f"orders?offset={each}{live}")
                assert (got.status, got.json()["code"]) == (400, "bad_request"), each


@CLOCKED
async def test_a_fork_begins_at_an_offset_that_the_node_gave() -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"1", content_type=TEXT)
        await ds.ask("POST", "orders", b"2", content_type=TEXT)
        source = {"stream_forked_from": "/v1/stream/orders"}
        for at in (offset(1, 1), offset(0, 1), offset(3), offset(9), LAST):
            got = await ds.ask("PUT", "copy", **source, stream_fork_offset=at)
            assert got.status == 400
        assert (await ds.ask("HEAD", "copy")).status == 404
        got = await ds.ask("PUT", "copy", **source, stream_fork_offset=offset(1))
        assert got.status == 201
        assert (await ds.ask("GET", f"copy?offset={offset(0, 1)}")).body == b"1"


# All readers of one stream.


class AllReaders(ApiClient):
    """Clients of Durable Streams, of states and of S2, which the Spark reader uses, on a node."""

    @staticmethod
    @asynccontextmanager
    async def of(streams: DurableSettings) -> AsyncIterator[AllReaders]:
        async with api_client(streams) as ds:
            readers = AllReaders(ds.served, streams)
            services = ds.served.services
            apis: dict[tuple[bytes, ...], Api] = {
                paths.DURABLE: DurableApi(services, streams),
                paths.STATE: StateApi(services, Response(404), 1.0),
                **dict.fromkeys(paths.S2, S2Api(services)),
            }
            guard = partial(contain, "request/http")
            readers.application = Application(services, apis, guard)
            readers.client = Client(readers.application)
            yield readers

    async def catch_up(self, name: str, at: str) -> list[int]:
        found: list[int] = []
        while True:
            got = await self.ask("GET", f"{name}?offset={at}")
            assert got.status == 200, got
            found += numbers(got.body)
            at = header_of(got, "stream-next-offset") or ""
            if header_of(got, "stream-up-to-date"):
                return found

    async def long_poll(self, name: str, at: str) -> list[int]:
        got = await self.ask("GET", f"{name}?offset={at}&live=long-poll")
        return numbers(got.body) if got.status == 200 else []

    async def events(self, name: str, at: str) -> list[int]:
        async with self.open("GET", f"{name}?offset={at}&live=sse") as exchange:
            assert await exchange.head() == 200
            output = await rest_of(exchange)
        return [number for body in bodies_of_events(output) for number in numbers(body)]

    async def s2(self, name: str, at: str) -> list[int]:
        query = f"seq_num={int(at[:16])}&clamp=true"
        headers = ((b"host", b"127.0.0.1:7404"), (b"s2-basin", b"millpond"))
        got: Got = await self.client.request("GET", f"/v1/streams/{name}/records?{query}", headers)
        if got.status == 416:  # S2's word for the tail
            return []
        return [json.loads(each["body"])["value"] for each in got.json()["records"]]

    async def state(self, name: str, at: str) -> list[int]:
        """The changes that a page gets that reconnects behind the record before the offset."""
        described = self.otherwise(name.encode(), m.Describe(0))
        assert isinstance(described, m.StreamDescription)
        place = f"{described.incarnation}.{int(at[:16])}".encode()
        headers = (
            *((b"host", b"127.0.0.1:7404"), (b"accept", b"text/event-stream")),
            (b"last-event-id", place),
        )
        changes: list[int] = []
        async with self.client.open("GET", f"/millpond/state/{name}", headers) as exchange:
            assert await exchange.head() == 200
            while (piece := await exchange.piece()) not in (None, b": \n\n"):
                assert piece is not None
                if piece.startswith(b"event: change"):
                    events = json.loads(piece.partition(b"data: ")[2])["events"]
                    changes += [each["value"] for each in events]
                elif piece.startswith(b"event: state"):
                    # Beyond the tail: all there is, from the beginning.
                    assert int(at[:16]) > described.info.tail
                    return []
        return changes


def numbers(body: bytes) -> list[int]:
    return [each["value"] for each in json.loads(body)]


def change(number: int) -> bytes:
    """A message of the State Protocol."""
    fields = {"type": "n", "key": str(number), "value": number}
    return json.dumps(fields | {"headers": {"operation": "upsert"}}).encode()


APPENDS = st.lists(st.integers(1, 4), max_size=5)


@settings(max_examples=25, deadline=None)
@given(APPENDS, st.integers(0, 20), APPENDS, st.data())
def test_each_reader_gives_all_records_that_end_above_the_offset(
    appends: list[int], forked: int, more: list[int], data: st.DataObject
) -> None:
    """A model of bytes: the k-th record of a stream ends at `k_0`; text comparison decides."""
    numbers_ = count(1)
    inherited = [next(numbers_) for _ in range(sum(appends))]
    point = min(forked, len(inherited))
    own = [next(numbers_) for _ in range(sum(more))]
    contents = {"source": inherited, "fork": inherited[:point] + own}
    half = st.sampled_from((0, 1, HALF_MAX)) | st.integers(0, HALF_MAX)
    asked = data.draw(
        st.lists(st.tuples(st.integers(0, 24) | st.just(HALF_MAX), half), min_size=1, max_size=3)
    )

    async def run() -> None:
        async with AllReaders.of(DurableSettings(long_poll_s=0.02, events_s=0.02)) as ds:
            await ds.ask("PUT", "source", content_type=JSON)
            await append(ds, "source", appends, iter(inherited))
            await ds.ask(
                "PUT",
                "fork",
                stream_forked_from="/v1/stream/source",
                stream_fork_offset=offset(point),
            )
            await append(ds, "fork", more, iter(own))
            for name, content in contents.items():
                for each in asked:
                    at = offset(*each)
                    above = [n for end, n in enumerate(content, 1) if offset(end) > at]
                    assert await ds.catch_up(name, at) == above
                    assert await ds.long_poll(name, at) == above
                    assert await ds.events(name, at) == above
                    assert await ds.s2(name, at) == above
                    if above:
                        assert await ds.state(name, at) == above

    clock = trio.testing.MockClock(autojump_threshold=0)
    anyio.run(run, backend="trio", backend_options={"clock": clock})


async def append(ds: ApiClient, name: str, sizes: list[int], values: object) -> None:
    for size in sizes:
        body = b"[%b]" % b",".join(change(next(values)) for _ in range(size))  # type: ignore[call-overload]
        assert (await ds.ask("POST", name, body, content_type=JSON)).status == 204

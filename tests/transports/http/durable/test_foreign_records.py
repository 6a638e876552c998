"""Records that Durable Streams does not show, at the end of a stream: readers come past them."""

from __future__ import annotations

import anyio
import pytest

from millpond.actors.streams import messages as m
from millpond.transports.http.durable.interface import DurableSettings
from tests.transports.http.durable.api_client import JSON, TEXT, ApiClient, api_client, header_of


def _offset(sequence: int) -> str:
    return f"{sequence:016d}_{0:016d}"


def _add_unshown(ds: ApiClient, name: bytes) -> None:
    """A command of S2 and a record without a body."""
    fence: m.Headers = [(b"", b"fence")]
    ds.otherwise(name, m.Append(0, [b"token"], headers=[fence]), m.Append(0, [b""]))


@pytest.mark.parametrize(("kind", "nothing"), [(TEXT, b""), (JSON, b"[]")])
async def test_a_read_that_begins_at_them_comes_to_the_tail(kind: str, nothing: bytes) -> None:
    async with api_client() as ds:
        await ds.ask("PUT", "orders", b"1", content_type=kind)
        _add_unshown(ds, b"orders")
        got = await ds.ask("GET", f"orders?offset={_offset(1)}")
        assert (got.status, got.body) == (200, nothing)
        assert header_of(got, "stream-next-offset") == _offset(3)
        assert header_of(got, "stream-up-to-date") == "true"
        got = await ds.ask("GET", f"orders?offset={_offset(1)}&live=long-poll")
        assert (got.status, header_of(got, "stream-next-offset")) == (204, _offset(3))
        assert header_of(got, "stream-up-to-date") == "true"


async def test_a_read_that_begins_at_them_hears_that_the_stream_is_closed() -> None:
    async with api_client(DurableSettings(long_poll_s=30)) as ds:
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        _add_unshown(ds, b"orders")
        await ds.ask("POST", "orders", stream_closed="true")
        with anyio.fail_after(60):
            got = await ds.ask("GET", f"orders?offset={_offset(1)}")
            assert (got.status, header_of(got, "stream-closed")) == (200, "true")
            got = await ds.ask("GET", f"orders?offset={_offset(1)}&live=long-poll")
            assert (got.status, header_of(got, "stream-closed")) == (204, "true")
            async with ds.open("GET", f"orders?offset={_offset(1)}&live=sse") as events:
                await events.head()
                assert b"streamClosed" in (await events.piece() or b"")
                assert await events.piece() is None


async def test_an_event_stream_waits_behind_them() -> None:
    settings = DurableSettings(events_s=0.35, heartbeat_s=0.1)
    async with api_client(settings) as ds:
        await ds.ask("PUT", "orders", b"x", content_type=TEXT)
        with anyio.fail_after(60):
            async with ds.open("GET", f"orders?offset={_offset(1)}&live=sse") as events:
                await events.head()
                await events.piece()
                _add_unshown(ds, b"orders")
                rest = b""
                while (piece := await events.piece()) is not None:
                    rest += piece
            async with ds.open("GET", f"orders?offset={_offset(1)}&live=sse") as events:
                await events.head()
                first = await events.piece() or b""
        assert 1 <= rest.count(b":\n\n") <= 4
        assert _offset(3).encode() in first and b"upToDate" in first

"""The published Python client of Durable Streams, sync and async, against a node."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from tests.node.processes import environment, serving

durable_streams = pytest.importorskip("durable_streams", reason="an extra, `dev`")

QUIET = ("--p2p", "off", "--ws", "off", "--http", "127.0.0.1:0", "--long-poll", "0.5")
BUSY = {"MILLPOND_HTTP_HEARTBEAT_S": "0.05"}
"""Heartbeats in between disturb nobody."""
JSON = "application/json"


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with serving(*QUIET, env=environment(**BUSY)) as node:
        yield f"http://{node.ready['listeners']['http']}/v1/stream"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def test_json_there_and_back(base: str) -> None:
    url = f"{base}/pypi/json"
    with durable_streams.DurableStream.create(url, content_type=JSON) as handle:
        handle.append({"n": 1})
        handle.append({"n": [2]})
        assert handle.head().content_type == JSON
    with durable_streams.stream(url, live=False) as found:
        assert found.read_json() == [{"n": 1}, {"n": [2]}]


def test_bytes_there_and_back(base: str) -> None:
    url = f"{base}/pypi/bytes"
    with durable_streams.DurableStream.create(url) as handle:
        handle.append(b"\x00\xff")
        handle.append(b"\n")
    with durable_streams.stream(url, live=False) as found:
        assert found.read_bytes() == b"\x00\xff\n"


def test_a_read_goes_on_where_another_ended(base: str) -> None:
    url = f"{base}/pypi/resumed"
    with durable_streams.DurableStream.create(url, content_type="text/plain") as handle:
        handle.append("one")
        with durable_streams.stream(url, live=False) as first:
            assert first.read_text() == "one"
            offset = first.offset
        handle.append("two")
    with durable_streams.stream(url, offset=offset, live=False) as rest:
        assert rest.read_text() == "two"


def test_errors_are_the_clients_own(base: str) -> None:
    url = f"{base}/pypi/errors"
    with pytest.raises(durable_streams.StreamNotFoundError):
        durable_streams.stream(url, live=False)
    with durable_streams.DurableStream.create(url, content_type=JSON) as handle:
        with pytest.raises(durable_streams.StreamExistsError):
            durable_streams.DurableStream.create(url, content_type="text/plain")
        handle.append(1, seq="b")
        with pytest.raises(durable_streams.SeqConflictError):
            handle.append(2, seq="a")
        handle.delete()


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_it_follows(base: str, live: str) -> None:
    url = f"{base}/pypi/followed-{live}"
    async with await durable_streams.AsyncDurableStream.create(url, content_type=JSON) as handle:
        found: list[object] = []

        async def follow() -> None:
            async with durable_streams.astream(url, offset="-1", live=live) as response:
                async for item in response.iter_json():
                    found.append(item)
                    if len(found) == 3:
                        return

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                for n in range(3):
                    await handle.append({"n": n})
    assert found == [{"n": 0}, {"n": 1}, {"n": 2}]

"""Cold streams: the older records of a stream are in the replica alone, and are read there."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from millpond.node.client.s3p.client import FIRST, S3p, connect_s3p
from millpond.node.client.s3p.records import RecordId
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.node.replica import cold, service
from millpond.node.replica.errors import ObjectStoreAway
from millpond.node.replica.object_store import FolderObjects
from millpond.node.replica.objects import COLD
from tests.node.outbox.peer_nodes import until

pytestmark = pytest.mark.anyio

LIMIT_S = 60.0
CLOSED = dict.fromkeys(("ws", "rustlog", "http"), "off")
BODY_BYTES = 10_000
APPENDS, RECORDS = 40, 10
LOCAL_BYTES = 2**20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class ColdFolder(FolderObjects):
    """A folder that counts the requests for cold objects, and answers none while it is away."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.fetched: list[str] = []
        self.is_away = False

    def get(self, name: str) -> bytes:
        if name.startswith(COLD):
            self.fetched.append(name)
            if self.is_away:
                raise ObjectStoreAway("no answer within 30 s")
        return super().get(name)


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ColdFolder:
    found = ColdFolder(tmp_path / "replica")
    monkeypatch.setattr(service, "open_object_store", lambda url: found)
    monkeypatch.setattr(service, "SNAPSHOT_LOOK_S", 0.01)
    monkeypatch.setattr(cold, "LOOK_S", 0.01)
    monkeypatch.setattr(cold, "AWAY_S", 0.0)
    return found


def config_of(tmp_path: Path, **settings: Any) -> Config:
    """A node whose journal is small, so that records get to the files of streams soon."""
    return Config(
        **{
            "data": str(tmp_path / "data"),
            "replica": f"file://{tmp_path}/replica",
            "p2p": "off",
            "s3p": "127.0.0.1:0",
            "segment_bytes": 2**18,
            "journal_bytes_max": 2**19,
            "stream_local_bytes_max": LOCAL_BYTES,
            **CLOSED,
            **settings,
        }
    )


@asynccontextmanager
async def serving(config: Config) -> AsyncIterator[tuple[Node, S3p]]:
    with anyio.fail_after(LIMIT_S):
        async with Node(config) as node, connect_s3p(node.listeners["s3p"]) as client:
            yield node, client


def body(number: int) -> bytes:
    return b"%08d" % number + bytes(BODY_BYTES - 8)


async def fill(client: S3p, stream: str = "logs") -> None:
    """Create a stream, and append four megabytes."""
    await client.create(stream)
    for number in range(APPENDS):
        first = number * RECORDS
        await client.append(stream, [body(first + each) for each in range(RECORDS)])


async def numbers_of(client: S3p, stream: str = "logs") -> list[int]:
    """The numbers of all records, in order."""
    found: list[int] = []
    start = FIRST
    while records := await client.read(stream, start, count=50):
        found += (int(each.data[:8]) for each in records)
        last = records[-1].id
        start = RecordId(last.ms, last.seq + 1)
    return found


ALL = list(range(APPENDS * RECORDS))


def local_bytes(tmp_path: Path) -> int:
    """The bytes of the files of streams."""
    files = (tmp_path / "data" / "partitions").rglob("*")
    return sum(each.stat().st_size for each in files if each.is_file())


def cold_of(node: Node) -> cold.ColdStreams:
    assert node.replica is not None
    return node.replica.cold


async def test_older_records_are_read_where_they_are(tmp_path: Path, objects: ColdFolder) -> None:
    async with serving(config_of(tmp_path)) as (node, client):
        await fill(client)
        await until(lambda: cold_of(node).stats.moved_bytes > 2 * 2**20, LIMIT_S)
        assert await numbers_of(client) == ALL
        assert objects.fetched
    async with serving(config_of(tmp_path)) as (node, client):
        objects.fetched.clear()
        assert await numbers_of(client) == ALL
        assert objects.fetched
        assert local_bytes(tmp_path) < 2.5 * 2**20

"""A node in this process, and the published Python client of S2 with its retries off."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from millpond.node.config import Config, Durability
from millpond.node.node import Node

collect_ignore_glob: list[str] = []
try:
    import s2_sdk
except ImportError:  # it is an extra, `dev`; without it these tests are not there
    collect_ignore_glob = ["test_*.py"]
else:
    ONCE = s2_sdk.Retry(max_attempts=1)

BASIN = "test-basin"
FREE = {"p2p": "off", "ws": "off", "s3p": "off", "rustlog": "off", "http": "127.0.0.1:0"}


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The listener and the client are of asyncio."""
    return "asyncio", {"use_uvloop": True}


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The settings of the node's folders."""
    if request.param == "memory":
        return {}
    return {"data": str(tmp_path / "node")}


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Node]:
    """A node in memory with an HTTP listener, unless the settings say otherwise. Trims take effect
    at once."""
    kept = Durability.DISK if "data" in settings else Durability.MEMORY
    told = {
        "durability": kept,
        "drain_timeout_s": 1.0,
        "s2_trim_grace_s": 0.0,
        **FREE,
        **settings,
    }
    async with Node(Config(**told)) as node:
        yield node


def client(node: Node, **options: Any) -> Any:
    """A client of a node; every failure shows, for nothing is tried twice."""
    url = f"http://{node.listeners['http']}"
    return client_at(url, **options)


def client_at(url: str, **options: Any) -> Any:
    """The same, by the node's URL."""
    options.setdefault("retry", ONCE)
    return s2_sdk.S2("ignored", endpoints=s2_sdk.Endpoints(account=url, basin=url), **options)


@pytest.fixture
async def node(anyio_backend: object) -> AsyncIterator[Node]:
    async with running() as node:
        yield node


@pytest.fixture
async def s2(node: Node) -> AsyncIterator[Any]:
    async with client(node) as s2:
        yield s2


@pytest.fixture
async def basin(s2: Any) -> Any:
    await s2.create_basin(BASIN)
    return s2.basin(BASIN)


@pytest.fixture
async def stream(basin: Any) -> Any:
    await basin.create_stream("orders")
    return basin.stream("orders")

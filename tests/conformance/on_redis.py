"""The suites of the protocols on a store in Redis, in place of that in memory:

    python -m pytest -p tests.conformance.on_redis tests/conformance -k tcp-uvloop

Each node has a prefix of its own in one server that keeps nothing on a disk, and so promises what a
node in memory does.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random

import anyio.to_thread
import pytest

from millpond.actors.messages import Durability
from millpond.actors.store.redis.connection import connect_redis, parse_redis_url
from millpond.actors.store.redis.store import RedisStore
from millpond.node import node, stream_cells
from millpond.node.data_folder import LoopRuntime
from millpond.node.environment import current_environment
from millpond.node.node import Node
from tests.redis_server import redis_server

_numbers = count()


class StoreInRedis(RedisStore):
    """Takes the place of `MemoryStore` where nodes are made."""

    url_of_server = ""

    def __init__(self) -> None:
        url = parse_redis_url(f"{self.url_of_server}?prefix=node{next(_numbers)}")
        around = LoopRuntime(current_environment().wall, Random(1))
        super().__init__(url, connect_redis, around, lambda _: Durability.MEMORY)
        self.open(Durability.MEMORY, "suite")


@pytest.fixture(autouse=True, scope="session")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("redis")
    with (
        redis_server(folder, "--appendonly", "no") as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(StoreInRedis, "url_of_server", server.url)
        patch.setattr(Node, "_close_store", _close_both)
        for module in (node, stream_cells):
            patch.setattr(module, "MemoryStore", StoreInRedis)
        yield


_close_store = Node._close_store


async def _close_both(self: Node) -> None:
    if isinstance(self._store, StoreInRedis):
        await anyio.to_thread.run_sync(self._store.close)
    await _close_store(self)

"""A listener that ends while a connection is accepted leaves no socket behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import anyio
import pytest

from millpond import Config, Node


async def _end_while_accepting(turns: int) -> None:
    config = Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    async with Node(config) as node:
        host, port = node.listeners["p2p"].rsplit(":", 1)
        newcomer = socket.create_connection((host, int(port)))
        for _ in range(turns):
            await asyncio.sleep(0)
    newcomer.close()


@pytest.mark.parametrize("turns", range(5))
def test_a_node_that_ends_while_it_accepts_leaves_no_socket(turns: int) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        anyio.run(_end_while_accepting, turns, backend="asyncio")
        gc.collect()
    assert [str(each.message) for each in told if each.category is ResourceWarning] == []

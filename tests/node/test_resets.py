"""Connections that are reset before the node gets to know them."""

from __future__ import annotations

import socket
import struct

import anyio.lowlevel

from millpond import Config, Node, connect


async def test_resets_while_they_wait_to_be_accepted_do_not_end_the_node() -> None:
    async with Node(
        Config(p2p="127.0.0.1:0", ws="off", s3p="off", rustlog="off", http="off")
    ) as node:
        host, port = node.listeners["p2p"].rsplit(":", 1)
        for number in range(300):
            with socket.create_connection((host, int(port))) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if number % 20 == 0:
                await anyio.lowlevel.checkpoint()
        async with connect(f"tcp://{host}:{port}", channel="chat/1") as channel:
            assert (await channel.put(b"still here")).id

"""Files of chats in tests: they are sent and read as the terminal and the page do it."""

from __future__ import annotations

import os
from typing import Any

import anyio

from millpond.node.chat.records import Kind, Record, Transfer
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.file_format import CHUNK_BYTES
from tests.node.chat.chat_client import ask, history
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode


async def send_file(
    node: Node,
    peer: str,
    data: bytes,
    name: str = "a.bin",
    uuid: bytes | None = None,
    **fields: str,
) -> dict[str, Any]:
    """The answer to the last request, or the first with an error."""
    uuid = uuid or os.urandom(16)
    body = {"peer": peer, "uuid": uuid}
    begun = await ask(node, PeerOperation.FILE_BEGIN, size=len(data), name=name, **body, **fields)
    if begun["error"]:
        return begun
    parts = [data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)] or [b""]
    at = int(begun["next"])
    while at < len(parts):
        chunks = parts[at : at + 4]
        answer = await ask(node, PeerOperation.FILE_CHUNKS, first=at, chunks=chunks, **body)
        at = int(answer["next"])
    return await ask(node, PeerOperation.FILE_SEND, **body)


async def file_records(node: Node, peer: PeerNode, kind: Kind) -> list[tuple[int, Record]]:
    found = enumerate(await history(node, peer))
    return [(at, each) for at, each in found if each.kind is kind and each.file is not None]


async def transfers(node: Node, peer: PeerNode, kind: Kind) -> list[tuple[Transfer, str]]:
    return [
        (each.transfer, each.text)
        for each in await history(node, peer)
        if each.kind is kind and each.transfer is not None
    ]


async def until_transfer(
    node: Node, peer: PeerNode, kind: Kind, state: Transfer, count: int = 1
) -> str:
    """The reason in the record of a state, once there are so many of it."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            found = [text for each, text in await transfers(node, peer, kind) if each is state]
            if len(found) >= count:
                return found[-1]
            await anyio.sleep(0.02)


async def read_file(node: Node, peer: PeerNode, kind: Kind = Kind.IN, number: int = 0) -> bytes:
    """The content of a file of the conversation."""
    sequence, _ = (await file_records(node, peer, kind))[number]
    chunks: list[bytes] = []
    while True:
        answer = await ask(
            node,
            PeerOperation.FILE_READ,
            peer=peer.name,
            sequence=sequence,
            first=len(chunks),
            count=4,
        )
        if not answer["chunks"]:
            return b"".join(chunks)
        chunks += answer["chunks"]

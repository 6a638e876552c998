"""Groups between nodes in tests: what is asked of a node, and what the history of a group holds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path
from typing import Any

import anyio

from millpond.actors.errors import UnknownStream
from millpond.node.chat.groups.group_task import group_stream
from millpond.node.chat.records import Kind, Record, decode_record
from millpond.node.node import Node
from millpond.node.outbox.messages import PeerOperation
from millpond.node.peers.identity import public_key_of
from tests.node.chat.chat_client import ask
from tests.node.outbox.peer_nodes import DEADLINE_S, PeerNode

TURN_S = 0.02


def acquainted(folder: Path, *names: str, hub: bool = False) -> list[PeerNode]:
    """People who know each other; with a `hub` the first one alone knows the others."""
    people = [PeerNode(folder, name) for name in names]
    for me in people:
        for other in people:
            if me is not other and (not hub or people[0] in (me, other)):
                me.knows(other)
                me.learns_key_of(other)
    return people


async def create(node: Node, *members: str, name: str = "pond") -> str:
    answer = await ask(node, PeerOperation.GROUP_CREATE, name=name, members=members)
    assert answer["error"] is None, answer
    group: str = answer["id"]
    return group


async def change(node: Node, group: str, what: str, *members: str, **fields: Any) -> str | None:
    """The error, if there is one."""
    answer = await ask(
        node, PeerOperation.GROUP_CHANGE, group=group, change=what, members=members, **fields
    )
    error: str | None = answer["error"]
    return error


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(DEADLINE_S):
        for _ in count():
            if await holds():
                return
            await anyio.sleep(TURN_S)


async def summary(node: Node, group: str) -> dict[str, Any] | None:
    chats = (await ask(node, PeerOperation.CHATS))["chats"]
    return next((each["group"] for each in chats if each["id"] == group), None)


async def accept(node: Node, group: str, *, accepts: bool = True) -> None:
    async def is_invited() -> bool:
        found = await summary(node, group)
        return found is not None and found["status"] == "invited"

    await eventually(is_invited)
    answer = await ask(node, PeerOperation.GROUP_ANSWER, group=group, accept=accepts)
    assert answer["error"] is None, answer


async def until_members(wanted: int, group: str, *nodes: Node) -> None:
    for node in nodes:

        async def is_whole(node: Node = node) -> bool:
            found = await summary(node, group)
            return found is not None and found["members"] == wanted

        await eventually(is_whole)


async def records(node: Node, group: str) -> list[Record]:
    stream = node.peer_services._local_stream(group_stream(public_key_of(group)))
    try:
        tail = (await stream.describe()).info.tail
    except UnknownStream:
        return []
    return [decode_record(body) async for _, body in stream.read(0, tail)]


async def texts(node: Node, group: str) -> list[str]:
    return [each.text for each in await records(node, group) if each.kind is Kind.IN]


async def notes(node: Node, group: str) -> list[str]:
    return [each.text for each in await records(node, group) if each.kind is Kind.NOTE]


async def until_texts(node: Node, group: str, wanted: list[str]) -> None:
    async def are_there() -> bool:
        return len(await texts(node, group)) >= len(wanted)

    await eventually(are_there)
    assert await texts(node, group) == wanted

"""`Channel.jobs` and a real node: put, worked on, dead and back, over restarts of the node."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import LeaseLost, Malformed, NotAQueue, NotFound
from millpond.actors.messages import Durability
from millpond.node.client.channel import Channel
from millpond.node.client.connect import connect
from millpond.node.config import Config
from millpond.node.node import Node
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.jobs.bodies import JobOperation as Op

HOUR_MS = 3_600_000


def config(data: Path | None = None) -> Config:
    off = {"ws": "off", "s3p": "off", "rustlog": "off", "http": "off"}
    if data is None:
        return Config(p2p="127.0.0.1:0", **off)
    return Config(p2p="127.0.0.1:0", data=str(data), durability=Durability.DISK, **off)


@asynccontextmanager
async def running_node(data: Path | None = None) -> AsyncIterator[str]:
    """The address of a node that runs for a block."""
    with anyio.fail_after(60):
        async with Node(config(data)) as node:
            yield f"tcp://{node.listeners['p2p']}"


def producer(url: str, channel: str = "jobs/mail"):  # type: ignore[no-untyped-def]
    return connect(url, channel, role="producer", mode="queue")


def worker(url: str, **how: int):  # type: ignore[no-untyped-def]
    return connect(url, "jobs/mail", role="worker", mode="queue", **how)


async def put(channel: Channel, key: int, data: bytes = b"job", **more: object) -> int:
    kept = await channel.jobs(Op.PUT, {"key": key, "data": data, **more})
    return int(kept["id"])


def now_ms() -> int:
    return int(time.time() * 1000)


async def test_a_job_from_put_to_dead_letter_and_back() -> None:
    async with running_node() as url, producer(url) as mails:
        old = await put(mails, 1, b"hello", unique=b"alice")
        again = await mails.jobs(Op.PUT, {"key": 2, "data": b"other", "unique": b"alice"})
        assert (again["id"], again["existing"]) == (old, True)
        async with worker(url) as hand:
            message = await hand.receive(5)
            assert (message.id, message.data) == (old, b"hello")
            shown = await mails.jobs(Op.SHOW, {"id": old})
            assert shown["state"] == "leased" and shown["leased_until"] > now_ms()
            done = await hand.jobs(Op.REJECT, {"id": old, "reason": "no such address"})
            assert done == {"state": "leased"}
            (dead,) = (await mails.jobs(Op.LIST, {"state": "dead"}))["jobs"]
            assert (dead["origin"], dead["reason"]) == (old, "no such address")
            with pytest.raises(LeaseLost):
                await hand.jobs(Op.REJECT, {"id": old})
            moved = await mails.jobs(Op.RETRY_DEAD, {"ids": [dead["id"]]})
            assert moved == {"count": 1, "more": False}
            message = await hand.receive(5)
            assert (message.data, message.attempt) == (b"hello", 1)
            await mails.jobs(Op.CANCEL, {"id": message.id})
        counts = await mails.jobs(Op.COUNTS, {})
        assert counts == dict.fromkeys(
            ("ready", "delayed", "leased", "dead", "workers", "oldest", "limited"), 0
        ) | {"paused": False}


async def test_refusals_are_errors_of_their_own() -> None:
    async with running_node() as url, connect(url, "chat/1") as chat, producer(url) as mails:
        with pytest.raises(NotAQueue):
            await chat.jobs(Op.COUNTS, {})
        with pytest.raises(NotFound):
            await mails.jobs(Op.SHOW, {"id": 5})
        with pytest.raises(Malformed):
            await mails.jobs(99, {})


async def test_nothing_is_forgotten_when_the_node_is_started_again(tmp_path: Path) -> None:
    due = now_ms() + HOUR_MS
    async with running_node(tmp_path) as url, producer(url) as mails:
        waiting = await put(mails, 1, b"waiting", due=due, unique=b"a")
        dead = await put(mails, 2, b"dead")
        async with worker(url) as hand:
            assert (await hand.receive(5)).id == dead
            await hand.jobs(Op.REJECT, {"id": dead, "reason": "why not"})
            slow = await put(mails, 3, b"slow")
            message = await hand.receive(5)
            await message.nack(delay=1800)
            await hand.ping()
    async with running_node(tmp_path) as url, producer(url) as mails, worker(url, window=4) as hand:
        rows = {row["data"]: row for row in (await mails.jobs(Op.LIST, {}))["jobs"]}
        assert {row["state"] for row in rows.values()} == {"delayed", "dead"} and len(rows) == 3
        assert (rows[b"waiting"]["id"], rows[b"waiting"]["due"]) == (waiting, due)
        assert rows[b"slow"]["due"] > now_ms() + HOUR_MS / 3 and rows[b"slow"]["attempt"] == 1
        assert (rows[b"dead"]["origin"], rows[b"dead"]["reason"]) == (dead, "why not")
        same = await mails.jobs(Op.PUT, {"key": 9, "data": b"x", "unique": b"a"})
        assert (same["id"], same["existing"]) == (waiting, True)
        assert (await mails.jobs(Op.RETRY_DEAD, {"all": True}))["count"] == 1
        assert (await hand.receive(5)).data == b"dead"
        await mails.jobs(Op.RETRY, {"id": slow})
        assert (await hand.receive(5)).id == slow
    async with running_node(tmp_path) as url, worker(url, window=4) as hand:
        assert {(await hand.receive(5)).data for _ in range(2)} == {b"dead", b"slow"}


async def test_what_was_asked_before_the_goodbye_is_answered() -> None:
    """Also what the dead letters answer, in another turn."""
    async with running_node() as url:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            hello = bytes.fromhex(
                "80 50325042 01 01 01 01 0009 6a6f62732f6d61696c 05 0002 9697 0e 0001 02"
            )
            counts = p.encode(p.Jobs(5, Op.COUNTS, b"\x80"))
            packets = (hello, counts, p.GOODBYE)
            await stream.send(b"".join(len(each).to_bytes(4, "big") + each for each in packets))
            received = b""
            while True:
                try:
                    received += await stream.receive()
                except anyio.EndOfStream:
                    break
        assert b"\x97\x00\x00\x00\x05\x08\x88" in received

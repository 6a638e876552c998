"""A disk that fails under a chat: what was not kept was not said, and nothing is said twice."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import anyio
import pytest

from millpond.actors.errors import RequestError
from millpond.node.chat.records import Kind
from millpond.node.node import Node
from tests.node.chat.chat_client import couple, history, received, say
from tests.node.outbox.peer_nodes import DEADLINE_S
from tests.node.test_stream_faults import FaultyDisk

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


async def say_patiently(node: Node, peer: str, text: str, uuid: bytes) -> None:
    with anyio.fail_after(DEADLINE_S):
        while True:
            try:
                await say(node, peer, text, uuid=uuid)
            except RequestError:
                await anyio.sleep(0.1)
            else:
                return


async def test_what_could_not_be_kept_is_said_once_when_it_can(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    disk, uuid = FaultyDisk(), os.urandom(16)
    async with Node(alice.config, disk=disk) as here, bob.node() as there:
        await say(here, "bob", "before")
        assert await received(there, alice, 1) == ["before"]
        disk.is_broken = True
        for _ in range(2):
            with pytest.raises(RequestError):
                with anyio.fail_after(DEADLINE_S):
                    await say(here, "bob", "the disk fails", uuid=uuid)
        disk.is_broken = False
        await say_patiently(here, "bob", "the disk fails", uuid)
        await say_patiently(here, "bob", "after", os.urandom(16))
        assert await received(there, alice, 3) == ["before", "the disk fails", "after"]
        said = [each.text for each in await history(here, bob) if each.kind is Kind.OUT]
        assert said == ["before", "the disk fails", "after"]


async def test_what_comes_while_the_disk_fails_is_shown_once_when_it_works(tmp_path: Path) -> None:
    alice, bob = couple(tmp_path)
    disk = FaultyDisk()
    async with alice.node() as here, Node(bob.config, disk=disk) as there:
        await say(here, "bob", "before")
        assert await received(there, alice, 1) == ["before"]
        disk.is_broken = True
        texts = [f"message {number}" for number in range(5)]
        for text in texts:
            await say(here, "bob", text)
        await anyio.sleep(0.3)
        disk.is_broken = False
        assert await received(there, alice, 6) == ["before", *texts]

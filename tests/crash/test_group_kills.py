"""kill -9 of any member or the relay at any time loses no accepted message or file of a group,
shows none twice or out of order, and loses no change of the group (docs/guides/chat.md, Groups).

Bob and Carol are no contacts: what they say to each other passes through Alice, files too.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.node.chat.file_operations import size_text
from millpond.node.chat.messages import ChatInfo
from millpond.node.chat.records import Kind, Record
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.files import KnownFiles, send_file
from millpond.node.cli.exit_codes import Failure
from millpond.node.client.connect import connect
from millpond.node.client.probe import PROBE
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from tests.crash.test_chat_kills import PAUSE_S, SAID_S, SETTLED_S, Mortal
from tests.node.chat.chat_processes import ChatProcess

pytestmark = pytest.mark.anyio

KILLS = 8
FILE_EVERY = 20
FILE_BYTES = 2**20 + 5
"""Every so many texts a file of this size is sent."""
MEMBERS = 3


@pytest.fixture
def anyio_backend() -> str:
    """Kills hit other processes: the event library of this one does not matter."""
    return "asyncio"


@asynccontextmanager
async def asking(me: ChatProcess) -> AsyncIterator[ChatClient]:
    async with connect(f"tcp://{me.address}", PROBE, role="consumer", wait_s=20.0) as channel:
        yield ChatClient(channel)


async def group_of(client: ChatClient, name: str) -> ChatInfo:
    """The group, once the node has heard of it."""
    while True:
        try:
            return await client.chat_with(name)
        except Failure:
            await anyio.sleep(SAID_S)


async def until_whole(client: ChatClient) -> None:
    while True:
        chat = await group_of(client, "pond")
        if chat.group is not None and chat.group.members == MEMBERS:
            return
        await anyio.sleep(SAID_S)


async def records_of(me: ChatProcess, name: str) -> list[Record]:
    async with asking(me) as client:
        return [record for _, record in await client.history(await client.chat_with(name), 0)]


async def heard_of(me: ChatProcess, name: str, author: str) -> list[str]:
    """The texts of another member, as they are shown."""
    found = await records_of(me, name)
    return [each.text for each in found if each.kind is Kind.IN and each.by == author]


async def files_of(me: ChatProcess, name: str, author: str) -> list[bytes]:
    """The hashes of the files of another member, of all that are complete."""
    async with asking(me) as client:
        chat, files, found = await client.chat_with(name), KnownFiles(), []
        for sequence, record in await client.history(chat, 0):
            files.learn(sequence, record)
        for each in reversed(list(files.received())):
            if each.record.by != author or each.record.file is None:
                continue
            digest = sha256()
            for at in range(0, each.record.file.chunks, CHUNKS_AT_ONCE):
                for chunk in await client.read_file(chat, each.sequence, at):
                    digest.update(chunk)
            found.append(digest.digest())
        return found


class Writer:
    """Says one thing after another to the group, each when the one before was accepted."""

    def __init__(self, me: ChatProcess, folder: Path) -> None:
        self.me = me
        self.folder = folder
        self.accepted: list[str] = []
        self.files: list[bytes] = []
        """The hashes of the files that were sent."""
        self.is_over = False

    async def run(self) -> None:
        async with connect(f"tcp://{self.me.address}", PROBE, role="consumer") as channel:
            client = ChatClient(channel)
            chat = await group_of(client, "pond")
            for number in count():
                if self.is_over:
                    return
                text = f"{self.me.name} says {number}"
                await client.say(chat, text, uuid=os.urandom(16))
                self.accepted.append(text)
                if number % FILE_EVERY == 0:
                    await self._send_file(client, chat, f"{self.me.name}-{number}.bin")
                await anyio.sleep(4 * SAID_S)

    async def _send_file(self, client: ChatClient, chat: ChatInfo, name: str) -> None:
        path, data = self.folder / name, os.urandom(FILE_BYTES)
        await anyio.to_thread.run_sync(path.write_bytes, data)
        await send_file(client, chat, path, os.urandom(16))
        self.accepted.append(f"file: {name} ({size_text(FILE_BYTES)})")
        self.files.append(sha256(data).digest())


@pytest.mark.parametrize("seed", [1])
async def test_kills_lose_no_message_of_a_group_and_show_none_twice(
    tmp_path: Path, seed: int
) -> None:
    rng = Random(seed)
    relay = ChatProcess(tmp_path, "relay", "--relay")
    alice, bob, carol = people = [
        ChatProcess(tmp_path, name, "--via", "relay") for name in ("alice", "bob", "carol")
    ]
    for each in people:
        each.meet(relay)
        each.do("peer", "relay", "relay")
        relay.meet(each, dials=False)
    for each in (bob, carol):
        alice.meet(each)
        each.meet(alice)
    with ExitStack() as stack:
        mortals = [Mortal(each, stack) for each in (relay, *people)]
        async with asking(alice) as client:
            made = await client.group_create("pond", ["bob", "carol"])
            assert made.error is None
        for each in (bob, carol):
            async with asking(each) as client:
                with anyio.fail_after(SETTLED_S):
                    chat = await group_of(client, "pond")
                answer = await client.group_answer(chat, accept=True)
                assert answer.error is None
        for each in people:
            async with asking(each) as client:
                with anyio.fail_after(SETTLED_S):
                    await until_whole(client)

        async with asking(alice) as client:
            group = (await client.chat_with("pond")).group
        assert group is not None
        ids = {"alice" if name == "you" else name: id_ for id_, name in group.names.items()}
        writers = [Writer(each, tmp_path) for each in people]
        async with anyio.create_task_group() as tasks:
            for writer in writers:
                tasks.start_soon(writer.run)
            for number in range(KILLS):
                await anyio.sleep(rng.uniform(*PAUSE_S))
                victim = mortals[number % 4] if number < 4 else rng.choice(mortals)
                await anyio.to_thread.run_sync(victim.kill)
            await anyio.sleep(1.0)
            for writer in writers:
                writer.is_over = True
        async with asking(alice) as client:
            chat = await client.chat_with("pond")
            renamed = await client.group_change(chat, "rename", text="brook")
            assert renamed.error is None
        await anyio.to_thread.run_sync(mortals[1].kill)

        for me in people:
            for writer in writers:
                if writer.me is me:
                    continue
                with anyio.move_on_after(SETTLED_S):
                    name = "pond"
                    while True:
                        async with asking(me) as client:
                            chats = await client.chats()
                        name = next(each.name for each in chats if each.group is not None)
                        heard = await heard_of(me, name, ids[writer.me.name])
                        if name == "brook" and len(heard) >= len(writer.accepted):
                            break
                        await anyio.sleep(0.2)
                assert await heard_of(me, "brook", ids[writer.me.name]) == writer.accepted
                author, wanted = ids[writer.me.name], len(writer.files)
                with anyio.move_on_after(SETTLED_S):
                    while len(await files_of(me, "brook", author)) < wanted:  # noqa: ASYNC110
                        await anyio.sleep(0.2)
                assert await files_of(me, "brook", author) == writer.files
                assert wanted > 1
            said = [each for each in await records_of(me, "brook") if each.kind is Kind.NOTE]
            assert not [each.text for each in said if "not arrive" in each.text]
        assert all(len(writer.accepted) > KILLS for writer in writers)

"""kill -9 of either node or the relay at any time loses no accepted message, edit, deletion,
reaction or file of a chat, nor the answer to an invite, and shows none twice or out of order
(docs/guides/chat.md; PA-32, PS-13)."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from hashlib import sha256
from itertools import count
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond.node.chat.actions import Action, said_text
from millpond.node.chat.file_operations import size_text
from millpond.node.chat.messages import ChatInfo
from millpond.node.chat.records import Kind
from millpond.node.cli.chat.client import ChatClient
from millpond.node.cli.chat.files import KnownFiles, send_file
from millpond.node.cli.chat.shown_messages import ShownMessages
from millpond.node.cli.exit_codes import Failure
from millpond.node.client.connect import connect
from millpond.node.client.probe import PROBE
from millpond.node.outbox.file_requests import CHUNKS_AT_ONCE
from tests.node.chat.chat_processes import ChatProcess
from tests.node.processes import Serving

pytestmark = pytest.mark.anyio

KILLS = 6
PAUSE_S = 0.4, 1.6
SAID_S = 0.02
SETTLED_S = 60.0
CHANGES = (
    (2, Action.EDIT, "edited"),
    (3, Action.REACT, "\N{WAVING HAND SIGN}"),
    (5, Action.DELETE, ""),
)
"""Every so many texts are changed so."""
FILE_EVERY = 12
FILE_BYTES = 3 * 2**20 + 5
"""Every so many texts a file of this size is sent: it takes long enough to be interrupted."""


@pytest.fixture
def anyio_backend() -> str:
    """Kills hit other processes: the event library of this one does not matter."""
    return "asyncio"


class Mortal:
    """A friend whose node is killed, and started again."""

    def __init__(self, friend: ChatProcess, stack: ExitStack) -> None:
        self.friend = friend
        self._stack = stack
        self.node: Serving = stack.enter_context(friend.serving())

    def kill(self) -> None:
        self.node.process.kill()
        self.node.process.wait()
        self.node = self._stack.enter_context(self.friend.serving())


Said = tuple[str, str, str]
"""A message: its text, its action, and the uuid of the message that it is about."""


class Writer:
    """Says one thing after another, each when the one before was accepted: texts, of which some are
    edited, some are deleted, and some get a reaction."""

    def __init__(self, me: ChatProcess, other: ChatProcess, folder: Path) -> None:
        self.accepted: list[Said] = []
        self.files: list[bytes] = []
        """The hashes of the files that were sent."""
        self._folder = folder
        self.is_over = False
        self._me = me
        self._other = other

    async def run(self) -> None:
        async with connect(f"tcp://{self._me.address}", PROBE, role="consumer") as channel:
            asking = ChatClient(channel)
            chat = await met(asking, self._other)
            for number in count():
                if self.is_over:
                    return
                uuid = os.urandom(16)
                text = f"{self._me.name} says {number}"
                await asking.say(chat, text, uuid=uuid)
                self.accepted.append((text, "", ""))
                for every, action, new in CHANGES:
                    if number % every == 0:
                        await asking.say(chat, new, action, uuid.hex())
                        said = said_text(action, new)
                        self.accepted.append((said, action.value, uuid.hex()))
                if number % FILE_EVERY == 0:
                    await self._send_file(asking, chat, f"{self._me.name}-{number}.bin")
                await anyio.sleep(SAID_S)

    async def _send_file(self, asking: ChatClient, chat: ChatInfo, name: str) -> None:
        path, data = self._folder / name, os.urandom(FILE_BYTES)
        await anyio.Path(path).write_bytes(data)
        await send_file(asking, chat, path, os.urandom(16))
        self.accepted.append((f"file: {name} ({size_text(FILE_BYTES)})", "", ""))
        self.files.append(sha256(data).digest())


async def command(me: ChatProcess, *words: str) -> bytes:
    """A command in a process of its own: this one has a loop already."""
    done = await anyio.run_process([sys.executable, "-m", "millpond", *words], env=me.env)
    return done.stdout


async def met(asking: ChatClient, other: ChatProcess) -> ChatInfo:
    """The conversation with somebody, once an invite has introduced them."""
    while True:
        try:
            return await asking.chat_with(other.name)
        except Failure:
            await anyio.sleep(SAID_S)


async def notes(me: ChatProcess, other: ChatProcess) -> list[str]:
    async with connect(f"tcp://{me.address}", PROBE, role="consumer", wait_s=10.0) as channel:
        asking = ChatClient(channel)
        page = await asking.history(await asking.chat_with(other.name), 0)
        return [record.text for _, record in page if record.kind is Kind.NOTE]


async def received(me: ChatProcess, other: ChatProcess) -> list[Said]:
    async with connect(f"tcp://{me.address}", PROBE, role="consumer", wait_s=10.0) as channel:
        asking = ChatClient(channel)
        page = await asking.history(await asking.chat_with(other.name), 0)
        came = [record for _, record in page if record.kind is Kind.IN]
        return [(each.text, each.action, each.about) for each in came]


async def received_files(me: ChatProcess, other: ChatProcess) -> list[bytes]:
    """The hashes of the files that have come, of all that are complete."""
    async with connect(f"tcp://{me.address}", PROBE, role="consumer", wait_s=10.0) as channel:
        asking, files, found = ChatClient(channel), KnownFiles(), []
        chat = await asking.chat_with(other.name)
        for sequence, record in await asking.history(chat, 0):
            files.learn(sequence, record)
        for each in reversed(list(files.received())):
            assert each.record.file is not None
            content = sha256()
            for at in range(0, each.record.file.chunks, CHUNKS_AT_ONCE):
                for chunk in await asking.read_file(chat, each.sequence, at):
                    content.update(chunk)
            found.append(content.digest())
        return found


async def until_received(me: ChatProcess, other: ChatProcess, count: int) -> None:
    with anyio.move_on_after(SETTLED_S):
        while len(await received_files(me, other)) < count:  # noqa: ASYNC110
            await anyio.sleep(0.5)


async def as_shown(me: ChatProcess, other: ChatProcess) -> dict[str, tuple[str, bool]]:
    """The messages of a conversation as they are now, by uuid."""
    async with connect(f"tcp://{me.address}", PROBE, role="consumer", wait_s=10.0) as channel:
        asking, messages = ChatClient(channel), ShownMessages()
        page = await asking.history(await asking.chat_with(other.name), 0)
        for _, record in page:
            messages.learn(record)
        found = [*messages.latest(Kind.IN), *messages.latest(Kind.OUT)]
        return {each.uuid: (each.text, bool(each.reactions)) for each in found}


@pytest.mark.parametrize("seed", [1])
async def test_kills_lose_nothing_and_show_nothing_twice(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    relay = ChatProcess(tmp_path, "relay", "--relay")
    alice = ChatProcess(tmp_path, "alice", "--via", "relay")
    bob = ChatProcess(tmp_path, "bob", "--via", "relay")
    for each in (alice, bob):
        each.meet(relay)
        each.do("peer", "relay", "relay")
        relay.meet(each, dials=False)
    with ExitStack() as stack:
        mortals = [Mortal(each, stack) for each in (relay, alice, bob)]
        link = await command(alice, "chat", "invite", "bob")
        await command(bob, "chat", "accept", link.decode().strip(), "alice")
        alices, bobs = Writer(alice, bob, tmp_path), Writer(bob, alice, tmp_path)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(alices.run)
            tasks.start_soon(bobs.run)
            for number in range(KILLS):
                await anyio.sleep(rng.uniform(*PAUSE_S))
                victim = mortals[number % 3] if number < 3 else rng.choice(mortals)
                await anyio.to_thread.run_sync(victim.kill)
            await anyio.sleep(1.0)
            alices.is_over = bobs.is_over = True

        for me, other, accepted in ((bob, alice, alices.accepted), (alice, bob, bobs.accepted)):
            with anyio.move_on_after(SETTLED_S):
                while len(await received(me, other)) < len(accepted):
                    await anyio.lowlevel.checkpoint()
        assert await received(bob, alice) == alices.accepted
        assert await received(alice, bob) == bobs.accepted
        for me, other, files in ((bob, alice, alices.files), (alice, bob, bobs.files)):
            assert len(files) > 1
            await until_received(me, other, len(files))
            assert await received_files(me, other) == files
        assert await as_shown(alice, bob) == await as_shown(bob, alice)
        said = await notes(alice, bob)
        assert [each for each in said if "invite" in each] == ["accepted your invite"]
        assert len(alices.accepted) > KILLS and len(bobs.accepted) > KILLS

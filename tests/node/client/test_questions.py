"""Questions over a channel and their answers, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random

import anyio
import pytest

from millpond import Channel, connect, sync
from millpond.errors import AskFailed, EmptyData, HandshakeRefused, NoListener, NotAllowed
from millpond.jobs import Queue, Worker
from millpond.node.client.questions import ASKS_MAX
from millpond.node.config import ChannelRule, Config
from millpond.node.node import Node
from millpond.testing import RealNode, run_node
from tests.node.client.cutting_proxy import cutting_proxy

SOON_S = 10.0
RULES = (ChannelRule.parse("jobs/*=queue"), ChannelRule.parse("work/*=queue"))


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    local = "127.0.0.1:0"
    config = Config(
        p2p=local,
        ws=local,
        s3p="off",
        rustlog="off",
        http="off",
        channels=RULES,
        drain_timeout_s=0.5,
    )
    async with Node(config) as node:
        yield node


def url_of(node: Node, listener: str = "p2p") -> str:
    return f"{'tcp' if listener == 'p2p' else 'ws'}://{node.listeners[listener]}"


async def shout(channel: Channel) -> None:
    """A listener that answers in capitals, and refuses digits."""
    async for message in channel:
        if message.payload.isdigit():
            await message.reply_error("digits have no capitals")
        elif message.wants_reply:
            await message.reply(message.payload.upper())


@pytest.mark.parametrize("listener", ["p2p", "ws"])
@pytest.mark.parametrize("name", ["rpc", "work/rpc"])
async def test_a_question_is_answered(node: Node, listener: str, name: str) -> None:
    async with (
        connect(url_of(node, listener), name, role="consumer") as listening,
        connect(url_of(node, listener), name, role="producer") as asking,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(shout, listening)
        assert await asking.ask(b"hello", SOON_S) == b"HELLO"
        assert await asking.ask(b"again", SOON_S) == b"AGAIN"
        with pytest.raises(AskFailed, match="no capitals"):
            await asking.ask(b"123", SOON_S)
        answers: dict[int, bytes] = {}

        async def ask(number: int) -> None:
            answers[number] = await asking.ask(b"q%dx" % number, SOON_S)

        async with anyio.create_task_group() as several:
            for number in range(50):
                several.start_soon(ask, number)
        assert answers == {number: b"Q%dX" % number for number in range(50)}
        assert (await asking.channels.describe(name)).messages == 0
        tasks.cancel_scope.cancel()


async def test_a_question_without_a_listener_fails_at_once_and_is_not_kept(node: Node) -> None:
    """Neither the asking client itself nor one that only puts is a listener."""
    async with (
        connect(url_of(node), "rpc") as asking,
        connect(url_of(node), "rpc", role="producer"),
        connect(url_of(node), "rpc", role="consumer", window=0),
    ):
        with pytest.raises(NoListener):
            await asking.ask(b"hello", SOON_S)
        assert await asking.list() == []
        with pytest.raises(EmptyData):
            await asking.ask(b"", SOON_S)
        with pytest.raises(TypeError):
            await asking.ask("text", SOON_S)  # type: ignore[arg-type]


async def test_a_listener_that_is_silent_costs_the_time_out(node: Node) -> None:
    """The question is not kept for longer than the client waits, at most a second more."""
    async with (
        connect(url_of(node), "rpc", role="consumer") as silent,
        connect(url_of(node), "rpc", role="producer") as asking,
    ):
        with pytest.raises(TimeoutError):
            await asking.ask(b"hello", 0.2)
        message = await silent.receive(SOON_S)
        assert message.payload == b"hello"
        await message.reply(b"too late")
        with pytest.raises(TimeoutError):
            await asking.ask(b"again", 0.2)


async def test_1024_questions_are_asked_at_once(node: Node) -> None:
    """One more waits until one of them is answered."""
    async with (
        connect(url_of(node), "rpc", role="consumer", window=2000) as listening,
        connect(url_of(node), "rpc", role="producer") as asking,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(ASKS_MAX + 1):
            tasks.start_soon(asking.ask, b"q", 60)
        held = [await listening.receive(SOON_S) for _ in range(ASKS_MAX)]
        with pytest.raises(TimeoutError):
            await listening.receive(0.05)
        await held.pop().reply(b"a")
        held.append(await listening.receive(SOON_S))
        for message in held:
            await message.reply(b"a")


@pytest.mark.parametrize("seed", range(4))
async def test_questions_survive_lost_connections(node: Node, seed: int) -> None:
    """Each is stored once: it is put again with its key."""
    heard: dict[int, bytes] = {}

    async def listen(channel: Channel) -> None:
        async for message in channel:
            heard[message.id] = message.payload
            await message.reply(message.payload.upper())

    async with (
        cutting_proxy(node.listeners["p2p"], Random(seed), 700) as proxy,
        connect(url_of(node), "rpc", role="consumer") as listening,
        connect(f"tcp://{proxy.address}", "rpc", role="producer", wait_s=60) as asking,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listen, listening)
        for number in range(20):
            assert await asking.ask(b"q%d" % number, 60) == b"Q%d" % number
        assert sorted(heard.values()) == sorted(b"q%d" % number for number in range(20))
        assert proxy.cuts > 0
        tasks.cancel_scope.cancel()


async def test_a_plain_message_wants_no_reply(node: Node) -> None:
    async with connect(url_of(node), "c", role="producer") as sender:
        await sender.put(b"plain")
        await sender.put(b"\x82\xa1v\x01\xa1q\xc4\x03abc")
        async with connect(url_of(node), "c", role="consumer") as reader:
            for data in (b"plain", b"\x82\xa1v\x01\xa1q\xc4\x03abc"):
                message = await reader.receive(SOON_S)
                assert message.payload == message.data == data
                assert not message.wants_reply
                with pytest.raises(ValueError, match="no reply"):
                    await message.reply(b"x")
                await message.ack()


async def is_heard(channel: Channel) -> None:
    """Wait until a connection receives in the channel."""
    with anyio.fail_after(SOON_S):
        while not (await channel.channels.describe(channel.name)).receivers:  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def test_a_worker_of_a_queue_answers_as_well(node: Node) -> None:
    """A question has the bytes of a job, and an answer those of its result."""

    def length(payload: bytes) -> object:
        return {"length": len(payload)}

    async with (
        Worker(url_of(node), length, queues=["sizes"]) as worker,
        connect(url_of(node), "jobs/sizes", role="producer") as asking,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(worker.run)
        await is_heard(asking)
        assert await asking.ask(b"12345", SOON_S) == b'{"length":5}'
        tasks.cancel_scope.cancel()


async def test_a_job_of_a_queue_is_a_question_to_a_listener(node: Node) -> None:
    async with (
        connect(url_of(node), "jobs/mail", role="consumer") as listening,
        Queue(url_of(node), "mail") as queue,
    ):
        handle = await queue.put({"to": "alice"}, wait=True)
        message = await listening.receive(SOON_S)
        assert message.payload == b'{"to":"alice"}'
        await message.reply(b"sent")
        assert await handle.result(SOON_S) == b"sent"


async def test_rights_hold_for_the_question_and_for_the_mailbox(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text(
        "asker-0123456789abcdef put rpc\n"
        "asker-0123456789abcdef push,ack rpc/r/*\n"
        "heard-0123456789abcdef push,ack rpc\n"
        "heard-0123456789abcdef put rpc/r/*\n"
        "timid-0123456789abcdef put rpc\n"
        "muted-0123456789abcdef push,ack rpc\n"
    )
    tokens.chmod(0o600)
    local = "127.0.0.1:0"
    config = Config(
        p2p=local,
        ws="off",
        s3p="off",
        rustlog="off",
        http="off",
        token_file=str(tokens),
        drain_timeout_s=0.5,
    )
    async with Node(config) as node:
        url = url_of(node)
        asking = connect(url, "rpc", role="producer", token="asker-0123456789abcdef")
        timid = connect(url, "rpc", role="producer", token="timid-0123456789abcdef")
        heard = connect(url, "rpc", role="consumer", token="heard-0123456789abcdef")
        async with asking, timid:
            async with heard, anyio.create_task_group() as tasks:
                tasks.start_soon(shout, heard)
                assert await asking.ask(b"hello", SOON_S) == b"HELLO"
                with pytest.raises(HandshakeRefused):
                    await timid.ask(b"hello", SOON_S)
                tasks.cancel_scope.cancel()
            async with connect(
                url, "rpc", role="consumer", token="muted-0123456789abcdef"
            ) as muted:
                async with anyio.create_task_group() as tasks:

                    async def refused() -> None:
                        message = await muted.receive(SOON_S)
                        with pytest.raises(NotAllowed):
                            await message.reply(b"x")
                        tasks.cancel_scope.cancel()

                    tasks.start_soon(refused)
                    await asking.ask(b"hello", SOON_S)


@pytest.fixture(scope="module")
def real() -> Iterator[RealNode]:
    with run_node(s3p="off", rustlog="off", http="off") as node:
        yield node


def test_the_blocking_client_asks_and_answers(real: RealNode) -> None:
    with (
        sync.connect(real.url, "rpc", role="consumer") as listening,
        sync.connect(real.url, "rpc", role="producer") as asking,
    ):
        thread = threading.Thread(target=answer_one, args=(listening,))
        thread.start()
        assert asking.ask(b"hello", SOON_S) == b"HELLO"
        thread.join(SOON_S)
        with pytest.raises(TimeoutError):
            asking.ask(b"nobody takes it", 0.1)
    with sync.connect(real.url, "none") as asking, pytest.raises(NoListener):
        asking.ask(b"hello")


def answer_one(listening: sync.Channel) -> None:
    message = listening.receive(SOON_S)
    message.reply(message.payload.upper())

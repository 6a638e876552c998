"""Questions over a channel and their answers: `Channel.ask` and `Message.reply`.

A question is a message with the bytes of a job, which name a mailbox; an answer has the bytes of a
job's result, and is put into the channel of that mailbox, `CHANNEL/r/HEX`
(docs/reference/wire-protocol.md). So a worker of a queue answers as well, and a client of any kind
may do either. The mailbox is one of the client that asks, and ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from math import ceil
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import OutcomeUnknown
from millpond.node.client.errors import AskFailed, ClientClosed, ConnectionLost
from millpond.node.client.future import ReplyFuture
from millpond.node.client.idempotency import KeyCounter
from millpond.node.client.link import Link
from millpond.node.client.node_requests import NodeRequests
from millpond.node.jobs.payload import (
    MAILBOX_BYTES,
    JobMessage,
    JobUpdate,
    ReplyTo,
    decode_job,
    decode_update,
    encode_job,
    encode_update,
    mailbox_of,
)
from millpond.transports.p2p import channel_operations as b
from millpond.transports.p2p.channel_operations import ChannelOperation

if TYPE_CHECKING:
    from millpond.node.client.channel import Channel

ASKS_MAX = 1024
"""Questions of a client without an answer; further ones wait."""
ANSWER_TTL_S = 600
"""An answer is kept for so long while the client that asked reconnects."""
_ADDRESS = b"\xa1q"
"""The key of the address of an answer, which every question has."""

Join = Callable[[bytes], AbstractAsyncContextManager["Channel"]]


class AnswerMailbox:
    """The mailbox of one client: made with the first question, it ends with the client.

    `join` connects to the channel of the mailbox, in a task of `tasks`.
    """

    def __init__(
        self,
        channel: bytes,
        mailbox: bytes,
        link: Link,
        keys: KeyCounter,
        join: Join,
        tasks: TaskGroup,
    ) -> None:
        assert len(mailbox) == MAILBOX_BYTES
        self._channel = channel
        self._mailbox = mailbox
        self._link = link
        self._keys = keys
        self._join = join
        self._tasks = tasks
        self._open: ReplyFuture[None] | None = None
        self._waiting: dict[int, ReplyFuture[bytes]] = {}
        self._number = 0
        self._slots = anyio.Semaphore(ASKS_MAX)

    async def ask(self, data: bytes, timeout_s: float, headers: Mapping[str, str]) -> bytes:
        """Put a question with these headers, and wait for the first answer. Raises NoListener,
        AskFailed, TimeoutError."""
        with anyio.fail_after(timeout_s):
            async with self._slots:
                await self._opened()
                self._number += 1
                number = self._number
                answer = self._waiting[number] = ReplyFuture[bytes]()
                try:
                    to = ReplyTo(self._mailbox, number)
                    question = JobMessage(data, reply_to=to, headers=dict(headers))
                    ttl = max(1, ceil(timeout_s))
                    body = b.PutBody(
                        self._channel, self._keys.next(), encode_job(question), ttl, True
                    )
                    await put_elsewhere(self._link, body)
                    return await answer.wait()
                finally:
                    del self._waiting[number]
        raise AssertionError("a time that is over raises")

    async def _opened(self) -> None:
        opened = self._open
        if opened is None:
            opened = self._open = ReplyFuture()
            self._tasks.start_soon(self._receive, opened)
        await opened.wait()

    async def _receive(self, opened: ReplyFuture[None]) -> None:
        """Take answers until the client ends. Where the mailbox cannot be joined, or is lost for
        good, those that wait hear of it, and the next question tries again."""
        try:
            async with self._join(mailbox_of(self._channel, self._mailbox)) as mailbox:
                opened.resolve(None)
                while True:
                    message = await mailbox.receive()
                    self._take(message.data)
                    await message.ack()
        except (ConnectionLost, ClientClosed) as error:
            opened.fail(error)
            self._open = None
            for each in self._waiting.values():
                each.fail(error)

    def _take(self, data: bytes) -> None:
        update = decode_update(data)
        answer = None if update is None else self._waiting.get(update.number)
        if update is None or answer is None or answer.done:
            return  # an answer too late, or another one
        match update.kind:
            case "result":
                answer.resolve(_bytes_of(update.value))
            case "failed":
                answer.fail(AskFailed(_text_of(update.value)))
            case "cancelled":
                answer.fail(AskFailed("cancelled"))
            case "progress":
                pass


def question_of(data: bytes) -> JobMessage | None:
    """The question in a message; None: it wants no answer."""
    if _ADDRESS not in data:
        return None  # a quick look, as most messages are no questions
    found = decode_job(data)
    return None if found.reply_to is None else found


def payload_of(question: JobMessage) -> bytes:
    """The payload of a question, as bytes."""
    return _bytes_of(question.payload)


async def answer(
    link: Link, keys: KeyCounter, channel: bytes, to: ReplyTo, update: JobUpdate
) -> None:
    """Put an answer into the mailbox of the client that asked."""
    name = mailbox_of(channel, to.mailbox)
    body = b.PutBody(name, keys.next(), encode_update(update), ANSWER_TTL_S)
    await put_elsewhere(link, body)


async def put_elsewhere(link: Link, body: b.PutBody) -> None:
    """Put a message into another channel; again, with its key, where a connection is lost."""
    while True:
        try:
            await NodeRequests(link).ask(ChannelOperation.PUT, body, b.PutReply)
        except OutcomeUnknown:
            await anyio.lowlevel.checkpoint()
            continue
        return


def _bytes_of(value: object) -> bytes:
    """A payload or a result of another client may be any value: text, or else JSON."""
    match value:
        case bytes():
            return value
        case str():
            return value.encode("utf-8", "replace")
        case _:
            return msgspec.json.encode(value)


def _text_of(failure: object) -> str:
    match failure:
        case {"error": str(text)} if text:
            return text
        case {"reason": str(text)}:
            return text
        case _:
            return "failed"

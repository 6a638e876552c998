"""Results and progress on their way to who waits: messages in a channel beside the queue.

The channel `jobs/QUEUE/r/HEX` belongs to one producer; a message there is a MessagePack map of `w`
(the number of the wait), `k` and `v` (docs/guides/jobs.md, "Results").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import anyio
import msgspec
from anyio.abc import TaskGroup

from millpond.actors.errors import DataTooLarge, RequestError
from millpond.node.client.channel import Channel
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.future import ReplyFuture
from millpond.node.jobs.connector import Connector
from millpond.node.jobs.payload import UNREADABLE, ReplyTo, channel_of
from millpond.node.jobs.worker.outcome import utf8_text

RESULT_TTL_S = 3600
IDLE_S = 30.0
BOXES_MAX = 64
TELL_S = 5.0
EARLY_MAX = 100

Kind = Literal["progress", "result", "failed", "cancelled"]


class JobUpdate(msgspec.Struct, frozen=True):
    """What became of a job. `value`: of a failure a map of `reason` and `error`."""

    number: int = msgspec.field(name="w")
    kind: Kind = msgspec.field(name="k")
    value: Any = msgspec.field(name="v", default=None)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(JobUpdate)


def mailbox_name(queue: str, mailbox: bytes) -> bytes:
    """The channel of a producer's mailbox."""
    return channel_of(queue) + b"/r/" + mailbox.hex().encode()


def encode_update(news: JobUpdate) -> bytes:
    """The bytes. Raises TypeError for a value that MessagePack cannot carry."""
    return _encoder.encode(news)


def decode_update(data: bytes) -> JobUpdate | None:
    """None: these bytes are something else."""
    try:
        return _decoder.decode(data)
    except UNREADABLE:
        return None


class _Box:
    """A connection to one mailbox; closed when nobody used it for a while."""

    def __init__(self) -> None:
        self.ready: ReplyFuture[Channel] = ReplyFuture()
        self.users = 0
        self.used_at = 0.0
        self.scope = anyio.CancelScope()
        self._channel: Channel | None = None
        self._early: list[bytes] = []

    def opened(self, channel: Channel) -> None:
        """The connection stands; first what was said before."""
        self._channel = channel
        for data in self._early:
            self.say(data)
        self.ready.resolve(channel)

    def say(self, data: bytes) -> None:
        """Leave this there, in order; where there is too much of it, leave it out."""
        if self._channel is None:
            if len(self._early) < EARLY_MAX:
                self._early.append(data)
            return
        with suppress(anyio.WouldBlock, RequestError, ConnectionLost, ChannelClosed):
            self._channel.put_nowait(data, ttl=RESULT_TTL_S)


class ResultMailboxes:
    """A worker's connections to those who wait. They live in `tasks`."""

    def __init__(self, way: Connector, tasks: TaskGroup, now: Callable[[], float]) -> None:
        self._way = way
        self._tasks = tasks
        self._now = now
        self._boxes: dict[bytes, _Box] = {}

    def tell_soon(self, queue: str, waiter: ReplyTo, value: Any) -> None:
        """Leave progress there, if that can be done at once. Raises TypeError as
        `encode_update`."""
        data = encode_update(JobUpdate(waiter.number, "progress", value))
        box = self._box(mailbox_name(queue, waiter.mailbox))
        box.say(data)
        box.used_at = self._now()

    async def tell(self, queue: str, waiter: ReplyTo, kind: Kind, value: Any = None) -> str | None:
        """Leave it in the mailbox; None, or why it could not be left there within 5 seconds.

        A result that cannot be carried, or not in one packet, is told as a failure.
        """
        number = waiter.number
        try:
            data = encode_update(JobUpdate(number, kind, value))
        except UNREADABLE as exc:
            data = _too_strange(number, exc)
        name = mailbox_name(queue, waiter.mailbox)
        box = self._box(name)
        box.users += 1
        try:
            with anyio.fail_after(TELL_S):
                channel = await box.ready.wait()
                try:
                    await channel.put(data, ttl=RESULT_TTL_S)
                except DataTooLarge as exc:
                    await channel.put(_too_strange(number, exc), ttl=RESULT_TTL_S)
        except (RequestError, ConnectionLost, ChannelClosed, TimeoutError) as exc:
            if isinstance(exc, ConnectionLost | ChannelClosed):
                self._forget(name, box)
            return str(exc) or type(exc).__name__
        finally:
            box.users -= 1
            box.used_at = self._now()
        return None

    async def aclose(self) -> None:
        """Close the connections, once what was said is with the node."""
        for box in list(self._boxes.values()):
            box.scope.cancel()

    def _box(self, name: bytes) -> _Box:
        box = self._boxes.pop(name, None)
        if box is None:
            if len(self._boxes) >= BOXES_MAX:
                self._drop_oldest()
            box = _Box()
            self._tasks.start_soon(self._serve, name, box)
        self._boxes[name] = box
        return box

    def _drop_oldest(self) -> None:
        for name, box in self._boxes.items():
            if not box.users:
                del self._boxes[name]
                box.scope.cancel()
                return

    async def _serve(self, name: bytes, box: _Box) -> None:
        with box.scope, suppress(ConnectionLost):
            try:
                async with self._way.join(name, "producer") as channel:
                    box.opened(channel)
                    while box.users or self._now() < box.used_at + IDLE_S:  # noqa: ASYNC110
                        await anyio.sleep(IDLE_S)
                    self._forget(name, box)
            except ConnectionLost as exc:
                box.ready.fail(exc)
                raise
            finally:
                self._forget(name, box)

    def _forget(self, name: bytes, box: _Box) -> None:
        if self._boxes.get(name) is box:
            del self._boxes[name]


def _too_strange(number: int, error: Exception) -> bytes:
    text = f"the result cannot be carried: {error}"
    return encode_update(
        JobUpdate(number, "failed", {"reason": "result", "error": utf8_text(text)})
    )

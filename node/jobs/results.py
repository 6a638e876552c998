"""Results and progress of jobs: messages to the producer's mailbox, a channel beside the queue.

The channel `jobs/QUEUE/r/HEX` belongs to one producer; a message there is a MessagePack map of `w`
(the number of the pending result), `k` and `v` (docs/guides/jobs.md, "Results").
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import DataTooLarge, RequestError
from millpond.node.client.channel import Channel
from millpond.node.client.errors import ChannelClosed, ConnectionLost
from millpond.node.client.future import ReplyFuture
from millpond.node.jobs.connector import Connector
from millpond.node.jobs.payload import (
    UNREADABLE,
    JobUpdate,
    Kind,
    ReplyTo,
    encode_update,
    mailbox_name,
)
from millpond.node.jobs.worker.outcome import utf8_text

RESULT_TTL_S = 3600
IDLE_S = 30.0
MAILBOXES_MAX = 64
SEND_S = 5.0
EARLY_MAX = 100


class _Mailbox:
    """A connection to one mailbox. It is closed when it was not used for a while."""

    def __init__(self) -> None:
        self.ready: ReplyFuture[Channel] = ReplyFuture()
        self.users = 0
        self.used_at = 0.0
        self.scope = anyio.CancelScope()
        self._channel: Channel | None = None
        self._early: list[bytes] = []

    def opened(self, channel: Channel) -> None:
        """The connection is live: first put what came before."""
        self._channel = channel
        for data in self._early:
            self.put_nowait(data)
        self.ready.resolve(channel)

    def put_nowait(self, data: bytes) -> None:
        """Put a message, in order; dropped where too many wait."""
        if self._channel is None:
            if len(self._early) < EARLY_MAX:
                self._early.append(data)
            return
        with suppress(anyio.WouldBlock, RequestError, ConnectionLost, ChannelClosed):
            # A result is a part of the worker's span.
            self._channel._put_nowait_untraced(data, ttl=RESULT_TTL_S)  # noqa: SLF001


class ResultMailboxes:
    """The connections of a worker to mailboxes of producers. They run in `tasks`."""

    def __init__(self, connector: Connector, tasks: TaskGroup, now: Callable[[], float]) -> None:
        self._connector = connector
        self._tasks = tasks
        self._now = now
        self._mailboxes: dict[bytes, _Mailbox] = {}

    def send_progress(self, queue: str, reply_to: ReplyTo, value: object) -> None:
        """Send progress, if that is possible at once. Raises TypeError as `encode_update`."""
        data = encode_update(JobUpdate(reply_to.number, "progress", value))
        mailbox = self._mailbox(mailbox_name(queue, reply_to.mailbox))
        mailbox.put_nowait(data)
        mailbox.used_at = self._now()

    async def send(
        self, queue: str, reply_to: ReplyTo, kind: Kind, value: object = None
    ) -> str | None:
        """Send a result. Returns None, or why it could not be sent within 5 seconds.

        A result that cannot be encoded, or does not fit a packet, is sent as a failure.
        """
        number = reply_to.number
        try:
            data = encode_update(JobUpdate(number, kind, value))
        except UNREADABLE as exc:
            data = _failure(number, exc)
        name = mailbox_name(queue, reply_to.mailbox)
        mailbox = self._mailbox(name)
        mailbox.users += 1
        try:
            with anyio.fail_after(SEND_S):
                channel = await mailbox.ready.wait()
                try:
                    await channel.put(data, ttl=RESULT_TTL_S)
                except DataTooLarge as exc:
                    await channel.put(_failure(number, exc), ttl=RESULT_TTL_S)
        except (RequestError, ConnectionLost, ChannelClosed, TimeoutError) as exc:
            if isinstance(exc, ConnectionLost | ChannelClosed):
                self._forget(name, mailbox)
            return str(exc) or type(exc).__name__
        finally:
            mailbox.users -= 1
            mailbox.used_at = self._now()
        return None

    async def aclose(self) -> None:
        """Close the connections, once the node has what was sent."""
        for mailbox in list(self._mailboxes.values()):
            mailbox.scope.cancel()

    def _mailbox(self, name: bytes) -> _Mailbox:
        mailbox = self._mailboxes.pop(name, None)
        if mailbox is None:
            if len(self._mailboxes) >= MAILBOXES_MAX:
                self._drop_oldest()
            mailbox = _Mailbox()
            self._tasks.start_soon(self._serve, name, mailbox)
        self._mailboxes[name] = mailbox
        return mailbox

    def _drop_oldest(self) -> None:
        for name, mailbox in self._mailboxes.items():
            if not mailbox.users:
                del self._mailboxes[name]
                mailbox.scope.cancel()
                return

    async def _serve(self, name: bytes, mailbox: _Mailbox) -> None:
        with mailbox.scope, suppress(ConnectionLost):
            try:
                async with self._connector.join(name, "producer") as channel:
                    mailbox.opened(channel)
                    while mailbox.users or self._now() < mailbox.used_at + IDLE_S:  # noqa: ASYNC110
                        await anyio.sleep(IDLE_S)
                    self._forget(name, mailbox)
            except ConnectionLost as exc:
                mailbox.ready.fail(exc)
                raise
            finally:
                self._forget(name, mailbox)

    def _forget(self, name: bytes, mailbox: _Mailbox) -> None:
        if self._mailboxes.get(name) is mailbox:
            del self._mailboxes[name]


def _failure(number: int, error: Exception) -> bytes:
    text = f"the result cannot be encoded: {error}"
    return encode_update(
        JobUpdate(number, "failed", {"reason": "result", "error": utf8_text(text)})
    )

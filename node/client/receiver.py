"""A receiver: the messages of all channels whose names match a pattern, as they come and go.

A connection of the protocol is in one channel, so a receiver has one for each. It asks the node for
the names that match; a number that changes with every channel that is made spares the node from
listing them again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from millpond.actors.errors import RequestError
from millpond.node.client.channel import Join, Message
from millpond.node.client.errors import ClientClosed, ConnectionLost, HandshakeRefused
from millpond.node.client.node_requests import NodeRequests
from millpond.transports.p2p import channel_operations as b
from millpond.transports.p2p.channel_operations import ChannelInfo, ChannelOperation

log = logging.getLogger("millpond.client")


class Receiver:
    """The messages of the channels of a node that match patterns; see `Channels.receiver`.

    Iterating gives them as they come, each with its `channel`. In a fanout channel that is joined
    after the start, the messages that it has kept are given as well.
    """

    def __init__(
        self,
        requests: NodeRequests,
        join: Join,
        patterns: list[bytes],
        channels_max: int,
        window: int | None,
        refresh_s: float,
        tasks: TaskGroup,
    ) -> None:
        self._requests = requests
        self._join = join
        self._patterns = patterns
        self._channels_max = channels_max
        self._window = window
        self._refresh_s = refresh_s
        self._tasks = tasks
        self._joined: dict[bytes, anyio.CancelScope] = {}
        self._refused: set[bytes] = set()
        self._left_out = 0
        self._known: tuple[int, int] | None = None
        """The connection to the node, and its number of changes when the names were listed."""
        self._into, self._messages = anyio.create_memory_object_stream[Message](0)
        self._error: Exception | None = None

    @property
    def channels(self) -> list[bytes]:
        """The names of the channels that are joined now."""
        return sorted(self._joined)

    @property
    def left_out(self) -> int:
        """The number of channels that match and are not joined, as there are too many."""
        return self._left_out

    async def receive(self, timeout_s: float | None = None) -> Message:
        """The next message of any channel; TimeoutError after `timeout_s` seconds without any.
        Raises ConnectionLost where the node is lost for good, ClientClosed after the end."""
        try:
            with anyio.fail_after(timeout_s):
                return await self._messages.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            raise self._error or ClientClosed("the receiver has ended") from None

    def __aiter__(self) -> AsyncIterator[Message]:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except ClientClosed:
            raise StopAsyncIteration from None

    async def start(self) -> None:
        """Join what matches now; the rest follows in a task."""
        await self._refresh(resume_after=None)
        self._tasks.start_soon(self._run)

    def end(self) -> None:
        """Give no more messages."""
        self._messages.close()
        self._into.close()

    async def _run(self) -> None:
        while True:
            await anyio.sleep(self._refresh_s)
            try:
                await self._refresh(resume_after=0)
            except RequestError as error:
                log.debug("channels not listed: error=%s", error)
            except (ConnectionLost, ClientClosed) as error:
                self._fail(error)
                return

    async def _refresh(self, resume_after: int | None) -> None:
        """Join the channels that match and are not joined yet."""
        found = await self._list()
        if found is None:
            return
        known = self._refused.union(self._joined)
        missing = [each for each in found if each.name not in known]
        if len(self._joined) + len(missing) > self._channels_max:
            self._leave_unused(found, len(missing))
        count = max(0, self._channels_max - len(self._joined))
        async with anyio.create_task_group() as joining:
            for each in missing[:count]:
                joining.start_soon(self._start_joining, each.name, resume_after)
        if len(missing) - count > self._left_out:
            log.warning("channels left out, too many match: count=%d", len(missing) - count)
        self._left_out = max(0, len(missing) - count)

    async def _list(self) -> list[ChannelInfo] | None:
        """The channels that match; None: nothing changed, and none was left out."""
        connection = self._requests.link.counts.connections
        known = None
        if self._known is not None and self._known[0] == connection and not self._left_out:
            known = self._known[1]
        found: list[ChannelInfo] = []
        after, more = b"", True
        while more:
            body = b.ListBody(self._patterns, after=after, limit=b.PAGE_MAX, known=known)
            reply = await self._requests.ask(ChannelOperation.LIST, body, b.ListReply)
            if known is not None and reply.changes == known:
                return None
            if not found:
                self._known = connection, reply.changes
            known = None
            found += reply.page
            more = reply.more and bool(reply.page)
            after = reply.page[-1].name if reply.page else after
        return found

    def _leave_unused(self, found: list[ChannelInfo], wanted: int) -> None:
        """Leave channels that exist only because they are joined here."""
        for each in found:
            is_ours_alone = not (each.created or each.messages) and each.connections == 1
            if wanted > 0 and is_ours_alone and each.name in self._joined:
                self._joined.pop(each.name).cancel()
                wanted -= 1

    async def _start_joining(self, name: bytes, resume_after: int | None) -> None:
        """Join a channel in a task of its own; returns once it is joined, or refuses."""
        opened = anyio.Event()
        self._joined[name] = scope = anyio.CancelScope()
        self._tasks.start_soon(self._serve, name, resume_after, scope, opened)
        await opened.wait()

    async def _serve(
        self,
        name: bytes,
        resume_after: int | None,
        scope: anyio.CancelScope,
        opened: anyio.Event,
    ) -> None:
        try:
            with scope:
                channel = self._join(name, window=self._window, resume_after=resume_after)
                async with channel:
                    opened.set()
                    while True:
                        await self._into.send(await channel.receive())
        except HandshakeRefused as error:
            log.warning("channel left out: name=%r error=%s", name, error)
            self._refused.add(name)
        except (ConnectionLost, ClientClosed) as error:
            self._fail(error)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass  # the receiver has ended
        finally:
            opened.set()
            if self._joined.get(name) is scope:
                del self._joined[name]

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        with suppress(anyio.ClosedResourceError):
            self._into.close()

"""The client for programs without an event loop: `with connect(url, channel="chat/1") as channel`.

The same surface as `node.client` and `node.channel`, each call blocking until its result is there.
All channels share one event loop in a thread of its own; any thread may use them. `on_event` is
called in that thread.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from functools import partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, Self

from anyio.from_thread import BlockingPortal, BlockingPortalProvider

from actors.messages import Durability, Mode
from node import channel as asynchronous
from node import client
from node.answers import Answer
from node.errors import ChannelClosed
from node.inbox import Counts
from node.inflight import Receipt
from node.message import Message as AsyncMessage

P = ParamSpec("P")
Ids = list[int]

_LOOP = BlockingPortalProvider()


class Pending:
    """A put that was sent and may not be answered yet."""

    def __init__(self, answer: Answer[Receipt], portal: BlockingPortal) -> None:
        self._answer = answer
        self._portal = portal

    @property
    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._answer.done

    def wait(self) -> Receipt:
        """See `Channel.put`."""
        return self._portal.call(self._answer.wait)


class Message:
    """A pushed message. `with message` acknowledges it on success, gives it back on an error."""

    def __init__(self, message: AsyncMessage, channel: Channel, portal: BlockingPortal) -> None:
        self.id = message.id
        self.data = message.data
        self.attempt = message.attempt
        self.channel = channel
        self._message = message
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._message)

    def ack(self) -> None:
        """See `node.message`."""
        self._portal.call(self._message.ack)

    def nack(self, delay: float | None = None, *, reject: bool = False) -> None:
        """See `node.message`."""
        self._portal.call(partial(self._message.nack, delay, reject=reject))

    def touch(self, seconds: float) -> float:
        """See `node.message`."""
        return self._portal.call(self._message.touch, seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.call(self._message.__aexit__, kind, error, trace)


class Channel:
    """An open channel; every method is that of `node.channel.Channel`, blocking."""

    def __init__(self, channel: asynchronous.Channel, portal: BlockingPortal) -> None:
        self.name = channel.name
        self._channel = channel
        self._portal = portal

    def __repr__(self) -> str:
        return repr(self._channel)

    @property
    def mode(self) -> Mode | None:
        return self._channel.mode

    @property
    def durability(self) -> Durability | None:
        return self._channel.durability

    @property
    def window(self) -> int:
        return self._channel.window

    @property
    def connected(self) -> bool:
        return self._channel.connected

    @property
    def closed(self) -> bool:
        return self._channel.closed

    @property
    def counts(self) -> Counts:
        return self._channel.counts

    def put(
        self, data: bytes, *, ttl: int = 0, key: int | None = None, retry_for: float = 0.0
    ) -> Receipt:
        put = partial(self._channel.put, data, ttl=ttl, key=key, retry_for=retry_for)
        return self._portal.call(put)

    def put_nowait(self, data: bytes, *, ttl: int = 0, key: int | None = None) -> Pending:
        # The portal would await an answer that is returned to it as it is.
        def put() -> Pending:
            return Pending(self._channel.put_nowait(data, ttl=ttl, key=key), self._portal)

        return self._portal.call(put)

    def receive(self, timeout_s: float | None = None) -> Message:
        message = self._portal.call(self._channel.receive, timeout_s)
        return Message(message, self, self._portal)

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self.receive()
        except ChannelClosed:
            raise StopIteration from None

    def get(self, message_id: int) -> bytes:
        return self._portal.call(self._channel.get, message_id)

    def list(self, start: int = 0, end: int = 0, limit: int = 0) -> Ids:
        return self._portal.call(self._channel.list, start, end, limit)

    def ids(self, start: int = 0, end: int = 0) -> Iterator[int]:
        return _blocking_iterator(self._channel.ids(start, end), self._portal)

    def ack(self, message_id: int) -> None:
        self._portal.call(self._channel.ack, message_id)

    def credit(self, count: int) -> None:
        self._portal.call(self._channel.credit, count)

    def ping(self) -> float:
        return self._portal.call(self._channel.ping)

    def admin(self, operation: int, body: dict[str, Any]) -> dict[str, Any]:
        return self._portal.call(self._channel.admin, operation, body)

    def flush(self, timeout_s: float = asynchronous.DRAIN_S) -> None:
        self._portal.call(self._channel.flush, timeout_s)

    def close(self) -> None:
        self._portal.call(self._channel.aclose)


def _blocking(
    opener: Callable[P, AbstractAsyncContextManager[asynchronous.Channel]],
) -> Callable[P, AbstractContextManager[Channel]]:
    @wraps(opener)
    @contextmanager
    def connect(*args: P.args, **kwargs: P.kwargs) -> Generator[Channel]:
        with _LOOP as portal, portal.wrap_async_context_manager(opener(*args, **kwargs)) as channel:
            yield Channel(channel, portal)

    return connect


def _blocking_iterator(ids: AsyncIterator[int], portal: BlockingPortal) -> Iterator[int]:
    while True:
        try:
            yield portal.call(ids.__anext__)
        except StopAsyncIteration:
            return


connect = _blocking(client.connect)

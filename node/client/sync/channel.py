"""Blocking channels: `with connect(url, channel="chat/1") as channel`.

Written by scripts/generate_sync.py: do not edit.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Self

from millpond.actors.messages import Durability, Mode
from millpond.node.client.channel import DRAIN_S, Ids, ModeName, RoleName
from millpond.node.client.channel import Channel as AsyncChannel
from millpond.node.client.channel import Message as AsyncMessage
from millpond.node.client.channels import Channels as AsyncChannels
from millpond.node.client.channels import connect_channels as connect_channels_async
from millpond.node.client.connect import connect as connect_async
from millpond.node.client.events import Event
from millpond.node.client.in_flight import Receipt
from millpond.node.client.inbox import Counts
from millpond.node.client.receiver import Receiver as AsyncReceiver
from millpond.node.client.settings import DEFAULT_SETTINGS, ConnectSettings
from millpond.node.client.sync.portal import Blocking, BlockingContext, SyncFuture
from millpond.node.client.sync.streams import Streams
from millpond.transports.p2p.channel_operations import ChannelInfo as ChannelInfo
from millpond.transports.p2p.handshake import Signer


class Message(Blocking[AsyncMessage]):
    """A pushed message. `with message` acknowledges it on success, returns it on an error.

    Cancellation does neither: the node pushes the message again once its lease is over.
    """

    @property
    def id(self) -> int:
        return self._async.id

    @property
    def data(self) -> bytes:
        return self._async.data

    @property
    def attempt(self) -> int:
        return self._async.attempt

    @property
    def channel(self) -> Channel:
        return Channel.over(self._async.channel, self._portal)

    def ack(self) -> None:
        """Acknowledge: the node forgets the message. Also sent on a later connection."""
        self._await(self._async.ack)

    def nack(self, delay: float | None = None, *, reject: bool = False) -> None:
        """Return the message: for another attempt, in `delay` seconds, or as a dead letter."""
        self._await(self._async.nack, delay, reject=reject)

    @property
    def payload(self) -> bytes:
        """The data, or what was asked where the message is a question (`Channel.ask`)."""
        return self._async.payload

    @property
    def wants_reply(self) -> bool:
        """Whether the message is a question."""
        return self._async.wants_reply

    def reply(self, data: bytes) -> None:
        """Answer a question, and acknowledge it. Needs the right to put into the mailbox,
        `CHANNEL/r/...`. Raises ValueError where no reply is wanted.
        """
        self._await(self._async.reply, data)

    def reply_error(self, text: str) -> None:
        """Answer a question with an error, which `ask` raises as AskFailed; else as `reply`."""
        self._await(self._async.reply_error, text)

    def decline(self) -> None:
        """Refuse a message that cannot be read here: it is kept, and not pushed here again."""
        self._await(self._async.decline)

    @property
    def leased(self) -> bool:
        """Whether its connection is live: the lease ends with that, at the latest."""
        return self._async.leased

    def begin(self, *, at_once: bool = True) -> None:
        """Tell the node that work begins: from now on, losing the lease is a failed attempt.

        For channels opened with `begins`; for others every push counts as begun. Not `at_once`: it
        is sent together with what else this pass of the loop sends.
        """
        self._call(self._async.begin, at_once=at_once)

    def touch(self, seconds: float) -> float:
        """Extend the lease to so many seconds from now. Gives those that are left of it.

        The lease counts from the request, to be sure. Raises LeaseLost, also where its time was
        over before the answer was read: the program or the node hung.
        """
        return self._await(self._async.touch, seconds)

    def __enter__(self) -> Self:
        self._await(self._async.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._await(self._async.__aexit__, kind, error, trace)


class Channel(BlockingContext[AsyncChannel]):
    """A channel of a node; see `connect`. Tasks may share it. Iterating gives the pushed messages.

    It is open within `with`, or from `open` to `close`; then methods raise ClientClosed.
    """

    @property
    def name(self) -> str | bytes:
        return self._async.name

    @property
    def mode(self) -> Mode | None:
        """The mode of the channel; None where the other end has no handshake."""
        return self._async.mode

    @property
    def durability(self) -> Durability:
        """The durability that receipts promise now; MEMORY without a handshake."""
        return self._async.durability

    @property
    def window(self) -> int:
        """The number of messages that the node pushes ahead of their acknowledgements."""
        return self._async.window

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return self._async.connected

    @property
    def has_messages(self) -> bool:
        """Whether pushed messages wait: `receive` returns at once."""
        return self._async.has_messages

    @property
    def silent_s(self) -> float:
        """Seconds since the node was last heard from; infinity without a connection."""
        return self._async.silent_s

    @property
    def closed(self) -> bool:
        """Not open yet, closed here, or lost for good."""
        return self._async.closed

    @property
    def counts(self) -> Counts:
        """Counts since `connect`: connections, messages, duplicates."""
        return self._async.counts

    @property
    def streams(self) -> Streams:
        """The node's streams, over this connection. Needs the right to administer it."""
        return Streams.over(self._async.streams, self._portal)

    @property
    def channels(self) -> Channels:
        """The node's channels by name, over this connection."""
        return Channels.over(self._async.channels, self._portal)

    def put(
        self, data: bytes, *, ttl: int = 0, key: int | None = None, retry_for: float = 0.0
    ) -> Receipt:
        """Have the node keep `data` for `ttl` seconds (0: the channel's default).

        Returns the receipt, once the message is kept; waits while too much is in flight. `key` is
        the idempotency key of a retry by the caller; after a lost connection the put is repeated
        here, with one key. While the node is full, failing or asks to slow down, the put is retried
        for `retry_for` seconds. Raises RequestErrors, ConnectionLost and ClientClosed; TypeError
        and ValueError for arguments.
        """
        return self._await(self._async.put, data, ttl=ttl, key=key, retry_for=retry_for)

    def put_nowait(
        self, data: bytes, *, ttl: int = 0, key: int | None = None
    ) -> SyncFuture[Receipt]:
        """Send without waiting; the future of the receipt. See `put`.

        Raises anyio.WouldBlock when too much is in flight.
        """
        return self._send(self._async.put_nowait, data, ttl=ttl, key=key)

    def ask(self, data: bytes, timeout_s: float = 10.0) -> bytes:
        """Put a question, and wait for its answer at most `timeout_s` seconds; TimeoutError then.

        A connection that receives in the channel answers, with `Message.reply`; in queue mode one
        of them gets the question, else all do, and the first answer counts. A client that asks does
        best as a `producer`, so that it is not asked itself. The first question opens a second
        connection, to a mailbox of this client, `NAME/r/...`. Raises NoListener where no other
        connection receives in the channel, AskFailed for an answer that says so, and RequestErrors.
        """
        return self._await(self._async.ask, data, timeout_s)

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message; TimeoutError after `timeout_s` seconds without any."""
        return Message(self._await(self._async.receive, timeout_s), self._portal)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return Message(self._next(self._async.__anext__), self._portal)

    def get(self, message_id: int) -> bytes:
        """The data of a message that is kept; `ack` is still to do. Raises NotFound."""
        return self._await(self._async.get, message_id)

    def list(self, start: int = 0, end: int = 0, limit: int = 0) -> Ids:
        """Ids from `start` to `end`, both included, at most `limit` (0: the node's page).

        `end` 0 is no end; `start` above `end` lists the newest first, as does the highest id.
        """
        return self._await(self._async.list, start, end, limit)

    def ids(self, start: int = 0, end: int = 0) -> Iterator[int]:
        """All ids from `start` to `end`, read page by page; order and ends as in `list`."""
        return self._iterate(self._async.ids(start, end))

    def ack(self, message_id: int) -> None:
        """Let the node forget a message, pushed or not."""
        self._await(self._async.ack, message_id)

    def credit(self, count: int) -> None:
        """Let the node push `count` more messages ahead of their acknowledgements.

        0: push again, after a job was returned.
        """
        self._await(self._async.credit, count)

    def ping(self) -> float:
        """The round trip to the node in seconds."""
        return self._await(self._async.ping)

    def admin(self, operation: int, body: dict[str, object]) -> dict[str, object]:
        """Request an operation of the node itself (docs/reference/wire-protocol.md); needs the
        right to administer it.

        Waits while too many are under way. Raises RequestErrors, DataTooLarge among them;
        OutcomeUnknown when the connection ends before the reply.
        """
        return self._await(self._async.admin, operation, body)

    def peers(self, operation: int, body: dict[str, object]) -> dict[str, object]:
        """Request an operation on peers (docs/reference/wire-protocol.md); else as `admin`."""
        return self._await(self._async.peers, operation, body)

    def jobs(self, operation: int, body: dict[str, object]) -> dict[str, object]:
        """Request an operation on the jobs of this channel; else as `admin`.

        Raises NotAQueue where the channel is not in queue mode.
        """
        return self._await(self._async.jobs, operation, body)

    def flush(self, timeout_s: float = DRAIN_S) -> None:
        """Wait until every put is answered, at most `timeout_s` seconds."""
        self._await(self._async.flush, timeout_s)


def connect(
    url: str,
    channel: str | bytes | None = None,
    *,
    role: RoleName = "both",
    mode: ModeName | None = None,
    window: int | None = None,
    token: str | bytes | None = None,
    identity: Signer | None = None,
    peer: bytes | None = None,
    on_peer: Callable[[bytes], None] | None = None,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    reconnect: bool = True,
    wait_s: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
    settings: ConnectSettings = DEFAULT_SETTINGS,
) -> Channel:
    """Join a channel of the node at `url` (tcp, tls, ws or wss), and leave it with the block.

    Without a block, `open` joins and `close` leaves; until then nothing is sent.
    `url` may be several, separated by commas. When a connection is lost or refused the next one is
    dialled, and unanswered puts are repeated there with their keys: where the nodes are different
    ones, a message whose receipt was lost may be in both.

    `window`: so many messages may be pushed and not yet acknowledged; None = 32, a worker's 1.
    `mode`: the mode of the channel, which is created in it if it does not exist.
    `wait_s`: keep trying for so long when the node is not there yet. After a loss the client always
    reconnects, with backoff, unless `reconnect` is off; `on_event` is called with each change.
    `tls`: the context for tls and wss, in place of the system's authorities or the pin of the URL.
    `allow_plain`: send a token, and prove an identity, to another machine without TLS as well.
    `identity`: prove it, once the node has proved `peer`, or any key that `on_peer` accepts.
    `settings`: those that few need.

    Raises ConnectionLost, HandshakeRefused, ModeMismatch, NotEncrypted, PeerMismatch, and
    ValueError for arguments.
    """
    return Channel(
        partial(
            connect_async,
            url,
            channel,
            role=role,
            mode=mode,
            window=window,
            token=token,
            identity=identity,
            peer=peer,
            on_peer=on_peer,
            tls=tls,
            allow_plain=allow_plain,
            reconnect=reconnect,
            wait_s=wait_s,
            on_event=on_event,
            settings=settings,
        )
    )


class Receiver(Blocking[AsyncReceiver]):
    """The messages of the channels of a node that match patterns; see `Channels.receiver`.

    Iterating gives them as they come, each with its `channel`. In a fanout channel that is joined
    after the start, the messages that it has kept are given as well.
    """

    @property
    def channels(self) -> list[bytes]:
        """The names of the channels that are joined now."""
        return self._call(lambda: list(self._async.channels))

    @property
    def left_out(self) -> int:
        """The number of channels that match and are not joined, as there are too many."""
        return self._async.left_out

    def receive(self, timeout_s: float | None = None) -> Message:
        """The next message of any channel; TimeoutError after `timeout_s` seconds without any.
        Raises ConnectionLost where the node is lost for good, ClientClosed after the end.
        """
        return Message(self._await(self._async.receive, timeout_s), self._portal)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return Message(self._next(self._async.__anext__), self._portal)


class Channels(BlockingContext[AsyncChannels]):
    """The channels of a node by name. Tasks may share it.

    It is open within `with`, or from `open` to `close`. Methods raise RequestErrors,
    ConnectionLost, ClientClosed, and OutcomeUnknown where the connection was lost before the reply.
    A channel that was not created exists as long as it has a message, a key of one or a connection.
    """

    @property
    def connected(self) -> bool:
        """Whether a connection is live now."""
        return self._async.connected

    def create(self, name: str | bytes, mode: ModeName = "pair", *, exist_ok: bool = False) -> None:
        """Create a channel in a mode that stays: while it is empty, and over restarts.

        Needs the right `admin` in it. Raises ChannelExists where it was created before, unless
        `exist_ok` and in this mode, and where it is in use, or configured, in another mode.
        """
        self._await(self._async.create, name, mode, exist_ok=exist_ok)

    def delete(self, name: str | bytes) -> int:
        """Delete a channel with its messages, the keys of its puts, its subscribers that are away
        and its mode; gives the number of messages. Needs the right `admin` in it.

        Connections stay: for them, and for messages that are put meanwhile, it is a new channel.
        Raises UnknownChannel.
        """
        return self._await(self._async.delete, name)

    def purge(self, name: str | bytes) -> int:
        """Remove the messages that the channel has now, those with consumers as well; gives their
        number. Needs the right `ack` in it. Raises UnknownChannel.
        """
        return self._await(self._async.purge, name)

    def describe(self, name: str | bytes) -> ChannelInfo:
        """The state of a channel. Needs the right `list` in it: without that there is none.
        Raises UnknownChannel.
        """
        return self._await(self._async.describe, name)

    def list(self, *patterns: str | bytes) -> Iterator[ChannelInfo]:
        """The channels whose names match one of the patterns, all by default, by name.

        `*` is any text, `?` any character, `[ab]` one of these. Those in which the client has the
        right `list`; the node's own channels have a `!` in their names.
        """
        return self._iterate(self._async.list(*patterns))

    @contextmanager
    def receiver(
        self,
        *patterns: str | bytes,
        channels_max: int = 64,
        window: int | None = None,
        refresh_s: float = 1.0,
    ) -> Generator[Receiver]:
        """Receive from all channels whose names match one of the patterns (as in `list`), for the
        block; channels that are made later join within `refresh_s` seconds.

        Each has a connection of its own, with `window` as in `connect`. At most `channels_max` are
        joined, the first by name; others follow once one of them is not in use any more. Needs the
        rights `list`, `push` and `ack` in each; those that refuse are left out.
        """
        with self._enter(
            self._async.receiver(
                *patterns, channels_max=channels_max, window=window, refresh_s=refresh_s
            )
        ) as opened:
            yield Receiver(opened, self._portal)


def connect_channels(
    url: str,
    *,
    token: str | bytes | None = None,
    identity: Signer | None = None,
    peer: bytes | None = None,
    on_peer: Callable[[bytes], None] | None = None,
    tls: ssl.SSLContext | None = None,
    allow_plain: bool = False,
    reconnect: bool = True,
    wait_s: float = 0.0,
    on_event: Callable[[Event], None] | None = None,
    settings: ConnectSettings = DEFAULT_SETTINGS,
) -> Channels:
    """The channels of the node at `url` by name, for the block; see `millpond.connect`."""
    return Channels(
        partial(
            connect_channels_async,
            url,
            token=token,
            identity=identity,
            peer=peer,
            on_peer=on_peer,
            tls=tls,
            allow_plain=allow_plain,
            reconnect=reconnect,
            wait_s=wait_s,
            on_event=on_event,
            settings=settings,
        )
    )

"""Requests about channels by name: list, create, delete and purge them, and put into them; and who
is connected.

A client makes them on any of its connections (docs/reference/wire-protocol.md, operations 6 to 10
of packet 90). Each needs a right in the channel that it names: `list` to see it, `admin` to create
or delete it, `ack` to purge it, `put` to put. Channels with a `!` in their names are the node's,
and chats and mailboxes belong to peers: neither is created, deleted or put into here.

Changes go through the cell of the channel, and then through the catalog of created channels. The
reply comes from the catalog, behind a commit: what was removed stays removed.

The operator of the node deletes subscriptions of Durable Streams in the same way (operation 24).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Sequence
from fnmatch import translate
from functools import partial
from heapq import nsmallest
from math import inf

import msgspec

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.queries import ConsumerLag
from millpond.actors.errors import (
    ERRORS,
    EmptyData,
    Malformed,
    NoListener,
    NotAllowed,
    OutcomeUnknown,
    RequestError,
    UnknownChannel,
)
from millpond.actors.ids import IdSource
from millpond.actors.messages import (
    Batch,
    CellMessage,
    ChannelChanged,
    ClearChannel,
    CreateChannel,
    Failed,
    Mode,
    Port,
    Put,
    PutAck,
    Reply,
    Rights,
)
from millpond.actors.queue_settings import QueueTable
from millpond.actors.runtime.scheduler import Scheduler
from millpond.actors.store.interface import Store
from millpond.actors.streams.messages import StreamFailed
from millpond.actors.streams.names import RESERVED, subscription_cell
from millpond.actors.subscriptions.messages import DeleteSubscription, SubscriptionDone
from millpond.transports.p2p import channel_operations as b
from millpond.transports.p2p.admission import Admission, is_channel_name
from millpond.transports.p2p.bodies import read_body
from millpond.transports.server.interface import ConnectionSummary, Principal
from millpond.transports.server.private_names import is_private

ROW_BYTES = 160
"""About what a channel takes in an answer, besides its name."""
PAGE_BYTES_MAX = 32 * 1024
GROWTH = 4
"""Where few names may be listed, each look takes so many times as many names as the one before."""
OWN_NAME_CHARACTER = b"!"
"""The character that tells the names of the node's own channels from others."""

Answer = Callable[[bytes | RequestError], None]
_NAMES: dict[Mode, b.ModeName] = {Mode.PAIR: "pair", Mode.FANOUT: "fanout", Mode.QUEUE: "queue"}


class _ReplyPort(Port):
    """The port of one request. `number` is that of the client's connection: a message that it puts
    here is not pushed back to it."""

    __slots__ = ("_answer", "number", "received_at")

    def __init__(self, number: int, answer: Answer) -> None:
        self.number = number
        self.received_at = inf
        self._answer = answer

    @property
    def writable(self) -> bool:
        return True

    def send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            self._answer(_body_of(reply))

    def flush(self) -> None:
        """Replies are not buffered."""


def _body_of(reply: Reply) -> bytes | RequestError:
    match reply:
        case Failed(code=code, delay_ms=delay_ms):
            return ERRORS[code]("", delay_ms)
        case PutAck(id=message_id, ttl=ttl):
            return msgspec.msgpack.encode(b.PutReply(message_id, ttl))
        case ChannelChanged():
            cleared = b.ClearReply(reply.messages, reply.bytes, reply.more, reply.until)
            return msgspec.msgpack.encode(cleared)
        case SubscriptionDone():
            return msgspec.msgpack.encode(b.DeleteSubscriptionReply(deleted=True))
        case StreamFailed():
            return OutcomeUnknown()
        case _:
            raise AssertionError(f"{type(reply).__name__} answers no request about channels")


def _consumer(member: ConsumerLag, summary: ConnectionSummary) -> b.ConsumerInfo:
    consumer, options = member.consumer, member.consumer.options
    return b.ConsumerInfo(
        connection=summary.number,
        peer=summary.peer,
        listener=summary.listener,
        identity=options.identity,
        role=options.role.name.lower(),
        receives=consumer.receives,
        window=consumer.window,
        leased=len(consumer.leases),
        lag=member.lag,
        name=options.name,
    )


def _right_names(rights: Rights) -> list[str]:
    return [each.name.lower() for each in rights if each.name is not None]


class ChannelRequests:
    """Carries out requests about channels, and deletes subscriptions. `created`: the modes of the
    channels that were created; `queues`: the settings of queues; `subscriptions`: the ids of those
    that exist."""

    def __init__(
        self,
        scheduler: Scheduler,
        store: Store,
        created: dict[bytes, Mode],
        queues: QueueTable,
        authorize: Callable[[Principal, bytes], Rights | None],
        is_operator: Callable[[Principal], bool],
        subscriptions: Callable[[], Container[bytes]],
        ids: IdSource,
        now: Callable[[], float],
        summaries: Callable[[], Iterator[ConnectionSummary]] = lambda: iter(()),
    ) -> None:
        self._summaries = summaries
        self._scheduler = scheduler
        self._store = store
        self._created = created
        self._queues = queues
        self._authorize = authorize
        self._is_operator = is_operator
        self._subscriptions = subscriptions
        self._ids = ids
        self._now = now

    def ask(
        self, operation: int, body: bytes, answer: Answer, client: Admission, port: Port
    ) -> None:
        """Carry out one request of a client at `port`; `answer` is called once, perhaps later.
        Raises RequestErrors, and has not called it then."""
        match operation:
            case b.ChannelOperation.LIST:
                listed = self._list(read_body(body, b.ListBody), client)
                answer(msgspec.msgpack.encode(listed))
            case b.ChannelOperation.CREATE:
                self._create(read_body(body, b.CreateBody), answer, client, port)
            case b.ChannelOperation.DELETE:
                self._clear(read_body(body, b.ClearBody), answer, client, port, is_deletion=True)
            case b.ChannelOperation.PURGE:
                self._clear(read_body(body, b.ClearBody), answer, client, port, is_deletion=False)
            case b.ChannelOperation.MEMBERS:
                members = self._members(read_body(body, b.MembersBody), client)
                answer(msgspec.msgpack.encode(members))
            case b.ChannelOperation.RIGHTS:
                rights = self._rights(read_body(body, b.RightsBody), client)
                answer(msgspec.msgpack.encode(rights))
            case b.ChannelOperation.PUT:
                self._put(read_body(body, b.PutBody), answer, client, port)
            case b.DELETE_SUBSCRIPTION:
                asked = read_body(body, b.DeleteSubscriptionBody)
                self._delete_subscription(asked.id, answer, client, port)
            case _:
                raise Malformed(f"unknown operation {operation}")

    # Lists.

    def _list(self, request: b.ListBody, client: Admission) -> b.ListReply:
        changes = self._scheduler.cells_made
        if request.known == changes:
            return b.ListReply([], False, changes, self._ids.last)
        names = self._names_of_page(request, client)
        page: list[b.ChannelInfo] = []
        size = 0
        for name in names[: request.limit]:
            size += len(name) + ROW_BYTES
            if size > PAGE_BYTES_MAX and page:
                break
            page.append(self._row(name))
        return b.ListReply(page, len(page) < len(names), changes, self._ids.last)

    def _names_of_page(self, request: b.ListBody, client: Admission) -> list[bytes]:
        """The first names, one more than the page has. Rights are asked for these alone."""
        may_list = partial(self._has, client, Rights.LIST)
        if request.channel is not None or request.names:
            named = request.names if request.channel is None else [request.channel]
            there = [name for name in named if name > request.after and self._is_there(name)]
            return [name for name in there if may_list(name)]
        wanted = count = request.limit + 1
        after, found = request.after, list[bytes]()
        while len(found) < wanted:
            names = nsmallest(count, self._matching(request.patterns, after))
            found += [name for name in names if may_list(name)]
            if len(names) < count:
                break
            after, count = names[-1], count * GROWTH
        return found[:wanted]

    def _matching(self, patterns: Sequence[bytes], after: bytes) -> Iterator[bytes]:
        """The names above one that match, in no order."""
        later = (name for name in self._names() if name > after)
        if b"*" in patterns:
            yield from later
            return
        texts = [each.decode("utf-8", "surrogateescape") for each in patterns]
        matches = [re.compile(translate(each)).match for each in texts]
        for name in later:
            text = name.decode("utf-8", "surrogateescape")
            if any(match(text) for match in matches):
                yield name

    def _names(self) -> Iterator[bytes]:
        cells = self._scheduler.cells
        yield from (name for name in cells if not name.startswith(RESERVED))
        names = {*self._created, *self._queues.channels()}
        yield from (name for name in names if name not in cells)

    def _is_there(self, name: bytes) -> bool:
        if name in self._created or name in self._queues:
            return True
        return name in self._scheduler.cells and not name.startswith(RESERVED)

    def _row(self, name: bytes) -> b.ChannelInfo:
        behaviour, created = self._scheduler.view(name), self._created.get(name)
        if not isinstance(behaviour, Channel):
            # Passivated, or empty: its messages are in the store, and it has no consumers.
            usage = self._store.partition_usage(name)
            mode = created if created is not None else usage.mode or self._mode_without_cell(name)
            return b.ChannelInfo(
                name=name,
                mode=_NAMES[mode],
                created=created is not None,
                messages=usage.messages,
                size=usage.bytes,
                leased=0,
                connections=0,
                receivers=0,
                subscribers=0,
                paused=self._queues.of(name).is_paused,
            )
        info = behaviour.info
        return b.ChannelInfo(
            name=name,
            mode=_NAMES[behaviour.delivery.mode],
            created=created is not None,
            messages=info.messages,
            size=info.bytes,
            leased=info.leased,
            connections=info.connections,
            receivers=self._receivers(name),
            subscribers=info.subscribers,
            paused=self._queues.of(name).is_paused,
            oldest=next(iter(behaviour.buffer.rows), 0),
            kept=behaviour.kept,
            acked=behaviour.acked,
        )

    def _mode_without_cell(self, name: bytes) -> Mode:
        return Mode.QUEUE if name in self._queues else Mode.PAIR

    def _members(self, request: b.MembersBody, client: Admission) -> b.MembersReply:
        name = request.channel
        if not self._has(client, Rights.LIST, name):
            raise NotAllowed
        if not self._is_there(name):
            raise UnknownChannel
        behaviour = self._scheduler.view(name)
        if not isinstance(behaviour, Channel):
            return b.MembersReply([], [], more=False)
        members = behaviour.members(b.MEMBERS_MAX)
        numbers = {each.consumer.port.number for each in members.consumers}
        found = {each.number: each for each in self._summaries() if each.number in numbers}
        consumers = [
            _consumer(each, found[each.consumer.port.number])
            for each in members.consumers
            if each.consumer.port.number in found
        ]
        subscribers = [
            b.SubscriberInfo(each.identity, each.connections, each.lag)
            for each in members.subscribers
        ]
        return b.MembersReply(consumers, subscribers, members.more)

    def _rights(self, request: b.RightsBody, client: Admission) -> b.RightsReply:
        found = [self._authorize(client.principal, name) for name in request.channels]
        return b.RightsReply([_right_names(each or Rights.NONE) for each in found])

    def _receivers(self, name: bytes, other_than: Port | None = None) -> int:
        """Connections that messages are pushed to, also while the channel is loaded anew."""
        cell = self._scheduler.cells.get(name)
        attached = {} if cell is None or cell.attachments is None else cell.attachments
        return sum(
            each.push and each.role.consumes and each.window != 0 and port is not other_than
            for port, each in attached.items()
        )

    # Changes.

    def _create(self, request: b.CreateBody, answer: Answer, client: Admission, port: Port) -> None:
        self._check(client, Rights.ADMIN, request.channel)
        self._submit(request.channel, CreateChannel(Mode[request.mode.upper()]), answer, port)

    def _clear(
        self,
        request: b.ClearBody,
        answer: Answer,
        client: Admission,
        port: Port,
        *,
        is_deletion: bool,
    ) -> None:
        name = request.channel
        self._check(
            client, Rights.ADMIN if is_deletion else Rights.ACK, name, may_be_own=not is_deletion
        )
        if not self._is_there(name):
            raise UnknownChannel
        self._submit(name, ClearChannel(request.until, is_deletion), answer, port)

    def _put(self, request: b.PutBody, answer: Answer, client: Admission, port: Port) -> None:
        self._check(client, Rights.PUT, request.channel)
        if not request.data:
            raise EmptyData
        if request.listener and not self._receivers(request.channel, other_than=port):
            raise NoListener
        put = Put(request.key, request.ttl, request.data)
        self._submit(request.channel, put, answer, port)

    def _delete_subscription(
        self, id_: bytes, answer: Answer, client: Admission, port: Port
    ) -> None:
        if not self._is_operator(client.principal):
            raise NotAllowed("only the operator deletes subscriptions of others")
        if id_ not in self._subscriptions():
            answer(msgspec.msgpack.encode(b.DeleteSubscriptionReply(deleted=False)))
            return
        self._submit(subscription_cell(id_), DeleteSubscription(0), answer, port)

    def _submit(self, name: bytes, message: CellMessage, answer: Answer, port: Port) -> None:
        batch = Batch(_ReplyPort(port.number, answer), [message])
        self._scheduler.submit(name, batch, self._now())

    def _check(
        self, client: Admission, right: Rights, name: bytes, *, may_be_own: bool = False
    ) -> None:
        if not is_channel_name(name):
            raise Malformed("no channel can have this name")
        is_own = OWN_NAME_CHARACTER in name and not may_be_own
        if is_own or is_private(name) or not self._has(client, right, name):
            raise NotAllowed

    def _has(self, client: Admission, right: Rights, name: bytes) -> bool:
        rights = self._authorize(client.principal, name)
        return rights is not None and right in rights

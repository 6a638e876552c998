"""Queries of a channel: GET, LIST, and the lag of its subscribers. They change nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator
from itertools import islice
from typing import cast

import msgspec

from millpond.actors.channels.buffer import Buffer
from millpond.actors.channels.consumer import Consumer
from millpond.actors.channels.delivery import Delivery
from millpond.actors.channels.subscribers import Subscribers, Subscription
from millpond.actors.errors import Code
from millpond.actors.messages import U64_MAX, Failed, Get, GetAck, List, ListAck, Mode, Port, Reply

STEP_ROWS = 4_000
"""Looking at so many messages takes about a millisecond."""
SMALL_ROWS = 32
"""In a channel with so many messages lags are counted at once: steps cost more than that."""


class ListRange(msgspec.Struct, frozen=True, gc=False):
    """A range of ids from `low` to `high`, both inclusive. `limit` None: the server's page size."""

    low: int
    high: int
    limit: int | None
    newest_first: bool

    @staticmethod
    def of(request: List, *, cursors: bool) -> ListRange:
        """The range of a LIST: end 0 is open, start above end is newest first, limit 0 is the
        server's page size.

        With `cursors` (tag 0b = 1) both ends are exclusive, and limit 0 means nothing at all.
        """
        start, end = request.start, request.end
        newest_first = start > end if end else start == U64_MAX
        if newest_first:
            low, high = end, start
        else:
            low, high = start, end or U64_MAX
        if cursors:
            return ListRange(low + 1, high - 1, request.limit, newest_first)
        return ListRange(low, high, request.limit or None, newest_first)


def get(buffer: Buffer, delivery: Delivery, port: Port, request: Get, now: float) -> Reply:
    """The message, unless its deadline passed or it is too large for the connection."""
    row = buffer.get(request.id, now)
    if row is None:
        return Failed(request, Code.NOT_FOUND)
    consumer = delivery.consumers.get(port)
    if consumer is not None and len(row.data) > consumer.options.data_max:
        return Failed(request, Code.TOO_LARGE_FOR_PEER)
    return GetAck(row.id, row.data)


def list_ids(
    buffer: Buffer, delivery: Delivery, port: Port, request: List, now: float, page_max: int
) -> ListAck:
    """A page of the ids that this connection may see; `page_max` where it sets no limit."""
    consumer = delivery.consumers.get(port)
    page = ListRange.of(request, cursors=consumer is not None and consumer.options.cursor_lists)
    limit = page_max if page.limit is None else page.limit
    if consumer is not None:
        limit = min(limit, consumer.options.data_max // 8)
    found = buffer.between(page.low, page.high, now, newest_first=page.newest_first)
    shown = (each for each in found if delivery.shows(consumer, each))
    return ListAck(list(islice(shown, limit)))


LagSteps = Generator[None, None, list[int]]
_Counted = tuple[int, Subscription]
"""A subscriber whose lag is counted, and the sender of its own messages."""


def lags(buffer: Buffer, delivery: Delivery) -> list[int]:
    """The number of messages that each subscriber still has to acknowledge (fanout)."""
    found = small_lags(buffer, delivery)
    if found is not None:
        return found
    steps = lags_in_steps(buffer, delivery)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(list[int], end.value)


def lags_in_steps(buffer: Buffer, delivery: Delivery) -> LagSteps:
    """The same, of the messages at the first step; a step looks at `STEP_ROWS` messages or at one
    subscriber. The channel may change in between."""
    subscribers = _counted(delivery)
    if not subscribers:
        return []
    rows, own = list(buffer.rows.values()), dict[int, list[int]]()
    ids: list[int] = []
    for start in range(0, len(rows), STEP_ROWS):
        if start:
            yield
        for row in rows[start : start + STEP_ROWS]:
            ids.append(row.id)
            own.setdefault(row.sender or -row.source, []).append(row.id)
    found = []
    for sender, each in subscribers:
        if len(each.acked) > STEP_ROWS:
            yield
        found.append(_lag(each, ids, own.get(sender, [])))
    return found


def small_lags(buffer: Buffer, delivery: Delivery) -> list[int] | None:
    """The same at once, in a channel with few messages; None: it is large, and needs steps."""
    rows = buffer.rows
    if len(rows) > SMALL_ROWS:
        return None
    found = []
    for sender, each in _counted(delivery):
        if len(each.acked) > SMALL_ROWS:
            return None
        lag, floor, acked = 0, each.floor, each.acked
        for message_id, row in rows.items():
            if message_id > floor and message_id not in acked:
                lag += (row.sender or -row.source) != sender
        found.append(lag)
    return found


def _counted(delivery: Delivery) -> list[_Counted]:
    """The subscribers that lag, none outside of fanout."""
    if delivery.mode is not Mode.FANOUT:
        return []
    found = [(each.number, each) for each in delivery.subscriptions.values()]
    for consumer in delivery.consumers.values():
        subscription = consumer.subscription
        if consumer.receives and subscription is not None and not subscription.number:
            found.append((-consumer.port.number, subscription))
    return found


class ConsumerLag(msgspec.Struct, frozen=True):
    """A connection, and the messages that it still has to acknowledge as an anonymous subscriber
    (fanout)."""

    consumer: Consumer
    lag: int


class SubscriberLag(msgspec.Struct, frozen=True):
    """A subscriber, its connections, and the messages that it still has to acknowledge."""

    identity: bytes
    connections: int
    lag: int


class Members(msgspec.Struct, frozen=True):
    """The first consumers and subscribers of a channel. `more`: there are others."""

    consumers: list[ConsumerLag]
    subscribers: list[SubscriberLag]
    more: bool


def members(buffer: Buffer, delivery: Delivery, subscribers: Subscribers, limit: int) -> Members:
    """The first consumers and subscribers, so many of each."""
    is_fanout = delivery.mode is Mode.FANOUT
    ids = list(buffer.rows) if is_fanout else []
    own = _by_sender(buffer) if is_fanout else {}
    consumers = [
        ConsumerLag(
            each,
            _lag(each.subscription, ids, own.get(-each.port.number, []))
            if each.receives and each.subscription is not None and not each.subscription.number
            else 0,
        )
        for each in islice(delivery.consumers.values(), limit)
    ]
    identities = [
        SubscriberLag(
            each.identity,
            each.connections,
            _lag(each.subscription, ids, own.get(each.number, [])),
        )
        for each in islice(subscribers.subscribed(), limit)
        if each.subscription is not None
    ]
    more = len(delivery.consumers) > limit or len(subscribers.subscriptions) > limit
    return Members(consumers, identities, more)


def _by_sender(buffer: Buffer) -> dict[int, list[int]]:
    """Ids by sender: the number of an identity, or of a connection, negative."""
    own: dict[int, list[int]] = {}
    for row in buffer.rows.values():
        own.setdefault(row.sender or -row.source, []).append(row.id)
    return own


def _lag(subscription: Subscription, ids: list[int], own: list[int]) -> int:
    floor = subscription.floor
    acked = sum(message_id > floor for message_id in subscription.acked)
    return _above(ids, floor) - _above(own, floor) - acked


def _above(ids: list[int], floor: int) -> int:
    return len(ids) - bisect_right(ids, floor)

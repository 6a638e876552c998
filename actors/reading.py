"""What is read of a channel: messages, lists of them, its figures. Nothing changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile

from actors.buffer import Buffer
from actors.delivery import Delivery
from actors.errors import Code
from actors.messages import Failed, Get, GetAck, List, ListAck, Port, Reply
from actors.pages import Page
from actors.shared import ChannelInfo
from actors.store.changes import Row


def get(buffer: Buffer, delivery: Delivery, port: Port, request: Get, now: float) -> Reply:
    """The message, unless its deadline passed or it is too large for who asks."""
    row = buffer.get(request.id, now)
    if row is None:
        return Failed(request, Code.NOT_FOUND)
    guest = delivery.guests.get(port)
    if guest is not None and len(row.data) > guest.join.data_max:
        return Failed(request, Code.TOO_LARGE_FOR_PEER)
    return GetAck(row.id, row.data)


def ids(
    buffer: Buffer, delivery: Delivery, port: Port, request: List, now: float, page_max: int
) -> ListAck:
    """A page of the ids that this connection is shown; `page_max` where it sets no limit."""
    guest = delivery.guests.get(port)
    page = Page.asked(request, cursors=guest is not None and guest.join.cursor_lists)
    limit = page_max if page.limit is None else page.limit
    if guest is not None:
        limit = min(limit, guest.join.data_max // 8)
    found = buffer.between(page.low, page.high, now, newest_first=page.newest_first)
    shown = (each for each in found if delivery.shows(guest, each))
    return ListAck(list(islice(shown, limit)))


def exported(
    buffer: Buffer, delivery: Delivery, after: int, below: int
) -> Iterator[tuple[Row, int]]:
    """Messages between two ids with their failed deliveries; read on while nothing changes."""
    attempts = delivery.attempts
    rows = takewhile(lambda row: row.id < below, buffer.after(after, 0.0))
    return ((row, attempts.get(row.id, 0)) for row in rows)


def figures(
    name: bytes, buffer: Buffer, delivery: Delivery, keys: int, subscribers: int
) -> ChannelInfo:
    """What the channel tells of itself."""
    guests = delivery.guests.values()
    return ChannelInfo(
        name=name,
        mode=delivery.mode.name.lower(),
        messages=len(buffer.rows),
        bytes=buffer.bytes,
        keys=keys,
        leased=delivery.leased,
        connections=len(guests),
        credit=sum(guest.credit for guest in guests if guest.receives),
        subscribers=subscribers,
    )

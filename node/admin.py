"""Administration on the wire: packets 0x90 and 0x91 with a MessagePack body (wire.md 3g).

Each operation has a number, a request and an answer; docs/wire.md has the table.
"""

from __future__ import annotations

from enum import IntEnum
from heapq import nsmallest

import msgspec

from actors.channel import Channel
from actors.errors import Malformed
from actors.messages import Mode
from actors.scheduler import Counters, Scheduler
from actors.shared import ChannelInfo, DeliveryCounters
from actors.store.seam import Store, Usage
from transports.host import WireCounters

PAGE_MAX = 1000
PAGE_BYTES_MAX = 32 * 1024
CHANNEL_BYTES = 120
"""About what a channel's figures take in an answer, besides its name."""


class Operation(IntEnum):
    """What a running node can be asked."""

    INFO = 1


class InfoRequest(msgspec.Struct):
    """`channel`: only this one; else up to `limit` channels after `after`, by name."""

    channel: bytes | None = None
    after: bytes = b""
    limit: int = 100


class InfoAnswer(msgspec.Struct):
    """The node, and a page of its channels. Sizes in bytes, times in seconds."""

    version: str
    uptime_s: float
    durability: str
    rss_bytes: int
    connections: int
    channels: int
    usage: Usage
    scheduler: Counters
    delivery: DeliveryCounters
    wire: WireCounters
    page: list[ChannelInfo]
    more: bool


class Sources(msgspec.Struct):
    """Where the answers come from."""

    scheduler: Scheduler
    store: Store
    delivery: DeliveryCounters
    wire: WireCounters
    version: str
    uptime_s: float
    rss_bytes: int
    connections: int


def answer(operation: int, body: bytes, sources: Sources) -> bytes:
    """Carry out one request. Raises Malformed for an unknown operation or an unreadable body."""
    match operation:
        case Operation.INFO:
            return msgspec.msgpack.encode(_info(_read(body, InfoRequest), sources))
        case _:
            raise Malformed(f"unknown operation {operation}")


def _read(body: bytes, shape: type[InfoRequest]) -> InfoRequest:
    try:
        return msgspec.msgpack.decode(body, type=shape)
    except (msgspec.MsgspecError, RecursionError) as exc:  # deep nesting is no MsgspecError
        raise Malformed(str(exc)) from exc


def _info(request: InfoRequest, sources: Sources) -> InfoAnswer:
    scheduler, limit = sources.scheduler, max(1, min(request.limit, PAGE_MAX))
    if request.channel is not None:
        names = [request.channel] if request.channel in scheduler.cells else []
    else:
        later = (name for name in scheduler.cells if name > request.after)
        names = nsmallest(limit + 1, later)
    page = _page(names[:limit], sources)
    return InfoAnswer(
        version=sources.version,
        uptime_s=round(sources.uptime_s, 3),
        durability=sources.store.durability.name.lower(),
        rss_bytes=sources.rss_bytes,
        connections=sources.connections,
        channels=len(scheduler.cells),
        usage=sources.store.usage,
        scheduler=scheduler.counters,
        delivery=sources.delivery,
        wire=sources.wire,
        page=page,
        more=len(page) < len(names),
    )


def _page(names: list[bytes], sources: Sources) -> list[ChannelInfo]:
    """The channels, as many of the first as surely fit into a packet."""
    page: list[ChannelInfo] = []
    size = 0
    for name in names:
        size += len(name) + CHANNEL_BYTES
        if size > PAGE_BYTES_MAX and page:
            break
        page.append(_channel(name, sources))
    return page


def _channel(name: bytes, sources: Sources) -> ChannelInfo:
    behaviour = sources.scheduler.view(name)
    if isinstance(behaviour, Channel):
        return behaviour.info
    # Passivated: what it holds is in the store, and nobody is in it.
    kept = sources.store.weigh(name)
    mode = (kept.mode or Mode.PAIR).name.lower()
    return ChannelInfo(name, mode, kept.messages, kept.bytes, kept.keys, 0, 0, 0)

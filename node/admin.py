"""Administration on the wire: packets 0x90 and 0x91 with a MessagePack body (wire.md 3g).

Each operation has a number, a request and an answer; docs/wire.md has the table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from itertools import islice

import msgspec

from actors.channel import Channel
from actors.errors import Malformed
from actors.messages import Durability
from actors.scheduler import Counters, Scheduler
from actors.shared import ChannelInfo
from actors.store.seam import Usage
from transports.host import WireCounters


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
    wire: WireCounters
    page: dict[str, ChannelInfo]
    more: bool


class Sources(msgspec.Struct):
    """Where the answers come from."""

    scheduler: Scheduler
    usage: Usage
    wire: WireCounters
    durability: Durability
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
    scheduler = sources.scheduler
    if request.channel is not None:
        names = [request.channel] if request.channel in scheduler.cells else []
    else:
        names = sorted(name for name in scheduler.cells if name > request.after)
    limit = max(1, min(request.limit, 1000))
    page = dict(islice(_pages(names, scheduler), limit))
    return InfoAnswer(
        version=sources.version,
        uptime_s=round(sources.uptime_s, 3),
        durability=sources.durability.name.lower(),
        rss_bytes=sources.rss_bytes,
        connections=sources.connections,
        channels=len(scheduler.cells),
        usage=sources.usage,
        scheduler=scheduler.counters,
        wire=sources.wire,
        page=page,
        more=len(names) > limit,
    )


def _pages(names: list[bytes], scheduler: Scheduler) -> Iterator[tuple[str, ChannelInfo]]:
    for name in names:
        behaviour = scheduler.inspect(name)
        if isinstance(behaviour, Channel):
            yield name.decode("utf-8", "backslashreplace"), behaviour.info

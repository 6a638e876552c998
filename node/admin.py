"""Administration on the wire: packets 0x90 and 0x91 with a MessagePack body
(docs/reference/wire-protocol.md).

Each operation has a number, a request and an answer; docs/reference/wire-protocol.md has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple

import msgspec

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.context import ChannelInfo, DeliveryCounters
from millpond.actors.errors import ERRORS, Malformed, NotAllowed, OutcomeUnknown
from millpond.actors.messages import Durability, Mode, Rights
from millpond.actors.queue_settings import QueueTable
from millpond.actors.queue_stats import QueueStats
from millpond.actors.runtime.scheduler import RuntimeCounters, Scheduler
from millpond.actors.store.changes import Origin, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Health, ServerStats, Store, Usage, server_stats
from millpond.actors.store.stats import StoreStats
from millpond.actors.streams.catalogs.access_tokens import AccessToken
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.metadata import GroupProgress
from millpond.actors.streams.names import RESERVED
from millpond.actors.subscriptions.status import SubscriptionStatus
from millpond.node.activity import ActivityRequest, ActivitySampler
from millpond.node.backup.service import BackupReply, BackupRequest
from millpond.node.clock import ClockStatus
from millpond.node.console.overview import OverviewRequest, overview
from millpond.node.environment import installed_version
from millpond.node.events import EventLog
from millpond.node.replica.interface import (
    ReplicaInfo,
    ReplicaReply,
    ReplicaRequest,
    SnapshotReply,
    SnapshotRequest,
)
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.bodies import read_body
from millpond.transports.server.interface import ConnectionCounters, Principal
from millpond.transports.server.memory_budget import MemoryBudget
from millpond.transports.server.protocol_stats import ProtocolStats

PAGE_MAX = 1000
PAGE_BYTES_MAX = 32 * 1024
CHANNEL_BYTES = 120
"""About what a channel's figures take in an answer, besides its name."""
EXPORT_BYTES_MIN, EXPORT_BYTES_MAX = 512, 256 * 1024
MESSAGE_BYTES = 160
"""At most what a message takes in an answer, besides its data and the reason of a dead letter."""
SUBSCRIPTIONS_MAX = 50
"""The subscriptions in an answer: at most 4 KiB each."""
TOKENS_MAX = 100
"""The issued tokens in an answer."""
DAMAGES_MAX, TEXT_MAX = 20, 500
"""The damages in an answer, and the characters of their texts."""
MAY_EXPORT = Rights.ADMIN | Rights.GET


class Operation(IntEnum):
    """Administrative operations of a running node."""

    INFO = 1
    EXPORT = 2
    SCRUB = 3
    SUBSCRIPTIONS = 4
    ISSUED_TOKENS = 5
    ACTIVITY = 11
    EVENTS = 12
    BACKUP = 16
    OVERVIEW = 17
    REPLICA_SNAPSHOT = 26
    REPLICA = 27


class InfoRequest(msgspec.Struct):
    """`channel`: only this one; else up to `limit` channels after `after`, by name."""

    channel: bytes | None = None
    after: bytes = b""
    limit: int = 100


class StoreInfo(msgspec.Struct):
    """The store on disk; a node in memory has none."""

    folder: str
    health: Health
    counters: StoreStats


class TrafficInfo(ConnectionCounters, kw_only=True):
    """Counters of all protocols but HTTP."""

    connections: int
    packets_in: int
    bytes_in: int


class InfoReply(msgspec.Struct):
    """The node, and a page of its channels. Sizes in bytes, times in seconds."""

    version: str
    uptime_s: float
    durability: str
    rss_bytes: int
    connections: int
    channels: int
    streams: int
    usage: Usage
    scheduler: RuntimeCounters
    delivery: DeliveryCounters
    wire: TrafficInfo
    store: StoreInfo | None
    page: list[ChannelInfo]
    more: bool
    parts: int = 0
    """Of batches, that are staged and not published."""
    replica: ReplicaInfo | None = None
    redis: ServerStats | None = None


class ExportRequest(msgspec.Struct):
    """Messages of the client's own channel, above the id `after`; about `bytes_max`, and `limit` at
    most. `preview`: only so many bytes of the data of each."""

    channel: bytes
    after: int = 0
    bytes_max: int = EXPORT_BYTES_MAX
    limit: int | None = None
    preview: int | None = None


class Exported(msgspec.Struct):
    """A message as it is kept. `data` is None where it is too large: GET it.

    `due` 0: not later; `unique` empty: by nothing. `size` is that of the data, in bytes.
    """

    id: int
    key: int
    ttl: int
    expires_at: float
    attempts: int
    origin: Origin | None
    data: bytes | None
    due: float = 0.0
    unique: bytes = b""
    size: int = 0


class ExportReply(msgspec.Struct):
    """A page of a channel's messages, in the order of their ids."""

    mode: str
    messages: list[Exported]
    more: bool


class ScrubRequest(msgspec.Struct):
    """The next slice of the scrub is read now."""


class KnownDamage(msgspec.Struct):
    """A damage of the data folder; `name` is null if it cannot be told whose it is."""

    name: bytes | None
    where: str
    text: str


class ScrubReply(msgspec.Struct):
    """The scrub as it was before this slice: `passes` since the start, `progress` of the present
    one from 0 to 1, `bytes` read. `damages` are the first of those that are known, of `known`."""

    passes: int
    progress: float
    bytes: int
    known: int
    damages: list[KnownDamage]


class SubscriptionsRequest(msgspec.Struct):
    """`id`: only this one; else up to `limit` subscriptions after the id `after`, by id."""

    id: bytes | None = None
    after: bytes = b""
    limit: int = 50


class SubscriptionsReply(msgspec.Struct):
    """A page of the subscriptions of the node. `more`: there are others behind it."""

    page: list[SubscriptionStatus]
    more: bool


class IssuedTokensRequest(msgspec.Struct):
    """Up to `limit` tokens after the id `after`, by id."""

    after: bytes = b""
    limit: int = 100


class IssuedToken(msgspec.Struct):
    """A token that a client of S2 was issued. `issuer`: the id of the token that issued it; None: a
    client with the right `admin` did. `expires_at`: in seconds since 1970; None: it does not.
    `scope` is as in the S2 API."""

    id: str
    issuer: str | None
    expires_at: float | None
    scope: dict[str, object]
    auto_prefix_streams: bool


class IssuedTokensReply(msgspec.Struct):
    """A page of the tokens that are valid. `more`: there are others behind it."""

    page: list[IssuedToken]
    more: bool


class EventsRequest(msgspec.Struct):
    """Up to `limit` events behind the number `after` of the run `run`; "": of this run."""

    after: int = 0
    limit: int = 200
    run: str = ""


class PeerRow(NamedTuple):
    """A contact: its name, whether it is online, the sealed messages that wait for it, and those
    without a receipt."""

    name: str
    is_online: bool
    queued: int
    unconfirmed: int


class StatusSources(msgspec.Struct):
    """The parts of a node that the answers are made from."""

    scheduler: Scheduler
    store: Store
    delivery: DeliveryCounters
    wire: ConnectionCounters
    durability: Durability
    uptime_s: float
    rss_bytes: int
    connections: int
    streams: int
    parts: int
    now: float
    protocol_stats: Mapping[str, ProtocolStats]
    progress: Callable[[], list[GroupProgress]]
    clock: ClockStatus
    message_requests: int
    one_time_prekeys: int
    discovered_nodes: int
    subscriptions: Callable[[], Mapping[bytes, Callable[[], SubscriptionStatus] | None]]
    """By id; None: the node cannot serve it."""
    tokens: Callable[[], Iterator[tuple[bytes, AccessToken]]]
    """The issued tokens by id."""
    queues: Mapping[bytes, DeliveryCounters]
    """The counters of queues, which `delivery` has as well."""
    queue_stats: Callable[[], QueueStats]
    """The counts of all queues together."""
    queue_table: QueueTable
    peers: Callable[[], list[PeerRow]]
    directory: Directory
    backup: Callable[[BackupRequest], BackupReply]
    replica: ReplicaInfo | None
    replica_snapshot: Callable[[SnapshotRequest], SnapshotReply]
    replica_page: Callable[[], ReplicaReply]
    is_operator: Callable[[Principal], bool]
    activity: ActivitySampler
    events: EventLog
    memory: MemoryBudget
    listeners: Mapping[str, str]
    """The addresses of the listeners, by name."""
    is_draining: bool


def answer(operation: int, body: bytes, client: Admission, sources: StatusSources) -> bytes:
    """Carry out one request. Raises Malformed for an unknown operation or an unreadable body,
    NotAllowed, and for a channel that is not served now what its requests get."""
    match operation:
        case Operation.INFO:
            return msgspec.msgpack.encode(_info(read_body(body, InfoRequest), sources))
        case Operation.EXPORT:
            return msgspec.msgpack.encode(_export(read_body(body, ExportRequest), client, sources))
        case Operation.SCRUB:
            read_body(body, ScrubRequest)
            return msgspec.msgpack.encode(_scrub(sources.store))
        case Operation.SUBSCRIPTIONS:
            request = read_body(body, SubscriptionsRequest)
            return msgspec.msgpack.encode(_subscriptions(request, sources))
        case Operation.ISSUED_TOKENS:
            asked = read_body(body, IssuedTokensRequest)
            return msgspec.msgpack.encode(_issued_tokens(asked, sources))
        case Operation.BACKUP:
            wanted = read_body(body, BackupRequest)
            if not sources.is_operator(client.principal):
                raise NotAllowed("a backup has all keys of the node: it is for its operator")
            return msgspec.msgpack.encode(sources.backup(wanted))
        case Operation.ACTIVITY:
            activity = sources.activity.answer(read_body(body, ActivityRequest), sources)
            return msgspec.msgpack.encode(activity)
        case Operation.EVENTS:
            seen = read_body(body, EventsRequest)
            page = sources.events.after(seen.after, seen.limit, seen.run)
            return msgspec.msgpack.encode(page)
        case Operation.OVERVIEW:
            read_body(body, OverviewRequest)
            is_operator = sources.is_operator(client.principal)
            return msgspec.msgpack.encode(overview(sources, names_peers=is_operator))
        case Operation.REPLICA_SNAPSHOT:
            due = read_body(body, SnapshotRequest)
            return msgspec.msgpack.encode(sources.replica_snapshot(due))
        case Operation.REPLICA:
            read_body(body, ReplicaRequest)
            return msgspec.msgpack.encode(sources.replica_page())
        case _:
            raise Malformed(f"unknown operation {operation}")


def _scrub(store: Store) -> ScrubReply:
    if not isinstance(store, DurableStore):
        return ScrubReply(1, 0.0, 0, 0, [])  # there is nothing to read
    stats = store.stats
    store.scrub_step()
    shown = [
        KnownDamage(each.name, each.where[:TEXT_MAX], each.text[:TEXT_MAX])
        for each in store.damages[:DAMAGES_MAX]
    ]
    return ScrubReply(
        stats.scrub_passes, stats.scrub_progress, stats.scrub_bytes, len(store.damages), shown
    )


def _subscriptions(request: SubscriptionsRequest, sources: StatusSources) -> SubscriptionsReply:
    limit = max(1, min(request.limit, SUBSCRIPTIONS_MAX))
    found = sources.subscriptions()
    if request.id is not None:
        ids = [request.id] if request.id in found else []
    else:
        ids = nsmallest(limit + 1, (each for each in found if each > request.after))
    page = []
    for id_ in ids[:limit]:
        status = found[id_]
        name = id_.decode("utf-8", "replace")
        page.append(SubscriptionStatus(name, "unavailable") if status is None else status())
    return SubscriptionsReply(page, len(ids) > limit)


def _issued_tokens(request: IssuedTokensRequest, sources: StatusSources) -> IssuedTokensReply:
    from millpond.transports.http.s2.codecs.tokens import decode_stored_token  # late: HTTP's own

    limit = max(1, min(request.limit, TOKENS_MAX))
    later = (each for each in sources.tokens() if each[0] > request.after)
    found = list(islice(later, limit + 1))
    page = [
        IssuedToken(
            id=info.id,
            issuer=info.issuer,
            expires_at=None if info.expires_ms is None else info.expires_ms / 1000,
            scope=msgspec.to_builtins(info.scope),
            auto_prefix_streams=info.auto_prefix_streams,
        )
        for _, token in found[:limit]
        for info in (decode_stored_token(token.metadata),)
    ]
    return IssuedTokensReply(page, len(found) > limit)


def _channels(scheduler: Scheduler) -> Iterator[bytes]:
    """The channels that are in memory, and no streams."""
    return (name for name in scheduler.cells if not name.startswith(RESERVED))


def _info(request: InfoRequest, sources: StatusSources) -> InfoReply:
    scheduler, limit = sources.scheduler, max(1, min(request.limit, PAGE_MAX))
    if request.channel is not None:
        is_there = request.channel in scheduler.cells and not request.channel.startswith(RESERVED)
        names = [request.channel] if is_there else []
    else:
        later = (name for name in _channels(scheduler) if name > request.after)
        names = nsmallest(limit + 1, later)
    page = _page(names[:limit], sources)
    return InfoReply(
        version=installed_version(),
        uptime_s=round(sources.uptime_s, 3),
        durability=sources.durability.name.lower(),
        rss_bytes=sources.rss_bytes,
        connections=sources.connections,
        channels=sum(1 for _ in _channels(scheduler)),
        streams=sources.streams,
        parts=sources.parts,
        replica=sources.replica,
        usage=sources.store.usage,
        scheduler=scheduler.counters,
        delivery=sources.delivery,
        wire=_wire(sources),
        store=_store(sources.store),
        page=page,
        more=len(page) < len(names),
        redis=server_stats(sources.store),
    )


def _page(names: list[bytes], sources: StatusSources) -> list[ChannelInfo]:
    """The channels, as many of the first as surely fit into a packet."""
    page: list[ChannelInfo] = []
    size = 0
    for name in names:
        size += len(name) + CHANNEL_BYTES
        if size > PAGE_BYTES_MAX and page:
            break
        page.append(_channel(name, sources))
    return page


def _channel(name: bytes, sources: StatusSources) -> ChannelInfo:
    behaviour = sources.scheduler.view(name)
    if isinstance(behaviour, Channel):
        return behaviour.info
    # Passivated: its messages are in the store, and it has no consumers.
    usage = sources.store.partition_usage(name)
    mode = (usage.mode or Mode.PAIR).name.lower()
    return ChannelInfo(name, mode, usage.messages, usage.bytes, usage.keys, 0, 0, 0)


def _wire(sources: StatusSources) -> TrafficInfo:
    every = [each for name, each in sources.protocol_stats.items() if name != "http"]
    wire = sources.wire
    return TrafficInfo(
        connections=sum(each.connections for each in every),
        packets_in=sum(each.requests for each in every),
        bytes_in=sum(each.bytes_in for each in every),
        **msgspec.structs.asdict(wire),
    )


def _store(store: Store) -> StoreInfo | None:
    if not isinstance(store, DurableStore):
        return None
    return StoreInfo(str(store.folder.absolute()), store.health, store.stats)


def _export(request: ExportRequest, client: Admission, sources: StatusSources) -> ExportReply:
    cell = sources.scheduler.cells.get(request.channel)
    may_export = client.join.rights & MAY_EXPORT == MAY_EXPORT
    if cell is None or client.channel != request.channel or not may_export:
        raise NotAllowed("only a client of the channel with the rights admin and get may export it")
    if cell.refusal is not None:
        raise ERRORS[cell.refusal]
    if not isinstance(cell.behaviour, Channel):
        raise OutcomeUnknown("the channel is being restarted; try again")
    bytes_max = min(max(request.bytes_max, EXPORT_BYTES_MIN), EXPORT_BYTES_MAX)
    # The answer does not wait in line, so what may still be lost is not in it.
    rows = cell.behaviour.export(request.after, cell.unstored_from)
    limit = None if request.limit is None else max(1, request.limit)
    chosen = islice(rows, limit)
    page = list(_export_page(chosen, cell.behaviour.attributes_of, bytes_max, request.preview))
    return ExportReply(cell.behaviour.info.mode, page, next(rows, None) is not None)


def _export_page(
    rows: Iterator[tuple[StoredMessage, int]],
    attributes_of: Callable[[int], tuple[float, bytes]],
    bytes_max: int,
    preview: int | None,
) -> Iterator[Exported]:
    """At least one message; two halves, so that the last one never makes it too much."""
    size, half = 0, bytes_max // 2
    for row, attempts in rows:
        origin = row.origin
        head = MESSAGE_BYTES + (len(origin.reason.encode()) if origin is not None else 0)
        shown = row.data if preview is None else row.data[: max(0, preview)]
        data = shown if head + len(shown) <= half else None
        size += head + len(data or b"")
        attributes = attributes_of(row.id)
        yield Exported(
            row.id,
            row.key,
            row.ttl,
            row.expires_at,
            attempts,
            origin,
            data,
            *attributes,
            len(row.data),
        )
        if size >= half:
            return

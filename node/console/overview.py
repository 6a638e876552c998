"""The overview of a node: what is wrong with it in words, its counters, latencies and sizes.

It costs a node little however much it holds: no channel and no stream is looked at. Counters and
histograms grow since the start, so that every client measures rates over a time of its own.
"""

from __future__ import annotations

import resource
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from millpond.actors.histogram import SECONDS
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import ServerStats, server_stats
from millpond.node.environment import installed_version
from millpond.node.peers.identity import peer_id
from millpond.node.replica.interface import ReplicaInfo
from millpond.transports.p2p.jobs.bodies import JobStatsBody
from millpond.transports.server.interface import ConnectionSummary

if TYPE_CHECKING:
    from millpond.node.admin import StatusSources

Level = Literal["bad", "warn"]

DISK_FREE_SHARE_MIN, DISK_FREE_BYTES_MIN = 0.05, 2**30
"""Less of the disk than both is worth a warning."""
MEMORY_SHARE_MAX = 0.85
"""More of the memory budget is worth a warning."""
BUSY_S_MAX = 2.0
"""A write that waits for the disk for longer is worth a warning."""
WAITING_PEERS_MAX = 5
"""Of peers for whom messages wait, so many are named."""
PEERS_MAX = 50
"""Of so many peers the overview has what their connections move."""
HERE = -1
"""The size of a disk that could not be asked."""


class OverviewRequest(msgspec.Struct):
    """The node now."""


class Finding(msgspec.Struct, frozen=True):
    """Something that is wrong (`bad`) or worth a look (`warn`), in words, and what to do."""

    level: Level
    text: str
    hint: str = ""


class MemoryOverview(msgspec.Struct, frozen=True):
    """The memory of connections, in bytes: used and promised of the budget `max`; `waiting`
    requests. `closed`, `refused`: for lack of it, since the start."""

    used: int
    max: int
    waiting: int
    refused: int
    closed: int
    rss: int


class StoreOverview(msgspec.Struct, frozen=True):
    """The store on disk, and the disk itself (-1: it could not be asked). Sizes in bytes."""

    folder: str
    is_writable: bool
    reason: str
    journal_bytes: int
    segments: int
    files: int
    damages: int
    scrub_progress: float
    scrub_passes: int
    busy_s: float
    disk_free: int
    disk_total: int


class PeerTraffic(msgspec.Struct, frozen=True):
    """A client that proved a key: its peer id, its open connections, and the bytes that these
    moved, both ways, since they were opened."""

    id: str
    connections: int
    bytes: int


class OverviewReply(msgspec.Struct):
    """The node at `at`, in seconds of a clock that is never set. `latencies`: counts by `bounds`
    (seconds) of each protocol, and of `commit` and `sync`. `open`: connections by listener.
    `peers`: those that moved most over their open connections. `jobs`: of all queues together."""

    version: str
    at: float
    now: float
    uptime_s: float
    durability: str
    listeners: dict[str, str]
    cpu_s: float
    findings: list[Finding]
    totals: dict[str, int]
    counters: dict[str, int]
    open: dict[str, int]
    peers: list[PeerTraffic]
    jobs: JobStatsBody
    bounds: tuple[float, ...]
    latencies: dict[str, list[int]]
    memory: MemoryOverview
    store: StoreOverview | None
    replica: ReplicaInfo | None
    redis: ServerStats | None


def overview(sources: StatusSources, *, names_peers: bool) -> OverviewReply:
    """The node now. `names_peers`: with the names of contacts, which are for the operator."""
    store, delivery, usage = sources.store, sources.delivery, sources.store.usage
    used = resource.getrusage(resource.RUSAGE_SELF)
    counters = msgspec.structs.asdict(delivery)
    counters |= sources.activity.traffic()
    counters["refused"] = sources.wire.refused
    for name, stats in sources.protocol_stats.items():
        if name != "http":
            counters[f"{name}_requests"] = stats.requests
            counters[f"{name}_bytes_in"] = stats.bytes_in
    latencies = {name: each.latency.counts for name, each in sources.protocol_stats.items()}
    if isinstance(store, DurableStore):
        counters["written_bytes"] = store.journal_stats.bytes
        latencies["commit"] = store.journal_stats.commit_s.counts
        latencies["sync"] = store.journal_stats.sync_s.counts
    on_disk, redis = _store(sources), server_stats(store)
    summaries = sources.activity.summaries()
    return OverviewReply(
        version=installed_version(),
        at=sources.activity.ticks_s(),
        now=sources.now,
        uptime_s=round(sources.uptime_s, 3),
        durability=sources.durability.name.lower(),
        listeners=dict(sources.listeners),
        cpu_s=used.ru_utime + used.ru_stime,
        findings=list(_findings(sources, on_disk, redis, names_peers)),
        totals={
            "cells": len(sources.scheduler.cells),
            "streams": sources.streams,
            "messages": usage.messages,
            "message_bytes": usage.bytes,
            "stream_bytes": usage.log_bytes,
            "crashes": sources.scheduler.counters.crashes,
            "connections": sources.connections,
        },
        counters=counters,
        open=Counter(each.listener for each in summaries),
        peers=_peers(summaries),
        jobs=JobStatsBody.of(sources.queue_stats()),
        bounds=SECONDS,
        latencies={name: list(counts) for name, counts in latencies.items()},
        memory=_memory(sources),
        store=on_disk,
        replica=sources.replica,
        redis=redis,
    )


def _peers(summaries: list[ConnectionSummary]) -> list[PeerTraffic]:
    moved, connections = Counter[bytes](), Counter[bytes]()
    for each in summaries:
        if each.identity is not None:
            moved[each.identity] += each.moved_bytes
            connections[each.identity] += 1
    return [
        PeerTraffic(peer_id(identity), connections[identity], count)
        for identity, count in moved.most_common(PEERS_MAX)
    ]


def _memory(sources: StatusSources) -> MemoryOverview:
    memory = sources.memory
    used = memory.used_bytes + memory.promised_bytes + memory.connections_bytes
    return MemoryOverview(
        used,
        memory.settings.bytes_max,
        memory.waiting,
        memory.stats.refused,
        memory.stats.closed,
        sources.rss_bytes,
    )


def _store(sources: StatusSources) -> StoreOverview | None:
    store = sources.store
    if not isinstance(store, DurableStore):
        return None
    stats, health = sources.activity.store_stats(store), store.health
    free, total = _disk(store.folder)
    return StoreOverview(
        folder=str(store.folder.absolute()),
        is_writable=health.is_writable,
        reason=health.reason,
        journal_bytes=stats.journal_bytes,
        segments=stats.segments,
        files=stats.files,
        damages=len(store.damages),
        scrub_progress=stats.scrub_progress,
        scrub_passes=stats.scrub_passes,
        busy_s=store.journal_stats.busy_s(sources.now),
        disk_free=free,
        disk_total=total,
    )


def _disk(folder: Path) -> tuple[int, int]:
    try:
        found = shutil.disk_usage(folder)
    except OSError:
        return HERE, HERE
    return found.free, found.total


def _findings(
    sources: StatusSources,
    store: StoreOverview | None,
    redis: ServerStats | None,
    names_peers: bool,
) -> Iterator[Finding]:
    """The problems of the node, the worst first."""
    clock = sources.clock
    if sources.is_draining:
        yield Finding("bad", "The node is stopping: it takes no new connections.")
    if store is not None and not store.is_writable:
        yield Finding(
            "bad",
            f"The store cannot write ({store.reason}): nothing new is accepted.",
            "Free space on the disk, or look at its health; the node goes on by itself.",
        )
    if redis is not None and not redis.health.is_writable:
        yield Finding(
            "bad",
            f"The store does not answer ({redis.health.reason}): nothing new is accepted.",
            "The node goes on once it does; after 60 s it ends, for its supervisor to start it.",
        )
    if clock.have_ids_ended:
        yield Finding("bad", "Ids have ended: no message is accepted.", "See millpond doctor.")
    if store is not None:
        yield from _of_store(store)
    replica = sources.replica
    if replica is not None and replica.is_away:
        yield Finding(
            "warn",
            f"The replica is {replica.lag_s:.0f} s behind: {replica.error}.",
            "Changes wait in memory, up to replica_lag_bytes_max. See millpond replica status.",
        )
    memory = _memory(sources)
    if memory.used > MEMORY_SHARE_MAX * memory.max:
        share = 100 * memory.used // memory.max
        yield Finding(
            "warn",
            f"Connections hold {share} % of the memory budget; {memory.waiting} requests wait.",
            "Slow readers are closed first. A larger --memory-bytes-max gives more room.",
        )
    crashes = sources.scheduler.counters.crashes
    if crashes:
        yield Finding(
            "warn",
            f"{_count(crashes, 'channel or stream', 'channels or streams')} crashed since the "
            "start and were loaded anew.",
            "The events have the tracebacks.",
        )
    for warning in clock.warnings:
        yield Finding("warn", f"{warning[0].upper()}{warning[1:]}.", "See millpond doctor.")
    if sources.message_requests:
        yield Finding(
            "warn",
            f"{_count(sources.message_requests, 'message request')} of unknown senders.",
            "Answer with millpond chat requests.",
        )
    yield from _of_peers(sources, names_peers)


def _of_store(store: StoreOverview) -> Iterator[Finding]:
    if store.damages:
        yield Finding(
            "bad",
            f"{_count(store.damages, 'damage')} of the data folder: what is damaged is not served.",
            "millpond doctor tells what is lost and how to repair it.",
        )
    if store.busy_s > BUSY_S_MAX:
        yield Finding("bad", f"A write has been waiting for the disk for {store.busy_s:.0f} s.")
    limit = min(DISK_FREE_SHARE_MIN * store.disk_total, DISK_FREE_BYTES_MIN)
    if 0 <= store.disk_free < limit:
        yield Finding(
            "warn",
            f"{store.disk_free // 2**20} MiB are left on the disk of the data folder.",
            "Trim streams, purge channels, or make the disk larger.",
        )


def _of_peers(sources: StatusSources, names_peers: bool) -> Iterator[Finding]:
    waiting = [each for each in sources.peers() if each.queued and not each.is_online]
    if waiting and not names_peers:
        messages = _count(sum(each.queued for each in waiting), "message")
        peers = _count(len(waiting), "contact")
        yield Finding("warn", f"{messages} for {peers}, away now.")
        return
    for each in sorted(waiting, key=lambda row: -row.queued)[:WAITING_PEERS_MAX]:
        yield Finding("warn", f"{_count(each.queued, 'message')} for {each.name}, who is away.")


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"

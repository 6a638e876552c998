"""The activity of a node: rates, and the busiest channels, queues, streams and connections.

Rates are those between two samples of the counters; a sample is taken whenever `millpond top` asks.
Only cells in memory are looked at: others do nothing, and are counted. A node with many cells looks
at them in several turns of its event loop, and answers with what it found the time before.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from typing import TYPE_CHECKING, TypeVar

import msgspec
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.messages import Mode
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.stats import StoreStats
from millpond.actors.streams.names import RESERVED, qualified_name_of
from millpond.actors.streams.stream import Stream
from millpond.node.client.probe import PROBE
from millpond.node.environment import installed_version
from millpond.node.peers.identity import peer_id
from millpond.transports.http.interface import HttpCounters
from millpond.transports.server.interface import ConnectionSummary, ServerConnection

if TYPE_CHECKING:
    from millpond.node.admin import StatusSources

log = logging.getLogger(__name__)

CELLS_PER_TURN = 1000
"""After so many cells the event loop handles other events."""
ROWS_MAX = 50
"""The rows of a list."""
LIST_BYTES_MAX = 12 * 1024
"""About what a list takes in an answer."""
ROW_BYTES = 150
"""About what a row takes besides its name."""
WINDOW_S_MIN = 0.5
"""Rates are measured over as much at least, where there is an earlier sample."""
WINDOW_S_MAX = 120.0
STATS_S = 10.0
"""Stats of the store that are no older are not made anew."""
NS = 1e9

T = TypeVar("T")
_Ranked = tuple[float, int, bytes, T]
"""The rate of a cell, its backlog, its name and its behaviour."""
Counts = tuple[int, int]
"""Counts of what went in, and of what went out."""
NONE: Counts = (0, 0)


class ProtocolActivity(msgspec.Struct, frozen=True):
    """A protocol: connections that are open, requests and received bytes a second."""

    name: str
    open: int
    requests_s: float
    bytes_s: float


class ChannelActivity(msgspec.Struct, frozen=True):
    """A channel: messages stored (`in_s`) and acknowledged (`out_s`) a second. `lag`: messages that
    the slowest subscriber has not acknowledged (fanout)."""

    name: bytes
    mode: str
    in_s: float
    out_s: float
    messages: int
    bytes: int
    leased: int
    connections: int
    lag: int


class QueueActivity(msgspec.Struct, frozen=True):
    """A channel in queue mode: jobs put and done a second, and their states."""

    name: bytes
    in_s: float
    out_s: float
    ready: int
    delayed: int
    leased: int
    dead: int
    workers: int


class StreamActivity(msgspec.Struct, frozen=True):
    """A stream: records appended (`in_s`) and reads that got records (`out_s`) a second. `lag`:
    records that the slowest consumer group has not committed."""

    name: bytes
    in_s: float
    out_s: float
    records: int
    bytes: int
    waiting: int
    groups: int
    lag: int


class ConnectionActivity(msgspec.Struct, frozen=True):
    """A connection: bytes moved a second, both ways. `identity`: a peer id."""

    number: int
    listener: str
    peer: str
    channel: bytes | None
    identity: str | None
    seconds: float
    bytes_s: float


class ActivityRequest(msgspec.Struct):
    """`limit`: rows of each list."""

    limit: int = 10


class ActivityReply(msgspec.Struct):
    """The node and its busiest parts. `window_s`: what the rates were measured over; 0: this was
    the first sample, ask again. `rates`: of the counters of the node, a second."""

    version: str
    durability: str
    uptime_s: float
    window_s: float
    rss_bytes: int
    cpu: float
    totals: dict[str, int]
    rates: dict[str, float]
    store: dict[str, int | bool | str]
    protocols: list[ProtocolActivity]
    channels: list[ChannelActivity]
    queues: list[QueueActivity]
    streams: list[StreamActivity]
    connections: list[ConnectionActivity]


R = TypeVar("R", ChannelActivity, QueueActivity, StreamActivity)


class _Sample:
    """The counters of one moment. Cells and connections that did nothing are left out."""

    def __init__(
        self,
        at: float,
        cells: dict[bytes, Counts],
        connections: dict[int, int],
        counters: dict[str, int],
        cpu_s: float,
    ) -> None:
        self.at = at
        self.cells = cells
        self.connections = connections
        self.counters = counters
        self.cpu_s = cpu_s


class _Cells:
    """The result of a look at all cells: the busiest, and the number of channels."""

    def __init__(self, sample: _Sample, base: _Sample) -> None:
        self.sample = sample
        self.base = base
        self.rates = _Rates(base, sample)
        self.channels: list[ChannelActivity] = []
        self.queues: list[QueueActivity] = []
        self.streams: list[StreamActivity] = []
        self.channel_count = 0
        self.passivated = 0

    def look(self, sources: StatusSources, limit: int) -> Iterator[None]:
        """Look at all cells, in steps. `limit`: rows of each list."""
        channels: list[_Ranked[Channel]] = []
        queues: list[_Ranked[Channel]] = []
        streams: list[_Ranked[Stream]] = []
        for done, cell in enumerate(list(sources.scheduler.cells.values()), 1):
            name, behaviour = cell.name, cell.behaviour
            if not name.startswith(RESERVED):
                self.channel_count += 1
                self.passivated += behaviour is None and cell.refusal is None
            counts = _counts(behaviour)
            if counts is not None and counts != NONE:
                self.sample.cells[name] = counts
            if isinstance(behaviour, Channel):
                if name != PROBE:
                    is_queue = behaviour.delivery.mode is Mode.QUEUE
                    rate, messages = sum(self.rates.of_cell(name)), len(behaviour.buffer.rows)
                    (queues if is_queue else channels).append((rate, messages, name, behaviour))
            elif isinstance(behaviour, Stream) and qualified_name_of(name) is not None:
                rate = sum(self.rates.of_cell(name))
                streams.append((rate, behaviour.records, name, behaviour))
            if done % CELLS_PER_TURN == 0:
                channels, queues = _first(channels, limit), _first(queues, limit)
                streams = _first(streams, limit)
                yield
        for _, _, _, channel in _first(channels, limit):
            self.channels.append(_channel(channel, self.rates))
            yield
        for _, _, _, queue in _first(queues, limit):
            self.queues.append(_queue(queue, self.rates, sources))
        for _, _, name, stream in _first(streams, limit):
            self.streams.append(_stream(name, stream, self.rates))


class ActivitySampler:
    """Answers what a node does now. Holds the last two samples."""

    def __init__(
        self,
        ticks_ns: Callable[[], int],
        connections: Callable[[], Iterable[ServerConnection]],
        http: HttpCounters,
        appended: Callable[[], int],
    ) -> None:
        self._ticks_ns = ticks_ns
        self._connections = connections
        self._http = http
        self._appended = appended
        self._samples: list[_Sample] = []
        self._stats: tuple[float, StoreStats] | None = None
        self._tasks: TaskGroup | None = None
        self._found: _Cells | None = None
        self._is_looking = False
        """True: a task looks at the cells."""

    def open(self, tasks: TaskGroup) -> None:
        """Look at many cells in tasks from now on."""
        self._tasks = tasks

    def ticks_s(self) -> float:
        """Now, in seconds of a clock that is never set."""
        return self._ticks_ns() / NS

    def traffic(self) -> dict[str, int]:
        """Counters since the start that no channel has: of streams and of HTTP."""
        return {
            "appended": self._appended(),
            "http_requests": self._http.requests,
            "http_bytes_in": self._http.bytes_in,
            "http_bytes_out": self._http.bytes_out,
        }

    def summaries(self) -> list[ConnectionSummary]:
        """The open connections."""
        found = (each.summary for each in self._connections())
        return [each for each in found if each is not None]

    def store_stats(self, store: DurableStore) -> StoreStats:
        """Stats of the store, `STATS_S` old at most: they take a look at each partition."""
        now = self.ticks_s()
        if self._stats is None or now - self._stats[0] >= STATS_S:
            self._stats = now, store.stats
        return self._stats[1]

    def answer(self, request: ActivityRequest, sources: StatusSources) -> ActivityReply:
        """The activity since a sample that is half a second old at least, if there is one."""
        limit = max(1, min(request.limit, ROWS_MAX))
        summaries = self.summaries()
        found = self._look(sources, summaries, limit)
        sample, base, rates = found.sample, found.base, found.rates
        window_s = sample.at - base.at
        open_now = Counter(each.listener for each in summaries)
        connections = nlargest(limit, summaries, key=rates.of_connection)
        store, delivery = sources.store, sources.delivery
        return ActivityReply(
            version=installed_version(),
            durability=sources.durability.name.lower(),
            uptime_s=round(sources.uptime_s, 3),
            window_s=round(window_s, 3),
            rss_bytes=sources.rss_bytes,
            cpu=round((sample.cpu_s - base.cpu_s) / window_s, 3) if window_s else 0.0,
            totals={
                "connections": sources.connections,
                "channels": found.channel_count,
                "passivated": found.passivated,
                "streams": sources.streams,
                "messages": store.usage.messages,
                "message_bytes": store.usage.bytes,
                "stream_bytes": store.usage.log_bytes,
                "dead_letters": delivery.dead_letters,
                "crashes": sources.scheduler.counters.crashes,
                "refused": sources.wire.refused,
            },
            rates={name: rates.of(name) for name in sample.counters if "." not in name},
            store=_store(sources),
            protocols=[
                ProtocolActivity(
                    name, open_now[name], rates.of(f"{name}.requests"), rates.of(f"{name}.bytes")
                )
                for name in sources.protocol_stats
            ],
            channels=_fitting(found.channels[:limit]),
            queues=_fitting(found.queues[:limit]),
            streams=_fitting(found.streams[:limit]),
            connections=[_connection(each, rates, sources.now) for each in connections],
        )

    def _look(
        self, sources: StatusSources, summaries: list[ConnectionSummary], limit: int
    ) -> _Cells:
        """The result of a look at the cells; that of the time before, if it takes several turns."""
        if self._is_looking and self._found is not None:
            return self._found
        sample = self._sample(sources, summaries)
        found = _Cells(sample, self._base(sample.at) or sample)
        if self._tasks is not None and len(sources.scheduler.cells) > CELLS_PER_TURN:
            self._is_looking = True
            self._tasks.start_soon(self._look_in_turns, found, sources, limit)
            if self._found is None or self._found.sample.at <= sample.at - WINDOW_S_MAX:
                self._found = _Cells(sample, sample)  # without rows: `top` asks again
            return self._found
        for _ in found.look(sources, limit):
            pass
        self._finish(found)
        return found

    async def _look_in_turns(self, found: _Cells, sources: StatusSources, limit: int) -> None:
        try:
            for _ in found.look(sources, limit):
                await checkpoint()
            self._finish(found)
        except Exception:  # a task of the node, which no error of a sample may end
            log.exception("activity not sampled")  # the next request tries again
        finally:
            self._is_looking = False

    def _finish(self, found: _Cells) -> None:
        """Answer with these from now on, and compare later ones with them."""
        self._found = found
        at = found.sample.at
        if all(each.at <= at - WINDOW_S_MIN for each in self._samples):
            self._samples = [*self._samples[-1:], found.sample]

    def _sample(self, sources: StatusSources, summaries: list[ConnectionSummary]) -> _Sample:
        """The counters of now, but for those of cells."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        return _Sample(
            self._ticks_ns() / NS,
            {},
            {each.number: each.moved_bytes for each in summaries},
            self._counters(sources),
            used.ru_utime + used.ru_stime,
        )

    def _counters(self, sources: StatusSources) -> dict[str, int]:
        delivery = sources.delivery
        found = msgspec.structs.asdict(delivery)
        found["appended"] = self._appended()
        found["refused"] = sources.wire.refused
        if isinstance(sources.store, DurableStore):
            stats = sources.store.stats
            found |= {"commits": stats.groups, "syncs": stats.syncs}
            found["written_bytes"] = sources.store.journal_stats.bytes
        for name, each in sources.protocol_stats.items():
            is_http = name == "http"
            found[f"{name}.requests"] = self._http.requests if is_http else each.requests
            found[f"{name}.bytes"] = self._http.bytes_in if is_http else each.bytes_in
        return found

    def _base(self, at: float) -> _Sample | None:
        """The sample that one of this time is compared with."""
        self._samples = [each for each in self._samples if each.at > at - WINDOW_S_MAX]
        old = [each for each in self._samples if each.at <= at - WINDOW_S_MIN]
        return old[-1] if old else None


class _Rates:
    """Rates by the second between two samples."""

    def __init__(self, base: _Sample, sample: _Sample) -> None:
        self._base = base
        self._sample = sample
        self._seconds = sample.at - base.at

    def of(self, counter: str) -> float:
        """The rate of a counter of the node."""
        return self._rate(self._base.counters.get(counter, 0), self._sample.counters[counter])

    def of_cell(self, name: bytes) -> tuple[float, float]:
        """The rates of a cell."""
        before = self._base.cells.get(name, NONE)
        now = self._sample.cells.get(name, NONE)
        return self._rate(before[0], now[0]), self._rate(before[1], now[1])

    def of_connection(self, summary: ConnectionSummary) -> float:
        """The bytes of a connection."""
        moved = self._sample.connections.get(summary.number, 0)
        return self._rate(self._base.connections.get(summary.number, 0), moved)

    def _rate(self, before: int, now: int) -> float:
        if not self._seconds:
            return 0.0
        # A cell that was built anew counts from 0 again.
        return round((now - before if now >= before else now) / self._seconds, 1)


def _counts(behaviour: object) -> Counts | None:
    if isinstance(behaviour, Channel):
        return behaviour.kept, behaviour.acked
    return (behaviour.appended, behaviour.reads) if isinstance(behaviour, Stream) else None


def _first(rows: list[_Ranked[T]], limit: int) -> list[_Ranked[T]]:
    return nlargest(limit, rows, key=lambda row: row[:2])


def _channel(channel: Channel, rates: _Rates) -> ChannelActivity:
    info, (in_s, out_s) = channel.info, rates.of_cell(channel.name)
    lag = max(channel.lags, default=0)
    return ChannelActivity(
        channel.name,
        info.mode,
        in_s,
        out_s,
        info.messages,
        info.bytes,
        info.leased,
        info.connections,
        lag,
    )


def _queue(channel: Channel, rates: _Rates, sources: StatusSources) -> QueueActivity:
    in_s, out_s = rates.of_cell(channel.name)
    delivery, pending = channel.delivery, len(channel.dead_letters)
    delayed = len(delivery.delayed) - pending
    return QueueActivity(
        channel.name,
        in_s,
        out_s,
        max(0, len(channel.buffer.rows) - delivery.leased - delayed - pending),
        delayed,
        delivery.leased,
        sources.store.partition_usage(channel.name + DEAD_SUFFIX).messages,
        len(delivery.receivers),
    )


def _stream(cell: bytes, stream: Stream, rates: _Rates) -> StreamActivity:
    lags, (in_s, out_s) = stream.lags, rates.of_cell(cell)
    return StreamActivity(
        qualified_name_of(cell) or b"",
        in_s,
        out_s,
        stream.records,
        stream.bytes_kept,
        stream.waiting,
        len(lags),
        max(lags, default=0),
    )


def _connection(summary: ConnectionSummary, rates: _Rates, now: float) -> ConnectionActivity:
    return ConnectionActivity(
        summary.number,
        summary.listener,
        summary.peer,
        summary.channel,
        None if summary.identity is None else peer_id(summary.identity),
        round(max(0.0, now - summary.opened_at), 1),
        rates.of_connection(summary),
    )


def _store(sources: StatusSources) -> dict[str, int | bool | str]:
    store = sources.store
    found: dict[str, int | bool | str] = {
        "is_writable": store.health.is_writable,
        "reason": store.health.reason,
        "failures": store.health.failures,
    }
    if isinstance(store, DurableStore):
        stats = store.stats
        found |= {"journal_bytes": stats.journal_bytes, "segments": stats.segments}
        found |= {"files": stats.files, "damages": stats.damages}
    elif store.damages:
        found["damages"] = len(store.damages)
    return found


def _fitting(rows: list[R]) -> list[R]:
    """The first rows, as many as surely fit."""
    kept: list[R] = []
    size = 0
    for row in rows:
        size += len(row.name) + ROW_BYTES
        if size > LIST_BYTES_MAX and kept:
            break
        kept.append(row)
    return kept

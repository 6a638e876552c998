"""Metrics with names: channels, queues, streams, consumer groups and peers, each the busiest few.

Nothing is counted for them while requests are served: a scrape reads what the actors have. Of each
kind at most `metrics_names_max` names that match `metrics_names` are shown, and the rest is one
row, `_other`. A name that was shown stays unless another has twice its weight, so that series do
not come and go. Names of chats, mailboxes and mailboxes of results are never shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from heapq import heappush, heapreplace
from typing import Generic, TypeVar

import msgspec
from anyio.lowlevel import checkpoint

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.dead_letters import DEAD_SUFFIX
from millpond.actors.messages import Mode
from millpond.actors.runtime.cell import Cell
from millpond.actors.store.interface import PartitionUsage
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.names import RESERVED
from millpond.actors.streams.stream import Stream
from millpond.node.admin import PeerRow, StatusSources
from millpond.node.client.probe import PROBE
from millpond.node.jobs.payload import is_result_mailbox
from millpond.transports.server.private_names import is_private

OTHER = "_other"
"""The label value of all names that are not shown."""
IN_USE = 1000
"""A stream that is in use weighs so many times what one at rest does."""
ROWS_PER_PASS = 100
"""After so many rows the event loop handles other events."""
QUEUE_ROWS = 20
"""A queue, among whose jobs the oldest is looked for, takes as long as so many other rows."""

Name = TypeVar("Name", bound=bytes | tuple[bytes, bytes])


class NameRules(msgspec.Struct, frozen=True):
    """The rules of names as labels: so many of each kind, which match one of the patterns."""

    count_max: int
    patterns: tuple[str, ...]

    def allows(self, name: bytes) -> bool:
        """True for a name that may be shown."""
        if is_private(name) or is_result_mailbox(name) or name == PROBE:
            return False
        text = name.decode("utf-8", "surrogateescape")
        return any(fnmatchcase(text, pattern) for pattern in self.patterns)


class Busiest(Generic[Name]):
    """The names of one kind with the highest weights."""

    def __init__(
        self, count_max: int, before: frozenset[Name], allows: Callable[[Name], bool]
    ) -> None:
        self._count_max = count_max
        self._before = before
        self._allows = allows
        self._heap: list[tuple[float, Name]] = []

    def offer(self, name: Name, weight: float) -> None:
        """Consider a name. It is compared with the patterns only where its weight suffices."""
        if name in self._before:
            weight *= 2
        heap = self._heap
        if len(heap) < self._count_max:
            if self._allows(name):
                heappush(heap, (weight, name))
        elif heap and weight > heap[0][0] and self._allows(name):
            heapreplace(heap, (weight, name))

    @property
    def names(self) -> list[Name]:
        """The names, in order."""
        return sorted(name for _, name in self._heap)


class ChannelRow(msgspec.Struct):
    """A channel, or the sum of the rest. `oldest_s` None: not known."""

    messages: int = 0
    bytes: int = 0
    leased: int = 0
    consumers: int = 0
    lag: int = 0
    oldest_s: float | None = None

    def without(self, other: ChannelRow) -> None:
        """Take a part from a sum."""
        self.messages = max(0, self.messages - other.messages)
        self.bytes = max(0, self.bytes - other.bytes)
        self.leased = max(0, self.leased - other.leased)
        self.consumers = max(0, self.consumers - other.consumers)
        self.lag = max(0, self.lag - other.lag)


class QueueRow(msgspec.Struct):
    """A queue, or the sum of the rest: its jobs now."""

    ready: int = 0
    delayed: int = 0
    running: int = 0
    workers: int = 0
    dead: int = 0
    oldest_s: float | None = None
    paused: int = 0
    limited: int = 0

    def add(self, other: QueueRow, sign: int = 1) -> None:
        """Add to a sum, or take a part from it."""
        self.ready = max(0, self.ready + sign * other.ready)
        self.delayed = max(0, self.delayed + sign * other.delayed)
        self.running = max(0, self.running + sign * other.running)
        self.workers = max(0, self.workers + sign * other.workers)
        self.dead = max(0, self.dead + sign * other.dead)
        self.paused = max(0, self.paused + sign * other.paused)
        self.limited = max(0, self.limited + sign * other.limited)


class JobRow(msgspec.Struct):
    """The jobs of a queue since the start of the node."""

    put: int
    done: int
    failed: int
    dead: int


class StreamRow(msgspec.Struct):
    """A stream, or the sum of the rest. `tail` None: not known."""

    bytes: int = 0
    tail: int | None = None


class NamedMetrics(msgspec.Struct):
    """The rows of one scrape, by their labels; `_other` is last. A stream and a group have their
    topic, if it has several partitions."""

    channels: dict[str, ChannelRow] = {}
    queues: dict[str, QueueRow] = {}
    jobs: dict[str, JobRow] = {}
    streams: dict[tuple[str, str], StreamRow] = {}
    groups: dict[tuple[str, str, str], int] = {}
    peers: dict[str, PeerRow] = {}


class _Shown(msgspec.Struct):
    """The names of the last scrape."""

    channels: frozenset[bytes] = frozenset()
    queues: frozenset[bytes] = frozenset()
    streams: frozenset[bytes] = frozenset()
    groups: frozenset[tuple[bytes, bytes]] = frozenset()


class NameScan:
    """One scrape: every channel, stream and group is offered once, then `rows` reads those that
    are shown."""

    def __init__(self, rules: NameRules, shown: _Shown, status: StatusSources) -> None:
        count, allows = rules.count_max, rules.allows
        self._status = status
        self._count_max = count
        self._channels = Busiest(count, shown.channels, allows)
        self._queues = Busiest(count, shown.queues, allows)
        self._streams = Busiest(count, shown.streams, allows)
        self._groups = Busiest(count, shown.groups, lambda name: allows(name[0]))
        self._queue_total = QueueRow()
        self._lags: dict[bytes, int] = {}
        """Of channels with subscribers that lag."""
        self._group_total = self._rows = 0

    def offer_channel(self, channel: Channel, in_use: int, lag: int) -> None:
        """Consider a channel in memory: so many leases and connections, so much lag."""
        name = channel.name
        if name.startswith(RESERVED) or not self._count_max:
            return
        self._channels.offer(name, len(channel.buffer.rows) + in_use)
        if lag:
            self._lags[name] = lag
        if name.endswith(DEAD_SUFFIX):
            self._queue_total.dead += self._usage(name).messages
        elif channel.delivery.mode is Mode.QUEUE:
            jobs = channel.jobs_now(self._status.now, with_oldest=False)
            if jobs is not None:
                ready, delayed, running, workers, _ = jobs
                delivery, total = channel.delivery, self._queue_total
                total.ready += ready
                total.delayed += delayed
                total.running += running
                total.workers += workers
                total.paused += delivery.is_paused
                total.limited += min(ready, delivery.limited_count)
                self._queues.offer(name, ready + delayed + running + workers)

    def offer_cell(self, cell: Cell) -> None:
        """Consider a channel that is not in memory. Other cells are no channels."""
        name = cell.name
        if name.startswith(RESERVED) or not self._count_max:
            return
        usage = self._status.store.partition_usage(name)
        self._channels.offer(name, usage.messages)
        if name.endswith(DEAD_SUFFIX):
            self._queue_total.dead += usage.messages
        elif usage.mode is Mode.QUEUE:
            self._queue_total.ready += usage.messages
            self._queue_total.paused += self._status.queue_table.of(name).is_paused
            self._queues.offer(name, usage.messages)

    def offer_stream(self, name: bytes, directory: Directory) -> None:
        """Consider a stream."""
        if self._count_max:
            cell = directory.cell_of(name)
            weight = self._usage(cell).bytes + 1
            is_used = self._status.scheduler.view(cell) is not None
            self._streams.offer(name, weight * IN_USE if is_used else weight)

    def offer_groups(self, stream: bytes, lags: Sequence[tuple[bytes, int]]) -> None:
        """Consider the groups of a stream, with their lags."""
        for group, lag in lags:
            self._group_total += lag
            self._groups.offer((stream, group), lag + 1)

    async def rows(self, directory: Directory, oldest: dict[bytes, float]) -> NamedMetrics:
        """The shown rows, read in steps. `oldest` has the time of the oldest message of channels
        when they were loaded last: while one is at rest, that is still the oldest."""
        found = NamedMetrics()
        if not self._count_max:
            return found
        status = self._status
        for name in self._channels.names:
            found.channels[_text(name)] = self._channel(name, oldest)
            await self._yield_to_loop()
        for name in self._queues.names:
            row = self._queue(name, with_oldest=True)
            if row.oldest_s is None and name in oldest:
                row.oldest_s = max(0.0, status.now - oldest[name])
            found.queues[_text(name)] = row
            self._queue_total.add(row, -1)
            counters = status.queues.get(name)
            if counters is not None:
                failed = counters.nacks + counters.timeouts + counters.lost
                found.jobs[_text(name)] = JobRow(
                    counters.kept, counters.acks, failed, counters.dead_letters
                )
            await self._yield_to_loop(QUEUE_ROWS)
        found.queues[OTHER] = self._queue_total
        for name in self._streams.names:
            found.streams[_text(name), _topic(name, directory)] = self._stream(name, directory)
            await self._yield_to_loop()
        rest = status.store.usage.log_bytes - sum(each.bytes for each in found.streams.values())
        found.streams[OTHER, ""] = StreamRow(max(0, rest))
        for stream, group in self._groups.names:
            progress = directory.progress_of(stream)
            lag = 0 if progress is None else progress.lag_of(group)
            found.groups[_text(stream), _topic(stream, directory), _text(group)] = lag
            self._group_total -= lag
            await self._yield_to_loop()
        found.groups[OTHER, "", OTHER] = max(0, self._group_total)
        peers = sorted(status.peers(), key=lambda row: (-row.queued - row.unconfirmed, row.name))
        for each in peers[: self._count_max]:
            found.peers[each.name] = each
        return found

    async def _yield_to_loop(self, cost: int = 1) -> None:
        """Let the event loop handle other events after so many rows."""
        self._rows += cost
        if self._rows >= ROWS_PER_PASS:
            self._rows = 0
            await checkpoint()

    def shown(self) -> _Shown:
        """The names, for the next scrape."""
        return _Shown(
            frozenset(self._channels.names),
            frozenset(self._queues.names),
            frozenset(self._streams.names),
            frozenset(self._groups.names),
        )

    def _usage(self, cell: bytes) -> PartitionUsage:
        return self._status.store.partition_usage(cell)

    def _channel(self, name: bytes, oldest: dict[bytes, float]) -> ChannelRow:
        now, behaviour = self._status.now, self._status.scheduler.view(name)
        if not isinstance(behaviour, Channel):
            usage, since = self._usage(name), oldest.get(name)
            oldest_s = None if since is None or not usage.messages else max(0.0, now - since)
            return ChannelRow(usage.messages, usage.bytes, oldest_s=oldest_s)
        info, oldest_s = behaviour.info, behaviour.oldest_s(now)
        if info.messages:
            oldest[name] = now - oldest_s
        lag = self._lags.get(name, 0)
        return ChannelRow(info.messages, info.bytes, info.leased, info.connections, lag, oldest_s)

    def _queue(self, name: bytes, *, with_oldest: bool) -> QueueRow:
        dead = self._usage(name + DEAD_SUFFIX).messages if with_oldest else 0
        behaviour = self._status.scheduler.view(name)
        if not isinstance(behaviour, Channel):
            paused = int(self._status.queue_table.of(name).is_paused)
            return QueueRow(ready=self._usage(name).messages, dead=dead, paused=paused)
        jobs = behaviour.jobs_now(self._status.now, with_oldest=with_oldest)
        if jobs is None:
            return QueueRow()
        ready, delayed, running, workers, oldest_s = jobs
        delivery = behaviour.delivery
        limited = min(ready, delivery.limited_count)
        return QueueRow(
            ready, delayed, running, workers, dead, oldest_s, int(delivery.is_paused), limited
        )

    def _stream(self, name: bytes, directory: Directory) -> StreamRow:
        cell = directory.cell_of(name)
        behaviour, position = self._status.scheduler.view(cell), next(directory.positions((name,)))
        tail = None if position is None else position[1]
        if isinstance(behaviour, Stream):
            tail = behaviour.tail
        return StreamRow(self._usage(cell).bytes, tail)


class NamedMetricsMemory:
    """The memory between two scrapes: what was shown, and times of oldest messages of that."""

    def __init__(self, rules: NameRules) -> None:
        self._rules = rules
        self._shown = _Shown()
        self._oldest: dict[bytes, float] = {}

    def scan(self, status: StatusSources) -> NameScan:
        """A new scrape."""
        return NameScan(self._rules, self._shown, status)

    async def finish(
        self, scan: NameScan, directory: Directory, totals: ChannelRow
    ) -> NamedMetrics:
        """The rows of a scrape; `totals` are those of all channels."""
        found = await scan.rows(directory, self._oldest)
        if found.channels or self._rules.count_max:
            for row in found.channels.values():
                totals.without(row)
            found.channels[OTHER] = totals
        self._shown = scan.shown()
        kept = self._shown.channels | self._shown.queues
        self._oldest = {name: since for name, since in self._oldest.items() if name in kept}
        return found


def _topic(stream: bytes, directory: Directory) -> str:
    """The topic of several partitions that the stream is one of; empty: it is of none."""
    topic, slash, number = stream.rpartition(b"/")
    return _text(topic) if slash and number.isdigit() and directory.has_topic(topic) else ""


def _text(name: bytes) -> str:
    """A name as the value of a label."""
    return name.decode("utf-8", "backslashreplace")

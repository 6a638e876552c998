"""`/metrics` in Prometheus's text format: read from the node's counters when somebody asks.

Nothing here is counted in the hot path. `named_metrics` has those with names as labels.
"""

from __future__ import annotations

from typing import cast

from anyio import Lock
from anyio.lowlevel import checkpoint

from millpond.actors.channels.channel import Channel
from millpond.actors.channels.queries import LagSteps
from millpond.actors.errors import Code
from millpond.actors.jobs.results import JobResults
from millpond.actors.messages import Mode
from millpond.node.admin import StatusSources
from millpond.node.http.health import RightsOf, rejection_of
from millpond.node.http.metric_sources import CellTotals, MetricSources
from millpond.node.http.named_metrics import (
    ChannelRow,
    NamedMetrics,
    NamedMetricsMemory,
    NameRules,
    NameScan,
)
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection

CELLS_PER_PASS = 500
"""After so many cells the event loop handles other events: they take about a millisecond."""
MESSAGES_PER_CELL = 20
"""Counting so many messages takes as long as counting a cell."""


class MetricsApi:
    """The API of `/metrics`, for clients that may use the command `info`."""

    name = "metrics"

    def __init__(self, sources: MetricSources, rights_of: RightsOf) -> None:
        self._sources = sources
        self._rights_of = rights_of
        config = sources.config
        self._names = NamedMetricsMemory(NameRules(config.metrics_names_max, config.metrics_names))
        self._turn = Lock()
        self.scrapes = 0
        """Scrapes that have begun."""
        self._last: tuple[CellTotals, NamedMetrics] | None = None

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        refusal = rejection_of(request, self._rights_of)
        if refusal is not None:
            return refusal
        totals, named = await self._scrape()
        # Imported on the first request: the module takes 3 MB.
        from millpond.node.http.prometheus import expose

        accept = (request.header(b"accept") or b"").decode("latin-1")
        content_type, text = await expose(self._sources, totals, named, accept)
        headers = ((b"content-type", content_type.encode()), (b"cache-control", b"no-store"))
        return Response(200, headers, text)

    async def _scrape(self) -> tuple[CellTotals, NamedMetrics]:
        """The values of now. One scrape at a time looks at the cells: requests that come meanwhile
        share the next one."""
        wanted = self.scrapes + 1
        async with self._turn:
            if self._last is None or self.scrapes < wanted:
                self.scrapes += 1
                status = self._sources.status()
                scan = self._names.scan(status)
                totals = await _totals(status, scan)
                every = _all_channels(status, totals)
                named = await self._names.finish(scan, status.directory, every)
                self._last = totals, named
            return self._last

    def reject(self, reason: Rejection, delay_ms: int | None) -> Response | None:
        return (
            None if reason in (Rejection.DRAINING, Rejection.TOO_MANY) else plain_rejection(reason)
        )


def _all_channels(status: StatusSources, totals: CellTotals) -> ChannelRow:
    usage = status.store.usage
    lag = totals.subscriber_lag.total
    return ChannelRow(usage.messages, usage.bytes, totals.leased, totals.consumers, lag)


async def _totals(status: StatusSources, scan: NameScan) -> CellTotals:
    totals, done = CellTotals(), 0
    for cell in list(status.scheduler.cells.values()):
        behaviour = cell.behaviour
        if cell.refusal is not None:
            totals.quarantined += cell.refusal is Code.QUARANTINED
            totals.unreadable += cell.refusal is Code.STORAGE_FAILED
        if not isinstance(behaviour, Channel):
            if isinstance(behaviour, JobResults):
                count, size = behaviour.counts
                totals.job_records += count
                totals.job_record_bytes += size
            scan.offer_cell(cell)
        elif behaviour.delivery.mode is Mode.FANOUT:
            lags = behaviour.small_lags()
            if lags is None:
                lags = await _in_steps(behaviour.lags_in_steps())
            # For the lag, the messages of the channel were counted.
            if lags:
                totals.subscriber_lag.add(lags)
                done += len(lags) + len(behaviour.buffer.rows) // MESSAGES_PER_CELL
            _count(behaviour, totals, scan, sum(lags))
        else:
            _count(behaviour, totals, scan, 0)
        done += 1
        if done >= CELLS_PER_PASS:
            done = 0
            await checkpoint()
    for name in list(status.directory.streams):
        scan.offer_stream(name, status.directory)
        done += 1
        if done >= CELLS_PER_PASS:
            done = 0
            await checkpoint()
    for name, progress in status.directory.group_progress():
        lags_by_group = progress.by_group()
        totals.group_lag.add(lag for _, lag in lags_by_group)
        scan.offer_groups(name, lags_by_group)
        done += 1 + len(lags_by_group)
        if done >= CELLS_PER_PASS:
            done = 0
            await checkpoint()
    return totals


def _count(channel: Channel, totals: CellTotals, scan: NameScan, lag: int) -> None:
    """Count a channel in memory."""
    delivery = channel.delivery
    connections, leased = len(delivery.consumers), 0
    totals.channels += 1
    if connections:
        leased = delivery.leased
        totals.leased += leased
        totals.consumers += connections
        totals.credit += delivery.credit
    totals.subscribers += len(channel.subscribers.subscriptions)
    scan.offer_channel(channel, leased + connections, lag)


async def _in_steps(steps: LagSteps) -> list[int]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast(list[int], end.value)
        await checkpoint()

"""`/metrics` in Prometheus's text format: read from the node's counters when somebody asks.

Nothing here is counted in the hot path. `named_metrics` has those with names as labels.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from millpond.actors.channels.channel import Channel
from millpond.actors.errors import Code
from millpond.actors.jobs.results import JobResults
from millpond.actors.runtime.cell import Cell
from millpond.node.admin import StatusSources
from millpond.node.http.health import RightsOf, rejection_of
from millpond.node.http.metric_sources import CellTotals, MetricSources
from millpond.node.http.named_metrics import (
    ChannelRow,
    NamedMetricsMemory,
    NameRules,
    NameScan,
)
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection

CELLS_PER_PASS = 200
"""After so many cells the event loop handles other events."""
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

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        refusal = rejection_of(request, self._rights_of)
        if refusal is not None:
            return refusal
        status = self._sources.status()
        scan = self._names.scan(status)
        totals = await _totals(status, scan)
        named = self._names.finish(scan, status.directory, _all_channels(status, totals))
        # Imported on the first request: the module takes 3 MB.
        from millpond.node.http.prometheus import expose

        accept = (request.header(b"accept") or b"").decode("latin-1")
        content_type, text = expose(self._sources, totals, named, accept)
        headers = ((b"content-type", content_type.encode()), (b"cache-control", b"no-store"))
        return Response(200, headers, text)

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
    for name, cell in list(status.scheduler.cells.items()):
        done += _count(cell, totals)
        scan.offer_cell(name, cell)
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
        lags = progress.by_group()
        totals.group_lag.add(lag for _, lag in lags)
        scan.offer_groups(name, lags)
        done += len(lags)
        if done >= CELLS_PER_PASS:
            done = 0
            await checkpoint()
    return totals


def _count(cell: Cell, totals: CellTotals) -> int:
    """Count a cell; gives the cost, in cells without messages."""
    totals.quarantined += cell.refusal is Code.QUARANTINED
    totals.unreadable += cell.refusal is Code.STORAGE_FAILED
    behaviour = cell.behaviour
    if isinstance(behaviour, JobResults):
        count, size = behaviour.counts
        totals.job_records += count
        totals.job_record_bytes += size
    if not isinstance(behaviour, Channel):
        return 1
    info, lags = behaviour.info, behaviour.lags
    totals.channels += 1
    totals.leased += info.leased
    totals.consumers += info.connections
    totals.credit += info.credit
    totals.subscribers += info.subscribers
    totals.subscriber_lag.add(lags)
    # For the lag, the messages of the channel were counted.
    return 1 + len(lags) + (info.messages // MESSAGES_PER_CELL if lags else 0)

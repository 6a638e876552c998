"""`/metrics` in Prometheus's text format: read from the node's counters when somebody asks.

Nothing here is counted in the hot path, and no label has a name that clients choose.
"""

from __future__ import annotations

from anyio.lowlevel import checkpoint

from millpond.actors.channels.channel import Channel
from millpond.actors.errors import Code
from millpond.actors.runtime.cell import Cell
from millpond.node.admin import StatusSources
from millpond.node.http.health import RightsOf, rejection_of
from millpond.node.http.metric_sources import CellTotals, MetricSources
from millpond.transports.http.rejections import Rejection
from millpond.transports.http.request import Request
from millpond.transports.http.response import Response, ResponseWriter, plain_rejection

AT_ONCE = 200
"""Between so many cells others get their turn."""
MESSAGES_PER_CELL = 20
"""To look at so many messages takes as long as to look at a cell."""


class MetricsApi:
    """`/metrics`, for who may ask for `info`."""

    name = "metrics"

    def __init__(self, figures: MetricSources, rights_of: RightsOf) -> None:
        self._figures = figures
        self._rights_of = rights_of

    async def __call__(self, request: Request, writer: ResponseWriter) -> Response:
        refusal = rejection_of(request, self._rights_of)
        if refusal is not None:
            return refusal
        totals = await _totals(self._figures.sources())
        # Imported by who asks: a node that nobody watches need not carry its 3 MB.
        from millpond.node.http.prometheus import expose

        accept = (request.header(b"accept") or b"").decode("latin-1")
        content_type, text = expose(self._figures, totals, accept)
        headers = ((b"content-type", content_type.encode()), (b"cache-control", b"no-store"))
        return Response(200, headers, text)

    def reject(self, why: Rejection, delay_ms: int | None) -> Response | None:
        return None if why in (Rejection.DRAINING, Rejection.TOO_MANY) else plain_rejection(why)


async def _totals(sources: StatusSources) -> CellTotals:
    totals, done = CellTotals(), 0
    for cell in list(sources.scheduler.cells.values()):
        done += _count(cell, totals)
        if done >= AT_ONCE:
            done = 0
            await checkpoint()
    for progress in sources.progress():
        lags = progress.lags()
        totals.group_lag.add(lags)
        done += len(lags)
        if done >= AT_ONCE:
            done = 0
            await checkpoint()
    return totals


def _count(cell: Cell, totals: CellTotals) -> int:
    """Gives what that cost, in cells that are at rest."""
    totals.quarantined += cell.refusal is Code.QUARANTINED
    totals.unreadable += cell.refusal is Code.STORAGE_FAILED
    behaviour = cell.behaviour
    if not isinstance(behaviour, Channel):
        return 1
    info, lags = behaviour.info, behaviour.lags
    totals.channels += 1
    totals.leased += info.leased
    totals.guests += info.connections
    totals.credit += info.credit
    totals.subscribers += info.subscribers
    totals.subscriber_lag.add(lags)
    # Whose lag is told, the messages of such a channel were looked at.
    return 1 + len(lags) + (info.messages // MESSAGES_PER_CELL if lags else 0)

"""Sources of the metrics of a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from millpond.actors.jobs.schedule_counters import ScheduleCounters
from millpond.actors.state.stats import StateUsage
from millpond.actors.streams.directory import StagingDirectory
from millpond.actors.streams.settings import StreamCounters
from millpond.node.admin import StatusSources
from millpond.node.config import Config
from millpond.node.webhooks.services import SubscriptionServices
from millpond.transports.http.interface import HttpCounters
from millpond.transports.http.transactions.interface import TransactionCounters
from millpond.transports.rustlog.metrics import RustlogMetrics
from millpond.transports.server.interface import ServerConnection
from millpond.transports.server.memory_budget import MemoryBudget


class LagTotals(msgspec.Struct):
    """The lag of consumers: of all of them together, and of the slowest one."""

    total: int = 0
    most: int = 0

    def add(self, lags: Iterable[int]) -> None:
        """Count the lags of more consumers."""
        for each in lags:
            self.total += each
            self.most = max(self.most, each)


class CellTotals(msgspec.Struct):
    """Totals of all channels in memory, the lag of subscribers and consumer groups, the records of
    jobs, and the number of cells that refuse requests."""

    channels: int = 0
    leased: int = 0
    consumers: int = 0
    credit: int = 0
    subscribers: int = 0
    subscriber_lag: LagTotals = msgspec.field(default_factory=LagTotals)
    group_lag: LagTotals = msgspec.field(default_factory=LagTotals)
    job_records: int = 0
    job_record_bytes: int = 0
    quarantined: int = 0
    unreadable: int = 0


class MetricSources(msgspec.Struct, frozen=True):
    """Sources of metrics; `status` gives those of the command `info`."""

    status: Callable[[], StatusSources]
    config: Config
    connections: Callable[[], Iterable[ServerConnection]]
    listener_of: Callable[[ServerConnection], str]
    http: HttpCounters
    streams: StreamCounters
    states: StateUsage
    schedules: ScheduleCounters
    stages: StagingDirectory
    transactions: TransactionCounters
    groups: Callable[[], int]
    memory: MemoryBudget
    rustlog: RustlogMetrics
    subscriptions: SubscriptionServices

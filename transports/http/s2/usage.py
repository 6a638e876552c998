"""Usage of S2 by minute and hour: permitted requests, and bytes of records.

It is in memory: the minutes of a day, the hours of a month, and no more than `ENTRIES_MAX` of
either; the oldest ones make room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from millpond.transports.http.s2.codecs.config import StorageClass
from millpond.transports.http.s2.codecs.tokens import Operation

MINUTE_S, HOUR_S = 60, 3600
MINUTES_S, HOURS_S = 86_400, 31 * 86_400
"""The time for which minutes and hours are kept."""
ENTRIES_MAX = 20_000
"""Basins with usage, summed over all minutes kept, or all hours."""
ACCOUNT = b""
"""The name under which the operations of no basin are counted."""

OF_ACCOUNT = frozenset(
    {
        Operation.LIST_BASINS,
        Operation.CREATE_BASIN,
        Operation.DELETE_BASIN,
        Operation.RECONFIGURE_BASIN,
        Operation.GET_BASIN_CONFIG,
        Operation.ISSUE_ACCESS_TOKEN,
        Operation.REVOKE_ACCESS_TOKEN,
        Operation.LIST_ACCESS_TOKENS,
        Operation.ACCOUNT_METRICS,
        Operation.BASIN_METRICS,
        Operation.STREAM_METRICS,
        Operation.LIST_LOCATIONS,
        Operation.GET_DEFAULT_LOCATION,
        Operation.SET_DEFAULT_LOCATION,
    }
)


@dataclass(slots=True)
class BasinUsage:
    """The usage of one basin for some time. A session is one operation; bytes are metered ones.

    Appends are counted by the storage class of their stream; None: they were refused, and the class
    is not known. The other operations are in `operations`.
    """

    operations: Counter[Operation] = field(default_factory=Counter)
    appends: Counter[StorageClass | None] = field(default_factory=Counter)
    appended_bytes: Counter[StorageClass] = field(default_factory=Counter)
    unary_reads: int = 0
    streaming_reads: int = 0
    read_bytes: int = 0

    def add(self, other: BasinUsage) -> None:
        """Add the usage of another time."""
        self.operations.update(other.operations)
        self.appends.update(other.appends)
        self.appended_bytes.update(other.appended_bytes)
        self.unary_reads += other.unary_reads
        self.streaming_reads += other.streaming_reads
        self.read_bytes += other.read_bytes


UsageByBasin = dict[bytes, BasinUsage]


class S2Usage:
    """The usage of one node. `now` gives seconds since 1970; unknown basins are not counted."""

    __slots__ = ("_current", "_ends_at", "_hours", "_is_basin", "_minutes", "_now")

    def __init__(self, now: Callable[[], float], is_basin: Callable[[bytes], bool]) -> None:
        self._now = now
        self._is_basin = is_basin
        self._minutes: dict[int, UsageByBasin] = {}
        """By the second at which each begins, ascending; the last one goes on."""
        self._hours: dict[int, UsageByBasin] = {}
        """Those of minutes that are over."""
        self._current: UsageByBasin = {}
        self._ends_at = 0.0

    def count(self, operation: Operation, basin: bytes | None) -> None:
        """Something was permitted, in a basin if it is the basin's."""
        is_of_account = basin is None or operation in OF_ACCOUNT
        self.of(ACCOUNT if is_of_account or basin is None else basin).operations[operation] += 1

    def count_append(self, basin: bytes, storage_class: StorageClass | None = None) -> None:
        """An append was permitted, or a session of appends. `storage_class`: that of the stream;
        None: it was refused."""
        self.of(basin).appends[storage_class] += 1

    def of(self, basin: bytes) -> BasinUsage:
        """The usage of a basin in this minute."""
        now = self._now()
        if now >= self._ends_at:
            self._begin_minute(int(now) // MINUTE_S * MINUTE_S)
        found = self._current.get(basin)
        if found is not None:
            return found
        found = BasinUsage()
        if basin == ACCOUNT or self._is_basin(basin):
            self._current[basin] = found
        return found

    def intervals(self, basin: bytes, interval_s: int) -> Iterator[tuple[int, BasinUsage]]:
        """The usage of a basin by intervals, each with the second at which it begins, ascending;
        those without any are left out."""
        if interval_s == MINUTE_S:
            parts = list(self._minutes.items())
        else:
            parts = [*self._hours.items(), *list(self._minutes.items())[-1:]]
        sums: dict[int, BasinUsage] = {}
        for begin, by_basin in parts:
            usage = by_basin.get(basin)
            if usage is not None:
                sums.setdefault(begin - begin % interval_s, BasinUsage()).add(usage)
        yield from sums.items()

    def _begin_minute(self, begin: int) -> None:
        """Add the minute that is over to its hour, and forget what is too old, or too much."""
        if self._current:
            ended = next(reversed(self._minutes))
            hour = self._hours.setdefault(ended - ended % HOUR_S, {})
            for basin, usage in self._current.items():
                hour.setdefault(basin, BasinUsage()).add(usage)
        self._current = self._minutes[begin] = {}
        self._ends_at = begin + MINUTE_S
        _forget(self._minutes, begin - MINUTES_S)
        _forget(self._hours, begin - HOURS_S)


def _forget(parts: dict[int, UsageByBasin], before: int) -> None:
    """Forget the parts that begin before this second, and the oldest ones beyond ENTRIES_MAX. The
    last part stays."""
    excess = sum(map(len, parts.values())) - ENTRIES_MAX
    for begin in list(parts)[:-1]:
        if begin >= before and excess <= 0:
            break
        excess -= len(parts.pop(begin))

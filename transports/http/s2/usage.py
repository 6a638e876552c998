"""Usage of S2 since the node started: permitted requests, and bytes of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from millpond.transports.http.s2.codecs.tokens import Operation

BASINS_MAX = 10_000
"""Counts of basins that are gone are forgotten when there are more."""

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
    """The usage of one basin. A session is one operation; bytes are those of bodies."""

    operations: Counter[Operation] = field(default_factory=Counter)
    appended_bytes: int = 0
    read_bytes: int = 0


class S2Usage:
    """The usage of one node, since `started` (seconds since 1970)."""

    __slots__ = ("_basins", "_is_basin", "operations", "started")

    def __init__(self, started: float, is_basin: Callable[[bytes], bool]) -> None:
        self.started = started
        self.operations: Counter[Operation] = Counter()
        """The operations of OF_ACCOUNT; the others are counted with their basin."""
        self._is_basin = is_basin
        self._basins: dict[bytes, BasinUsage] = {}

    def count(self, operation: Operation, basin: bytes | None) -> None:
        """Something was permitted, in a basin if it is the basin's."""
        if basin is None or operation in OF_ACCOUNT:
            self.operations[operation] += 1
        else:
            self.of(basin).operations[operation] += 1

    def of(self, basin: bytes) -> BasinUsage:
        """The usage of a basin; that of an unknown basin is not kept."""
        found = self._basins.get(basin)
        if found is not None:
            return found
        found = BasinUsage()
        if self._is_basin(basin):
            if len(self._basins) >= BASINS_MAX:
                self._basins = {k: v for k, v in self._basins.items() if self._is_basin(k)}
            self._basins[basin] = found
        return found

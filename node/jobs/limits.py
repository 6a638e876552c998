"""Limits of a queue: how many of its jobs run at once, and how often one starts, of all workers.

The node keeps them with the queue and holds to them where it gives jobs to workers
(docs/guides/jobs.md, "Limits and priorities").
"""

from __future__ import annotations

from typing import Any

import msgspec

from millpond.actors.queue_settings import RATE_PERIOD_MS_MAX
from millpond.node.jobs.errors import seconds_of
from millpond.node.units import SECONDS, duration_s

U32_MAX = 2**32 - 1
AGEING_S_MAX = 366 * 86_400


class RateLimit(msgspec.Struct, frozen=True):
    """A token bucket: `count` jobs start in `per` seconds, up to `burst` of them at once (0:
    `count`). Raises ValueError."""

    count: int
    per: float = 1.0
    burst: int = 0

    def __post_init__(self) -> None:
        _check_count("count", self.count, least=1)
        _check_count("burst", self.burst)
        if not 0.001 <= seconds_of("per", self.per) <= RATE_PERIOD_MS_MAX / 1000:
            raise ValueError(f"per is 0.001 s to 366 days, not {self.per}")

    @classmethod
    def parse(cls, text: str, burst: int = 0) -> RateLimit:
        """The rate of `100/m`, `5/s` or `10/30s`. Raises ValueError."""
        count, mark, per = text.partition("/")
        per_s = SECONDS.get(per) or duration_s(per)
        if not mark or not (count.isascii() and count.isdecimal()) or not per_s:
            raise ValueError(f"{text!r} is no rate: 5/s, 100/m, 1000/h, 10/30s")
        return cls(int(count), per_s, burst)

    def __str__(self) -> str:
        units = {each_s: unit for unit, each_s in SECONDS.items()}
        per = units.get(self.per, f"{self.per:g}s")
        text = f"{self.count}/{per}"
        return f"{text}, up to {self.burst} at once" if self.burst else text

    def fields(self) -> dict[str, int]:
        """The fields of the request."""
        return {"count": self.count, "period": round(self.per * 1000), "burst": self.burst}


Rate = RateLimit | str | int
"""A rate, as a `RateLimit` or as text such as "100/m"; 0: none."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a queue; None: as they are, 0: none. Raises ValueError.

    `concurrency`: the most jobs that run at once. `rate`: jobs that start in a time.
    `key_concurrency` and `key_rate`: the same among the jobs of each limit key. `ageing`: a job
    that waits for so many seconds counts as one of the next higher priority (60; 0: never).
    """

    concurrency: int | None = None
    rate: Rate | None = None
    key_concurrency: int | None = None
    key_rate: Rate | None = None
    ageing: float | None = None

    def __post_init__(self) -> None:
        self.fields()

    def fields(self) -> dict[str, object]:
        """The fields of the request."""
        fields: dict[str, object] = {}
        for name in ("concurrency", "key_concurrency"):
            if (count := getattr(self, name)) is not None:
                fields[name] = _check_count(name, count)
        for name in ("rate", "key_rate"):
            if (rate := getattr(self, name)) is not None:
                fields[name] = _rate_fields(rate)
        if self.ageing is not None:
            if not 0 <= seconds_of("ageing", self.ageing) <= AGEING_S_MAX:
                raise ValueError(f"ageing is 0 s to 366 days, not {self.ageing}")
            fields["ageing"] = round(self.ageing * 1000)
        return fields


class QueueState(msgspec.Struct, frozen=True):
    """The settings of a queue. `paused`: workers get no jobs. Others as in `Limits`; 0 and None:
    no limit."""

    paused: bool = False
    concurrency: int = 0
    rate: RateLimit | None = None
    key_concurrency: int = 0
    key_rate: RateLimit | None = None
    ageing: float = 60.0


class _Rate(msgspec.Struct):
    count: int
    period: int = 1000
    burst: int = 0

    def limit(self) -> RateLimit:
        return RateLimit(self.count, self.period / 1000, self.burst)


class _State(msgspec.Struct):
    paused: bool
    concurrency: int
    rate: _Rate | None
    key_concurrency: int
    key_rate: _Rate | None
    ageing: int


def queue_state(fields: dict[str, Any]) -> QueueState:
    """The settings of an answer."""
    found = msgspec.convert(fields, _State)
    return QueueState(
        found.paused,
        found.concurrency,
        None if found.rate is None else found.rate.limit(),
        found.key_concurrency,
        None if found.key_rate is None else found.key_rate.limit(),
        found.ageing / 1000,
    )


def _rate_fields(rate: Rate) -> dict[str, int]:
    match rate:
        case RateLimit():
            return rate.fields()
        case str():
            return RateLimit.parse(rate).fields()
        case 0:
            return {"count": 0}
        case _:
            raise ValueError(f"a rate is a text such as '100/m', a RateLimit or 0, not {rate}")


def _check_count(name: str, count: int, *, least: int = 0) -> int:
    if not least <= count <= U32_MAX:
        raise ValueError(f"{name} is a number from {least} to {U32_MAX}, not {count}")
    return count

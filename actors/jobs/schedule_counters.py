"""Counters of schedules."""

from __future__ import annotations

import msgspec


class ScheduleCounters(msgspec.Struct):
    """Counts of all schedules since the start: jobs that they put, moments that were missed and put
    none, and moments whose jobs were refused."""

    jobs: int = 0
    missed: int = 0
    refused: int = 0

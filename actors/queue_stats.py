"""Stats of job queues: counts of jobs and attempts, and how long attempts take."""

from __future__ import annotations

import msgspec

JOB_SECONDS = (0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""Bounds for durations of attempts."""


class QueueStats(msgspec.Struct, frozen=True, gc=False):
    """Counts of one queue since the start of the node, or of all queues: jobs that were put, and
    attempts by outcome. `lost`: their lease ended, or its connection. `dead`: dead letters.
    `durations`: of attempts that a worker ended, by `JOB_SECONDS`, in `seconds` together."""

    put: int = 0
    done: int = 0
    failed: int = 0
    lost: int = 0
    dead: int = 0
    durations: tuple[int, ...] = (0,) * (len(JOB_SECONDS) + 1)
    seconds: float = 0.0

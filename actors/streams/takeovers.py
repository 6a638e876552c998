"""Takeovers: a writer or worker has lost its place to another one."""

from __future__ import annotations

import logging
from math import inf

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0


class Takeovers:
    """Counts the takeovers of a node by their kind, and logs one of each kind a second at most."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._logged: dict[str, tuple[float, int]] = {}

    def record(self, what: str, name: bytes, now: float) -> None:
        """Count one more: `what` of the stream or subscription `name` has a new owner."""
        count = self._counts[what] = self._counts.get(what, 0) + 1
        logged_at, logged = self._logged.get(what, (-inf, 0))
        if now >= logged_at + LOG_EVERY_S:
            self._logged[what] = (now, count)
            log.info("taken over: what=%s name=%r times=%d", what, name, count - logged)

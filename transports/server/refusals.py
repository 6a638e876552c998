"""Refused connections and requests: counted by reason, and logged."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum
from math import inf

log = logging.getLogger(__name__)

LOG_EVERY_S = 1.0


class Refusal(Enum):
    """The reasons for which a client is refused, as operators see them in `info` and the log."""

    TOO_MANY = "too many connections"
    BAD_PROOF = "bad proof"
    NOT_ALLOWED = "not allowed"
    TOO_FAST = "too fast"
    TIMEOUT = "handshake timeout"
    MALFORMED = "malformed"
    FOREIGN_HOST = "foreign host"
    FOREIGN_PAGE = "foreign page"
    WITHOUT_TLS = "identity without tls"


class RefusalLog:
    """Counts refusals by reason in `counts`, and logs one of each reason a second at most.

    `now`: seconds, as everywhere on the node.
    """

    def __init__(self, counts: dict[str, int], now: Callable[[], float]) -> None:
        self._counts = counts
        self._now = now
        self._logged: dict[Refusal, tuple[float, int]] = {}

    def record_refusal(self, refusal: Refusal, address: str) -> None:
        """Count one more, of a client at this address."""
        count = self._counts[refusal.value] = self._counts.get(refusal.value, 0) + 1
        logged_at, logged = self._logged.get(refusal, (-inf, 0))
        now = self._now()
        if now < logged_at + LOG_EVERY_S:
            return
        self._logged[refusal] = (now, count)
        times = count - logged
        log.info("refused: reason=%r address=%s times=%d", refusal.value, address, times)

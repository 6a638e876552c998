"""Active requests: a request in progress, as the node counts it and ends it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import anyio

from millpond.transports.http.cancellation import cancel_scope
from millpond.transports.http.rejections import Rejection


class ActiveRequest:
    """A request that a task answers. Implements `transports.server.interface.ServerConnection`.

    An API finds that of its request as `request.active`. A session waits for `draining` and ends
    itself; what still runs after the node's drain timeout is aborted.
    """

    __slots__ = (
        "_draining",
        "_is_allowed",
        "abort_reason",
        "address",
        "deadline",
        "is_draining",
        "scope",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        """The client's host."""
        self.deadline = inf
        self.scope = cancel_scope()
        self.is_draining = False
        self._is_allowed: Callable[[], bool] | None = None
        self.abort_reason: Rejection | None = None
        self._draining: anyio.Event | None = None

    @property
    def peer(self) -> str:
        """The client's host; without the port, as requests of HTTP/2 share one."""
        return self.address

    @property
    def summary(self) -> None:
        """None: requests come and go."""

    @property
    def draining(self) -> anyio.Event:
        """An event that is set once the node stops; the same one at each call."""
        if self._draining is None:
            self._draining = anyio.Event()
            if self.is_draining:
                self._draining.set()
        return self._draining

    def keep_requiring(self, is_allowed: Callable[[], bool]) -> None:
        """Check again whenever rights have changed; the request is aborted if it is not allowed."""
        self._is_allowed = is_allowed

    def abort(self, reason: Rejection) -> None:
        """Cancel the request at once. The client gets the reason, if it still can."""
        if self.abort_reason is None:
            self.abort_reason = reason
            self.scope.cancel()

    def wake(self, now: float) -> None:
        """Nothing: a request arms no deadlines."""

    def start_drain(self) -> None:
        self.is_draining = True
        if self._draining is not None:
            self._draining.set()

    def reauthorize(self) -> None:
        if self._is_allowed is not None and not self._is_allowed():
            self.abort(Rejection.NOT_ALLOWED)

    def close(self) -> None:
        # Not DRAINING: that promises that nothing was done, and clients would repeat the request.
        self.abort(Rejection.CUT_OFF)

"""A request under way, as its node sees it: who it is of, and how it is told that it has to end."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import anyio

from millpond.transports.http.cancellation import cancel_scope
from millpond.transports.http.rejections import Rejection


class ActiveRequest:
    """Implements `transports.server.interface.ServerConnection`. An API finds that of its request
    as
    `request.visit`.

    A session waits for `draining` and ends itself then; what is not gone after the node's drain
    timeout is cut off. Where `may_go_on` is set, it is asked again when rights have changed.
    """

    __slots__ = ("_draining", "address", "deadline", "is_draining", "may_go_on", "scope", "why_cut")

    def __init__(self, address: str) -> None:
        self.address = address
        """The other end's host."""
        self.deadline = inf
        self.scope = cancel_scope()
        self.is_draining = False
        self.may_go_on: Callable[[], bool] | None = None
        self.why_cut: Rejection | None = None
        self._draining: anyio.Event | None = None

    @property
    def peer(self) -> str:
        """Where the other end is; a request of HTTP/2 shares its port with others."""
        return self.address

    @property
    def draining(self) -> anyio.Event:
        """Set once the node stops; the same event at each call."""
        if self._draining is None:
            self._draining = anyio.Event()
            if self.is_draining:
                self._draining.set()
        return self._draining

    def cut(self, why: Rejection) -> None:
        """End it at once, wherever it is; the client hears why, if it can still be told."""
        if self.why_cut is None:
            self.why_cut = why
            self.scope.cancel()

    def wake(self, now: float) -> None:
        """It arms no deadlines."""

    def start_drain(self) -> None:
        self.is_draining = True
        if self._draining is not None:
            self._draining.set()

    def reauthorize(self) -> None:
        if self.may_go_on is not None and not self.may_go_on():
            self.cut(Rejection.NOT_ALLOWED)

    def close(self) -> None:
        # Not DRAINING: that would promise that nothing was done, and clients would do it again.
        self.cut(Rejection.CUT_OFF)

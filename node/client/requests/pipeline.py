"""A pipelined connection of a client: requests are answered in the order in which they were sent.

It is a synchronous session on any wire. The outcome of a request that the connection leaves
unanswered is decided here, once: it was not sent, it was not done, or it may have been done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

import anyio

from millpond.actors.errors import OutcomeUnknown, RequestError
from millpond.node.client.errors import ConnectionLost
from millpond.node.client.future import ReplyFuture
from millpond.node.client.requests.errors import BadReply, NotDone, NotSent
from millpond.node.tls.errors import reason_of
from millpond.transports.errors import WireError
from millpond.transports.io.interface import Wire

SILENCE_CHECKS = 4
"""The number of checks for received bytes within `answer_s`."""

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")


class ReplyDecoder(Protocol[R_co]):
    """A protocol's decoder of replies."""

    @property
    def error(self) -> WireError | None:
        """The reason why no more replies can be read."""

    def feed(self, data: bytes, /) -> Sequence[R_co]:
        """The replies that `data` completes, also those before an error."""


ClosingError = Callable[[R, bool], RequestError | None]
"""The error with which a reply announces that the server closes the connection, else None.

The flag tells whether a request is waiting for the reply. No request behind it is done.
"""


class LostOutcome(Enum):
    """Knowledge of a request that will not be answered: sent or not, done or not."""

    NOT_SENT = auto()
    NOT_DONE = auto()
    UNKNOWN = auto()


class ReplyHandler(Protocol[R_contra]):
    """A request that waits for its reply. One of the two is called, once."""

    def answered(self, reply: R_contra, /) -> WireError | None:
        """Take the reply. An error ends the connection: the reply does not fit the request."""

    def lost(self, outcome: LostOutcome, reason: str, /) -> None:
        """No reply will come."""


def lost_error(outcome: LostOutcome, reason: str, has_effect: bool) -> Exception:
    """The error of a lost request."""
    match outcome:
        case LostOutcome.NOT_SENT:
            return NotSent(reason)
        case LostOutcome.UNKNOWN if has_effect:
            return OutcomeUnknown(f"{reason}: the request may have been done or not")
        case _:
            return NotDone(reason)


class PendingRequest(Generic[R, T]):
    """A request of one task. `read` gives the reply's value, or raises RequestErrors and BadReply.

    A reply is taken even if that task was cancelled: the order of replies tells whose they are.
    """

    __slots__ = ("_has_effect", "_on_settled", "_read", "future")

    def __init__(
        self, read: Callable[[R], T], has_effect: bool, on_settled: Callable[[], None]
    ) -> None:
        self.future: ReplyFuture[T] = ReplyFuture()
        self._read = read
        self._has_effect = has_effect
        self._on_settled = on_settled

    def answered(self, reply: R) -> WireError | None:
        self._on_settled()
        try:
            value = self._read(reply)
        except RequestError as error:
            self.future.fail(error)
        except BadReply as error:
            self.future.fail(lost_error(LostOutcome.UNKNOWN, str(error), self._has_effect))
            return error
        else:
            self.future.resolve(value)
        return None

    def lost(self, outcome: LostOutcome, reason: str) -> None:
        self._on_settled()
        self.future.fail(lost_error(outcome, reason, self._has_effect))


class PipelinedClientConnection(Generic[R]):
    """One connection, as a session of a wire. `live`: requests may be sent.

    `closing` is set when it begins to end, from either side, `closed` when the wire is down.
    """

    def __init__(self, replies: ReplyDecoder[R], closing_error: ClosingError[R]) -> None:
        self.live = False
        self.failure: Exception | None = None
        self.closed = anyio.Event()
        self.closing = anyio.Event()
        self._replies = replies
        self._closing_error = closing_error
        self._pending: deque[ReplyHandler[R]] = deque()
        self._out: list[bytes] = []
        self._unsent = anyio.Event()
        self._is_over = False
        self._has_received = False
        self._wire: Wire | None = None

    @property
    def is_idle(self) -> bool:
        """No request is under way."""
        return not self._pending

    # Calls of the wire.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.live = True

    def received(self, data: bytes) -> None:
        self._has_received = True
        for reply in self._replies.feed(data):
            self._handle(reply)
            if self._is_over:
                return
        if self._replies.error is not None:
            self.close(self._replies.error)

    def uncongested(self) -> None:
        """Nothing to do: the bytes that wait are bounded by the requests under way."""

    def eof(self) -> None:
        self.close(ConnectionLost("the server closed the connection"))

    def ended(self) -> None:
        cause = None if self._wire is None else self._wire.failure
        failure = ConnectionLost(reason_of(cause).text if cause else "the connection broke")
        failure.__cause__ = cause
        self._end(failure, LostOutcome.UNKNOWN)
        self.closed.set()

    # Calls of the client.

    @property
    def fileno(self) -> int:
        """The descriptor of the socket; -1: there is none."""
        return -1 if self._wire is None else self._wire.fileno

    def send(self, request: ReplyHandler[R], data: bytes, *, at_once: bool = False) -> None:
        """Send a request. While others are under way, it leaves with what the loop's pass brings.

        On a connection that is not `live` the request is lost at once.
        """
        if not self.live:
            request.lost(LostOutcome.NOT_SENT, _text(self.failure))
            return
        at_once = at_once or not self._pending
        self._pending.append(request)
        self._out.append(data)
        if at_once:
            self.flush()
        elif len(self._out) == 1:
            self._unsent.set()

    def flush(self) -> None:
        """Write what `send` took, in one piece."""
        if self._out and self.live and self._wire is not None:
            self._wire.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
            self._out.clear()

    async def keep_flushing(self) -> None:
        """Once per pass of the loop, write what tasks have sent."""
        while True:
            await self._unsent.wait()
            self._unsent = anyio.Event()
            self.flush()

    async def watch(self, answer_s: float) -> None:
        """End the connection when requests are under way and nothing comes for `answer_s`."""
        silent = 0
        while silent < SILENCE_CHECKS:
            self._has_received = False
            waits = bool(self._pending)
            await anyio.sleep(answer_s / SILENCE_CHECKS)
            silent = silent + 1 if waits and not self._has_received else 0
        self._end(ConnectionLost("the server does not answer"), LostOutcome.UNKNOWN)
        self.abort()

    def fail(self, failure: Exception) -> None:
        """The connection could not be opened."""
        self.failure = failure

    def close(self, failure: Exception, outcome: LostOutcome = LostOutcome.UNKNOWN) -> None:
        """Fail the requests that were sent with this outcome, and close."""
        self._end(failure, outcome)
        if self._wire is not None:
            self._wire.close()

    def abort(self) -> None:
        """End now; what is not written yet is dropped."""
        self._end(ConnectionLost("the connection was closed here"), LostOutcome.UNKNOWN)
        if self._wire is not None:
            self._wire.abort()

    def _handle(self, reply: R) -> None:
        closing = self._closing_error(reply, bool(self._pending))
        if self._pending:
            error = self._pending.popleft().answered(reply)
            if error is not None:
                self.close(error)
                return
        elif closing is None:
            self.close(BadReply("the server sent a reply without a request"))
            return
        if closing is not None:
            self.close(closing, LostOutcome.NOT_DONE)

    def _end(self, failure: Exception, outcome: LostOutcome) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.live = False
        if self.failure is None:
            self.failure = failure
        reason = _text(self.failure)
        if outcome is LostOutcome.NOT_DONE:
            reason = f"the server closed the connection over another request: {reason}"
        sent = len(self._pending) - len(self._out)
        pending, self._pending = self._pending, deque()
        self._out.clear()
        self.closing.set()
        for index, request in enumerate(pending):
            request.lost(outcome if index < sent else LostOutcome.NOT_SENT, reason)


def _text(error: Exception | None) -> str:
    return str(error) or type(error).__name__

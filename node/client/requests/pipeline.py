"""One connection on which calls are answered in the order in which they were made.

Synchronous, as a session on any wire. What becomes of a call that the connection leaves unanswered
is decided here, once: it was not sent, it was not done, or nobody knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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

WATCHES = 4

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)
T = TypeVar("T")


class Replies(Protocol[R]):
    """A protocol's decoder of replies."""

    @property
    def error(self) -> WireError | None:
        """Why the stream of replies cannot be read any further."""

    def feed(self, data: bytes, /) -> list[R]:
        """The replies that `data` completes, also those before an error."""


Ends = Callable[[R, bool], RequestError | None]
"""Whether a reply, which a call asked for or none did, is the last one: why the server closes.

Nothing that was asked behind that call is done.
"""


class CallOutcome(Enum):
    """What is known of a call that will not be answered."""

    UNSENT = auto()
    NOT_DONE = auto()
    UNKNOWN = auto()


class ReplyHandler(Protocol[R_contra]):
    """What waits for one reply. One of the two is called, once."""

    def answered(self, reply: R_contra, /) -> WireError | None:
        """Take the reply; an error if it is none to this call, which ends the connection."""

    def lost(self, fate: CallOutcome, why: str, /) -> None:
        """No reply will come."""


def loss(fate: CallOutcome, why: str, has_effect: bool) -> Exception:
    """What the caller of a lost call raises."""
    match fate:
        case CallOutcome.UNSENT:
            return NotSent(why)
        case CallOutcome.UNKNOWN if has_effect:
            return OutcomeUnknown(f"{why}: the request may have been done or not")
        case _:
            return NotDone(why)


class PendingCall(Generic[R, T]):
    """A call of one task. `read` gives the reply's value, or raises RequestErrors and BadReply.

    Whether that task still waits makes no difference: the reply is this call's.
    """

    __slots__ = ("_has_effect", "_on_settled", "_read", "answer")

    def __init__(
        self, read: Callable[[R], T], has_effect: bool, on_settled: Callable[[], None]
    ) -> None:
        self.answer: ReplyFuture[T] = ReplyFuture()
        self._read = read
        self._has_effect = has_effect
        self._on_settled = on_settled

    def answered(self, reply: R) -> WireError | None:
        self._on_settled()
        try:
            value = self._read(reply)
        except RequestError as error:
            self.answer.fail(error)
        except BadReply as error:
            self.answer.fail(loss(CallOutcome.UNKNOWN, str(error), self._has_effect))
            return error
        else:
            self.answer.resolve(value)
        return None

    def lost(self, fate: CallOutcome, why: str) -> None:
        self._on_settled()
        self.answer.fail(loss(fate, why, self._has_effect))


class PipelinedClientConnection(Generic[R]):
    """A session."""

    def __init__(self, replies: Replies[R], ends: Ends[R]) -> None:
        self.live = False
        self.failure: Exception | None = None
        self.gone = anyio.Event()
        self.leaving = anyio.Event()
        self._replies = replies
        self._ends = ends
        self._pending: deque[ReplyHandler[R]] = deque()
        self._out: list[bytes] = []
        self._unsent = anyio.Event()
        self._is_over = False
        self._heard = False
        self._wire: Wire | None = None

    @property
    def is_idle(self) -> bool:
        """No call is under way."""
        return not self._pending

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.live = True

    def received(self, data: bytes) -> None:
        self._heard = True
        for reply in self._replies.feed(data):
            self._take(reply)
            if self._is_over:
                return
        if self._replies.error is not None:
            self.close(self._replies.error)

    def uncongested(self) -> None:
        """What may wait to be sent is bounded by what may be under way."""

    def eof(self) -> None:
        self.close(ConnectionLost("the server closed the connection"))

    def ended(self) -> None:
        cause = None if self._wire is None else self._wire.failure
        failure = ConnectionLost(reason_of(cause).text if cause else "the connection broke")
        failure.__cause__ = cause
        self._end(failure, CallOutcome.UNKNOWN)
        self.gone.set()

    # What the client calls.

    def ask(self, call: ReplyHandler[R], request: bytes, *, at_once: bool = False) -> None:
        """Send a request; it leaves with others of this turn of the loop, if others are under way.

        On a connection that is not `live` the call is lost at once.
        """
        if not self.live:
            call.lost(CallOutcome.UNSENT, _text(self.failure))
            return
        at_once = at_once or not self._pending
        self._pending.append(call)
        self._out.append(request)
        if at_once:
            self.flush()
        elif len(self._out) == 1:
            self._unsent.set()

    def flush(self) -> None:
        """Write what `ask` took, in one piece."""
        if self._out and self.live and self._wire is not None:
            self._wire.write(b"".join(self._out) if len(self._out) > 1 else self._out[0])
            self._out.clear()

    async def keep_flushing(self) -> None:
        """Once per turn of the loop, write what its tasks asked."""
        while True:
            await self._unsent.wait()
            self._unsent = anyio.Event()
            self.flush()

    async def watch(self, answer_s: float) -> None:
        """End the connection when calls are under way and nothing is heard for `answer_s`."""
        silent = 0
        while silent < WATCHES:
            self._heard = False
            waits = bool(self._pending)
            await anyio.sleep(answer_s / WATCHES)
            silent = silent + 1 if waits and not self._heard else 0
        self._end(ConnectionLost("the server does not answer"), CallOutcome.UNKNOWN)
        self.abort()

    def close(self, failure: Exception, fate: CallOutcome = CallOutcome.UNKNOWN) -> None:
        """Give calls that were sent this fate, and close."""
        self._end(failure, fate)
        if self._wire is not None:
            self._wire.close()

    def abort(self) -> None:
        """End now, whatever waits."""
        self._end(ConnectionLost("the connection was closed here"), CallOutcome.UNKNOWN)
        if self._wire is not None:
            self._wire.abort()

    def _take(self, reply: R) -> None:
        refusal = self._ends(reply, bool(self._pending))
        if self._pending:
            error = self._pending.popleft().answered(reply)
            if error is not None:
                self.close(error)
                return
        elif refusal is None:
            self.close(BadReply("the server answers what nobody asked"))
            return
        if refusal is not None:
            self.close(refusal, CallOutcome.NOT_DONE)

    def _end(self, failure: Exception, fate: CallOutcome) -> None:
        if self._is_over:
            return
        self._is_over = True
        self.live = False
        if self.failure is None:
            self.failure = failure
        why = _text(self.failure)
        if fate is CallOutcome.NOT_DONE:
            why = f"the server closed the connection over another call: {why}"
        sent = len(self._pending) - len(self._out)
        pending, self._pending = self._pending, deque()
        self._out.clear()
        self.leaving.set()
        for place, call in enumerate(pending):
            call.lost(fate if place < sent else CallOutcome.UNSENT, why)


def _text(error: Exception | None) -> str:
    return str(error) or type(error).__name__

"""A connection whose requests are answered in their order: what S3P and RustLog have in common.

It is the port of the streams it asks and the wire's session at once, and synchronous: what one read
brought goes to the streams in as few batches as may be, and what they answer leaves in one write. A
request is known by its number, counted from 0, so that answers may come in any order and leave in
that of the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from millpond.actors.messages import Batch, CellMessage, Failed, Reply, StreamReply, StreamRequest
from millpond.actors.streams.messages import CancelRead, FinishRead
from millpond.transports.server.interface import NodeServices
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.stream_visit import CLOSED, ENDING, OPEN, StreamVisit
from millpond.transports.server.stream_visit import FlowSettings as FlowSettings
from millpond.transports.server.stream_visit import Turned as Turned

C = TypeVar("C")

NOBODY = -1
"""The number whose turn it is when nobody is answered any more."""
NO_ANSWER = -2
"""The number of what has no answer."""
NOTHING = 2**63
"""The number of a request that never comes."""


class ReadyAnswer(StreamReply, frozen=True, gc=False):
    """An answer that no stream was asked for, waiting for its turn."""

    data: bytes


class StreamConnection(StreamVisit, Generic[C]):
    """One client. `C` is a request as the protocol has it: it is kept until it is answered.

    A protocol gives `_decode`, `_hand_over`, `_answer` and `_turning_away`.
    """

    __slots__ = (
        "_ahead_bytes",
        "_at",
        "_cell_waited_in",
        "_early",
        "_fed_bytes",
        "_has_eof",
        "_inbox",
        "_is_pumping",
        "_next_number",
        "_owed",
        "_paused",
        "_request_bytes",
        "_turn",
        "_turn_bytes",
        "_under_way_bytes",
        "_waits_for_mailbox",
        "_watched",
        "_watched_at",
    )

    def __init__(self, number: int, host: NodeServices, flow: FlowSettings) -> None:
        super().__init__(number, host, flow)
        self._has_eof = False
        self._is_pumping = self._paused = self._waits_for_mailbox = False
        self._inbox: list[C] = []
        self._at = 0
        """The first request of `_inbox` that no stream has seen."""
        self._owed: deque[C] = deque()
        """Requests that streams have and that are not answered, oldest first."""
        self._turn = 0
        """The number of the oldest one of `_owed`, or NOBODY."""
        self._next_number = 0
        self._early: dict[int, StreamReply | Failed] = {}
        self._cell_waited_in: bytes | None = None
        """Where the last request of `_owed` waits for a record; it alone does."""
        self._turn_bytes = 0
        self._fed_bytes = self._request_bytes = self._ahead_bytes = self._under_way_bytes = 0
        self._watched = NOTHING
        """The number of a request that is timed."""
        self._watched_at = 0.0

    # What a protocol gives.

    def _decode(self, data: bytes) -> list[C]:
        """The requests that `data` completes. Calls `_end` where it cannot be read any further."""
        raise NotImplementedError

    def _hand_over(self, requests: list[C], at: int) -> int:
        """Give requests from `at` on to streams (`_submit`), or answer them (`_say`).

        Gives the first one that was left, to be called again with it. The same as `at`: that one
        waits for an answer that is under way.
        """
        raise NotImplementedError

    def _answer(self, request: C, reply: StreamReply | Failed) -> bytes:
        """The answer as bytes; b"" where there is none. Called in the order of the requests.

        Calls `_end_now` where the connection ends with it.
        """
        raise NotImplementedError

    # What the wire calls.

    def received(self, data: bytes) -> None:
        """Everything that one read brought."""
        host = self._host
        self.received_at = self._now = host.now()
        size = len(data)
        traffic = self._traffic
        traffic.bytes_in += size
        if self._phase is not OPEN:
            return
        if not self._is_admitted:
            self._turn_away(Turned.NOT_ADMITTED)
            return
        requests = self._decode(data)
        self._fed_bytes += size
        if self._inbox:
            self._ahead_bytes += size
            self._inbox += requests
        else:
            self._inbox = requests
            self._ahead_bytes = 0
        if requests:
            count = len(requests)
            traffic.requests += count
            self._request_bytes = self._fed_bytes // count
            self._fed_bytes = 0
        self._pump()

    def uncongested(self) -> None:
        if self._phase is not CLOSED:
            self._go_on()

    def eof(self) -> None:
        """No more comes: what was asked is answered, and waits for nothing any more."""
        if self._phase is CLOSED:
            return
        self._has_eof = True
        self._end(b"")
        self._stop_waiting()
        self._go_on()

    def ended(self) -> None:
        self._forget()
        self._host.unregister(self)

    # What streams call: Port.

    def send(self, replies: Sequence[Reply]) -> None:
        owed, out = self._owed, self._out
        for reply in replies:
            # By its type: for these structs `isinstance` takes five times as long.
            if type(reply) is Failed:
                number = _refused_number(reply)
            else:
                number = reply.number  # type: ignore[union-attr]  # all else is for channels
            if number != self._turn:
                if 0 <= self._turn < number:
                    self._early[number] = reply  # type: ignore[assignment]  # the same
                continue  # otherwise nobody waits for it any more
            self._turn = number + 1
            out.append(self._answer(owed.popleft(), reply))  # type: ignore[arg-type]  # the same
            while self._early:
                early = self._early.pop(self._turn, None)
                if early is None:
                    break
                self._turn += 1
                request = owed.popleft()
                out.append(
                    early.data if type(early) is ReadyAnswer else self._answer(request, early)
                )
        if not owed:
            self._under_way_bytes = 0
        if self._turn > self._watched:
            self._watched = NOTHING
            self._traffic.end(self._watched_at, self._host.now())

    def flush(self) -> None:
        if self._is_pumping or self._phase is CLOSED:
            return
        if self._inbox or self._phase is ENDING:
            self._go_on()
        elif self._out:
            self._write_out()
            if self._wire.congested:
                self._look_at_wire()

    # Requests.

    def _submit(
        self,
        cell: bytes,
        requests: Sequence[C],
        messages: list[CellMessage],
        *,
        gather: bool = False,
    ) -> None:
        """Give a stream the `messages` for `requests`, one for each, numbered in their order.

        `gather`: together with what other connections give it now.
        """
        if self._phase is CLOSED:
            return
        # One that waits for a record takes as long as its client likes.
        if self._now >= self._traffic.sample_at and self._cell_waited_in is None:
            self._traffic.begin(self._now)
            self._watched, self._watched_at = self._next_number, self._now
        self._owed += requests
        self._next_number += len(requests)
        size = self._request_bytes * len(requests)
        self._under_way_bytes += size
        host = self._host
        gathering = host.batcher
        if gather:
            gathering.add(cell, self, messages, size, self._wire.soon)
            return
        gathering.submit_now(cell)
        if not host.submit(cell, Batch(self, messages, size), self._now):
            self.must_wait(cell)

    def must_wait(self, cell: bytes) -> None:
        """The cell's mailbox is full: ask for nothing more until it has room."""
        self._waits_for_mailbox = True
        self._host.on_capacity(cell, self._mailbox_has_room)

    def _say(self, request: C, data: bytes) -> None:
        """Answer a request that no stream needs to see, in its turn."""
        if self._phase is CLOSED:
            return
        number = self._next_number
        self._next_number = number + 1
        self._turn_bytes += len(data)
        if self._owed:
            self._under_way_bytes += len(data)
            self._owed.append(request)
            self._early[number] = ReadyAnswer(number, data)
        else:
            self._turn = number + 1
            self._out.append(data)

    def _large(self, data: bytes) -> bytes:
        """An answer whose size is not bounded by that of its request: it counts."""
        self._out_bytes += len(data)
        self._turn_bytes += len(data)
        return data

    def _has_waited(self) -> None:
        """The last request of `_owed` waits for nothing any more; the client is idle from here."""
        self._cell_waited_in = None
        self.received_at = self._host.now()

    def _stop_waiting(self) -> None:
        """The other end waits no more: as if the time was over (S3A-26). It gets what there
        is, also if the store is still looking for it (S3P-40)."""
        cell = self._cell_waited_in
        if cell is not None:
            self._host.submit(cell, Batch(self, [FinishRead(self._next_number - 1)]), self._now)

    # Backpressure.

    def _pump(self) -> None:
        """Hand over what waits, as far as may be; then write, and see whether to read on."""
        if self._is_pumping:
            return
        self._is_pumping = True
        self._turn_bytes = 0
        while self._at < len(self._inbox) and not self._must_wait():
            at = self._hand_over(self._inbox, self._at)
            if self._phase is CLOSED:
                return
            if at == self._at:
                break
            if self._rate is not None:
                self._rate.spend(at - self._at, self._now)
            self._at = at
            if self._out_bytes:
                self._write_out()
        if self._at:
            del self._inbox[: self._at]
            self._at = 0
        self._is_pumping = False
        if not self._inbox and self._phase is ENDING and not self._owed:
            self._close()
            return
        if self._out:
            self._write_out()
        if self._inbox or self._paused or self._wire.congested:
            self._look_at_wire()

    def _look_at_wire(self) -> None:
        """Read no further while requests wait, but for a little behind one that waits for a record:
        that is how an end is noticed (S3A-26)."""
        if not self._inbox:
            is_full = self._wire.congested and (
                self._wire.unsent_bytes > self._flow.unread_bytes_max
            )
        elif self._cell_waited_in is not None:
            is_full = self._ahead_bytes > self._flow.ahead_bytes_max
        else:
            is_full = True
        if is_full is not self._paused:
            self._paused = is_full
            if is_full:
                self._wire.pause()
            else:
                self._wire.resume()

    def _must_wait(self) -> bool:
        flow = self._flow
        if self._waits_for_mailbox or self._cell_waited_in is not None:
            return True
        if self._under_way_bytes > flow.under_way_bytes_max:
            return True
        if self._turn_bytes > flow.turn_bytes_max:
            # What such requests cost is not known before: others get their turn in between.
            self._host.arm(self, self._now)
            return True
        if self._rate is not None and self._is_too_fast(self._rate):
            return True
        return self._wire.congested and self._wire.unsent_bytes > flow.unread_bytes_max

    def _is_too_fast(self, rate: TokenBucket) -> bool:
        """Nothing is refused for that: it is read on when it is time."""
        debt_ms = rate.debt_ms(self._now)
        if debt_ms:
            self._host.counters.slowed += 1
            self._host.record_refusal(Refusal.TOO_FAST, self.address)
            self._host.arm(self, self._now + debt_ms / 1000)
        return debt_ms > 0

    def _mailbox_has_room(self) -> None:
        self._waits_for_mailbox = False
        if self._phase is not CLOSED:
            self._go_on()

    def _go_on(self) -> None:
        self._now = self._host.now()
        self._pump()

    # The end.

    def start_drain(self) -> None:
        if self._phase is not OPEN:
            return
        self._inbox = []
        self._at = 0
        self._end(b"")
        self._stop_waiting()
        self._go_on()

    def _forget(self) -> None:
        super()._forget()
        self._turn = NOBODY
        self._inbox = []
        self._at = 0
        self._owed.clear()
        self._early.clear()
        cell, self._cell_waited_in = self._cell_waited_in, None
        if cell is not None:
            self._host.detach(cell, self)

    @property
    def _awaits(self) -> bool:
        return bool(self._owed)


def _refused_number(failed: Failed) -> int:
    """Which request was refused; NO_ANSWER: one that has none."""
    request = failed.request
    if isinstance(request, StreamRequest) and not isinstance(request, CancelRead | FinishRead):
        return request.number
    return NO_ANSWER

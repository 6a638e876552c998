"""A pipelined connection: its requests are answered in their order, as in S3P and RustLog.

It is the port of the streams that it sends requests to and the wire's session at once, and
synchronous: what one read brought goes to the streams in as few batches as may be, and their
answers leave in one write. Requests are numbered from 0, so that answers may come in any order and
leave in that of the requests. A `PipelinedProtocol` reads requests and writes answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf
from typing import Generic, Protocol, TypeVar

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Failed,
    Port,
    Reply,
    Rights,
    StreamReply,
    StreamRequest,
)
from millpond.actors.streams.messages import CancelRead, FinishRead
from millpond.transports.io.address import port_of
from millpond.transports.io.interface import Wire
from millpond.transports.server.interface import ConnectionSummary, NodeServices, Principal
from millpond.transports.server.memory_budget import (
    CHECK_BYTES,
    READ_BYTES,
    SMALL_BYTES,
    MemoryAccount,
    MemoryWaiter,
)
from millpond.transports.server.private_names import is_private
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal

R = TypeVar("R")

NO_MORE_ANSWERS = -1
"""The value of `answered` once nothing is answered any more."""
NO_ANSWER = -2
"""The number of a message that has no answer."""
NOTHING = 2**63
"""The number of a request that never comes."""
DECODED_BYTES_MAX = 2**16
"""So much is decoded at once: requests take more memory than their bytes."""
PASS_REQUESTS_MAX = 256
"""So many requests of a connection are handled before others run."""
ANSWER_BYTES = 128
"""Of an answer that no stream makes, so many bytes count as one more request: it takes as long, and
what a pass has made is written, and counted, before there is much of it."""
REQUEST_BYTES = 512
"""A decoded request takes about so much, however short it was."""
RIGHTS_CACHED_MAX = 64
"""The number of streams for which a connection caches its rights."""


class FlowSettings(msgspec.Struct, frozen=True, gc=False):
    """Limits of a pipelined connection; docs/reference/limits.md.

    `read_ahead_bytes_max` is read while a request waits for a record; `in_flight_bytes_max` of
    requests, and `in_flight_max` of them, are with the streams at once; `pass_bytes_max` of large
    answers are made before others run. Where no stream answers for `answer_s`, or twice that at
    most, requests fail with OUTCOME_UNKNOWN: the disk does not answer. A connection whose next
    request finds no room in a mailbox for twice that is closed.
    """

    idle_s: float = 300.0
    answer_s: float = inf
    unread_bytes_max: int = 2**20
    read_ahead_bytes_max: int = 2**16
    in_flight_bytes_max: int = 2**24
    in_flight_max: int = 1024
    pass_bytes_max: int = 2**22


class ConnectionRefusal(Enum):
    """The reasons for which a connection is refused before its first request."""

    TOO_MANY = "too many connections"
    NOT_ADMITTED = "access refused"


class RequestDecoder(Protocol[R]):
    """Cuts bytes into requests."""

    @property
    def error(self) -> object | None:
        """Set once the bytes cannot be read any further."""

    @property
    def buffered_bytes(self) -> int:
        """The bytes of a request that came so far."""

    def feed(self, data: bytes) -> list[R]:
        """The requests that `data` completes."""

    def refuse(self) -> R | None:
        """Refuse the request of which a part has come, as there is no memory for it. Gives a
        request in its place, whose answer tells so, or sets `error`; neither if no part has come.
        """

    def clear(self) -> None:
        """Discard what came: nothing more is fed."""


class PipelinedProtocol(Protocol[R]):
    """One protocol on a pipelined connection. `R` is a request, which is kept until its answer."""

    @property
    def listener(self) -> str:
        """The name of the protocol: s3p or rustlog."""

    @property
    def decoder(self) -> RequestDecoder[R]:
        """The decoder of this connection's bytes."""

    def dispatch(self, requests: list[R], start: int) -> int:
        """Give requests from `start` on to streams (`submit`), or answer them (`respond`).

        Gives the index of the first one that is left, to be called again with it. The same as
        `start`: that one waits for an answer in flight.
        """

    def dispatch_run(self, data: bytes) -> bool:
        """Give requests of one kind, which are all of `data`, to their stream (`submit_run`), where
        that takes no look at each. False: `data` is to be decoded."""

    def answer(self, request: R, reply: StreamReply | Failed) -> bytes:
        """The answer as bytes; b"" where there is none. Called in the order of the requests."""

    def error_bytes(self) -> bytes:
        """The last bytes of a connection whose input cannot be read: they tell `decoder.error`."""

    def refusal_bytes(self, reason: ConnectionRefusal, data: bytes) -> bytes:
        """The only bytes of a connection that is refused. `data` is what has come; b"" if it is
        refused before."""


class ConnectionObserver(Protocol):
    """Told of what happens to a connection, for metrics."""

    def opened(self) -> None:
        """The connection was accepted."""

    def ended(self) -> None:
        """The connection is gone."""

    def stalled(self) -> None:
        """The connection is aborted, as the other end does not read."""

    def throttled(self) -> None:
        """Reading is paused, as the other end does not read its answers."""

    def before_replies(self) -> None:
        """Replies of streams have come."""

    def after_replies(self, answered: int) -> None:
        """`answered` is the number of answered requests, or NO_MORE_ANSWERS."""


class ReadyAnswer(StreamReply, frozen=True, gc=False):
    """An answer that is made already, waiting for those before it."""

    data: bytes


class Phase(Enum):
    """The states of a connection, in their order."""

    OPEN = auto()
    CLOSING = auto()
    """No more requests are taken; those that were are answered."""
    CLOSED = auto()


# Reading a member of an enum costs more than a global; these are read for every read.
OPEN, CLOSING, CLOSED = Phase.OPEN, Phase.CLOSING, Phase.CLOSED


class PipelinedConnection(Port, Generic[R]):
    """One client. `make_protocol` is called once, with the connection.

    For the protocol: `now` is the time of the last read or wake, `answered` the number of requests
    that are answered (the one in hand included), `next_number` that of the next request, `has_eof`
    says that no more requests come, and `has_all_rights` that `may` need not be
    asked about names that are not private.
    """

    __slots__ = (
        "_account",
        "_answered_before",
        "_blocked_read_cell",
        "_bytes_per_request",
        "_check_at",
        "_decoder",
        "_early_replies",
        "_flow",
        "_full_since",
        "_in_flight",
        "_in_flight_bytes",
        "_is_admitted",
        "_is_dispatching",
        "_is_throttled",
        "_last_bytes",
        "_moved_bytes",
        "_node",
        "_observer",
        "_opened_at",
        "_out",
        "_out_bytes",
        "_partial_bytes",
        "_pass_bytes",
        "_pass_requests",
        "_paused",
        "_phase",
        "_position",
        "_principal",
        "_promised_bytes",
        "_protocol",
        "_read_ahead_bytes",
        "_requests",
        "_rights",
        "_sampled",
        "_sampled_at",
        "_shared_bucket",
        "_stats",
        "_undecoded",
        "_unsent_before",
        "_waiter",
        "_waiting_since",
        "_wire",
        "answered",
        "deadline",
        "has_all_rights",
        "has_eof",
        "listener",
        "next_number",
        "now",
        "number",
        "received_at",
    )

    def __init__(
        self,
        number: int,
        node: NodeServices,
        flow: FlowSettings,
        make_protocol: Callable[[PipelinedConnection[R]], PipelinedProtocol[R]],
        observer: ConnectionObserver | None = None,
    ) -> None:
        self.number = number
        self.received_at = self.now = 0.0
        self.deadline = inf
        self.answered = 0
        self.next_number = 0
        self.has_eof = False
        self.has_all_rights = False
        self._node = node
        self._flow = flow
        self._observer = observer
        self._wire: Wire
        self._phase = OPEN
        self._principal = Principal()
        self._is_admitted = False
        self._rights: dict[bytes, Rights] = {}
        self._shared_bucket: TokenBucket | None = None
        """The rate limit that all connections of the same peer share."""
        self._is_dispatching = self._paused = self._is_throttled = False
        self._full_since = inf
        """Since when the mailbox of a cell has no room for more requests."""
        self._requests: list[R] = []
        self._position = 0
        """The index of the first one of `_requests` that no stream has seen."""
        self._undecoded = b""
        """Bytes behind these requests."""
        self._in_flight: deque[R] = deque()
        """Requests that streams have and that are not answered, oldest first."""
        self._early_replies: dict[int, StreamReply | Failed] = {}
        self._blocked_read_cell: bytes | None = None
        """The cell in which the last request in flight waits for a record; it alone does."""
        self._pass_bytes = self._pass_requests = 0
        self._partial_bytes = self._bytes_per_request = 0
        self._read_ahead_bytes = self._in_flight_bytes = 0
        self._waiting_since = inf
        """Since when at the latest the oldest request in flight has no answer."""
        self._answered_before = 0
        """The value of `answered` when that was looked at."""
        self._account: MemoryAccount | None = None
        self._opened_at = 0.0
        self._moved_bytes = 0
        """All bytes received and written."""
        self._check_at = CHECK_BYTES
        """The number of moved bytes at which the memory is measured again."""
        self._promised_bytes = 0
        """Memory that is set apart for the large answer in flight."""
        self._waiter: MemoryWaiter | None = None
        """Set while nothing is read, as there is no memory."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._unsent_before = 0
        self._last_bytes = b""
        self._sampled = NOTHING
        """The number of a request that is timed."""
        self._sampled_at = 0.0
        self._protocol = make_protocol(self)
        self._decoder = self._protocol.decoder
        self.listener = self._protocol.listener
        """The name of its protocol."""
        self._stats = node.protocol_stats[self.listener]

    # Calls of the wire: Session.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        node = self._node
        self.received_at = self.now = self._opened_at = node.now()
        node.memory.connection_opened()
        self._stats.connections += 1
        if self._observer is not None:
            self._observer.opened()
        if not node.register(self):
            self._refuse_connection(ConnectionRefusal.TOO_MANY)
            return
        certificate = wire.peer_certificate_hash
        self._principal = Principal(
            None, None, wire.host, self.listener, certificate, port_of(wire.peer)
        )
        self._check_access()
        self._shared_bucket = node.shared_bucket(self._principal)
        if self._is_admitted:
            # There is no handshake to wait for, and a pool may keep connections for later.
            node.handshake_done(self)
        node.arm(self, self.received_at + self._flow.idle_s)

    def received(self, data: bytes) -> None:
        """Handle everything that one read brought."""
        self.received_at = self.now = self._node.now()
        size = len(data)
        stats = self._stats
        stats.bytes_in += size
        if self._phase is not OPEN:
            return
        if not self._is_admitted:
            self._refuse_connection(ConnectionRefusal.NOT_ADMITTED, data)
            return
        if self._undecoded or size > DECODED_BYTES_MAX:
            self._undecoded += data
            if not self._requests:
                self._decode_more()
            self._dispatch()
        elif not self._received_run(data):
            self._decode(data)
            self._dispatch()
        self._moved_bytes += size
        if self._moved_bytes >= self._check_at:
            self._check_memory()

    def _received_run(self, data: bytes) -> bool:
        """Handle a read of requests of one kind that nothing holds up, as most are. False: it is
        another one."""
        if self._requests or self._is_dispatching or self._shared_bucket is not None:
            return False
        if self._in_flight or self._full_since < inf or self._wire.congested:
            self._pass_bytes = self._pass_requests = 0
            if self._is_blocked():
                return False
        if not self._protocol.dispatch_run(data):
            return False
        if self._out:
            self._write_out()
        if self._paused or self._wire.congested:
            self._pause_or_resume_reading()
        return True

    def _decode_more(self) -> None:
        data = self._undecoded
        self._undecoded = data[DECODED_BYTES_MAX:]
        self._decode(data[:DECODED_BYTES_MAX])

    def _decode(self, data: bytes) -> None:
        size = len(data)
        requests = self._decoder.feed(data)
        if self._decoder.error is not None:
            self.count_malformed()
            self._undecoded = b""
            self._close_when_answered(self._protocol.error_bytes())
            if self.has_eof:
                self._last_bytes = self._protocol.error_bytes()
        self._partial_bytes += size
        if self._requests:
            self._read_ahead_bytes += size
            self._requests += requests
        else:
            self._requests = requests
            self._read_ahead_bytes = 0
        if requests:
            count = len(requests)
            self._stats.requests += count
            self._bytes_per_request = self._partial_bytes // count
            self._partial_bytes = 0
        else:
            # Less is left where a request that was refused for memory has been dropped.
            self._partial_bytes = min(self._partial_bytes, self._decoder.buffered_bytes)

    def uncongested(self) -> None:
        if self._phase is not CLOSED:
            self._resume()

    def eof(self) -> None:
        """No more comes: requests are answered, and wait for nothing any more."""
        if self._phase is CLOSED:
            return
        self.has_eof = True
        self._close_when_answered(b"")
        self._finish_blocked_read()
        self._resume()

    def ended(self) -> None:
        self._release()
        self._node.unregister(self)
        if self._observer is not None:
            self._observer.ended()
        account, self._account, self._waiter = self._account, None, None
        if account is not None:
            account.close(self._node.now())
        self._node.memory.connection_ended(self._node.now())
        del self._protocol, self._decoder  # they refer to this object: break the cycle

    # Calls of streams: Port.

    @property
    def writable(self) -> bool:
        return self._phase is not CLOSED and not self._wire.congested

    def send(self, replies: Sequence[Reply]) -> None:
        if self._phase is CLOSED:
            return  # their answers are not awaited any more
        observer = self._observer
        if observer is not None:
            observer.before_replies()
        in_flight, out, protocol = self._in_flight, self._out, self._protocol
        for reply in replies:
            # By its type: for these structs `isinstance` takes five times as long.
            if type(reply) is Failed:
                number = _refused_number(reply)
            else:
                number = reply.number  # type: ignore[union-attr]  # all else is for channels
            if number != self.answered:
                if 0 <= self.answered < number:
                    self._early_replies[number] = reply  # type: ignore[assignment]  # the same
                continue  # otherwise its answer is not awaited any more
            self.answered = number + 1
            out.append(protocol.answer(in_flight.popleft(), reply))  # type: ignore[arg-type]  # the same
            while self._early_replies:
                early = self._early_replies.pop(self.answered, None)
                if early is None:
                    break
                self.answered += 1
                request = in_flight.popleft()
                if type(early) is ReadyAnswer:
                    out.append(early.data)
                else:
                    out.append(protocol.answer(request, early))
        if not in_flight:
            self._in_flight_bytes = 0
        if self.answered > self._sampled:
            self._sampled = NOTHING
            self._stats.end_sample(self._sampled_at, self._node.now())
        if observer is not None:
            observer.after_replies(self.answered)

    def flush(self) -> None:
        """Write the answers, and go on with requests that waited for them."""
        if self._is_dispatching or self._phase is CLOSED:
            return
        if self._requests or self._undecoded or self._phase is CLOSING:
            self._resume()
        elif self._out:
            self._write_out()
            if self._wire.congested:
                self._pause_or_resume_reading()

    def must_wait(self, cell: bytes) -> None:
        """The mailbox of a cell is full: give it nothing more until it has room."""
        self._full_since = min(self._full_since, self.now)
        self._node.on_capacity(cell, self._mailbox_has_room)
        if self._flow.answer_s < inf:
            self._node.arm(self, self._full_since + 2 * self._flow.answer_s)

    # Calls of the node: ServerConnection.

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def address(self) -> str:
        """The host of the other end, without its port."""
        return self._wire.host

    @property
    def summary(self) -> ConnectionSummary:
        """The connection, for operators."""
        return ConnectionSummary(
            self.number, self.listener, self._wire.peer, self._opened_at, self._moved_bytes
        )

    def wake(self, now: float) -> None:
        """Requests wait to go on, or the connection was silent for long (S3A-31)."""
        if self._phase is not CLOSED:
            self._resume()
        if self._in_flight and self._flow.answer_s < inf:
            self._check_answers(now)
        if self._full_since < inf and self._flow.answer_s < inf:
            self._check_room(now)
        if self._phase is CLOSED:
            return
        node, idle_s = self._node, self._flow.idle_s
        unsent = self._wire.unsent_bytes
        if now < self.received_at + idle_s:
            self._unsent_before = 0
            node.arm(self, self.received_at + idle_s)
        elif self._in_flight or self._unsent_before > unsent or unsent > self._unsent_before == 0:
            # The other end waits for an answer, or it reads, if slowly.
            self._unsent_before = unsent
            node.arm(self, now + idle_s)
        elif unsent:
            node.counters.stalled += 1
            if self._observer is not None:
                self._observer.stalled()
            self._wire.abort()
        else:
            self.close()

    def _expect_answers(self) -> None:
        """A first request is in flight."""
        self._waiting_since, self._answered_before = self.now, self.answered
        due = self.now + self._flow.answer_s
        if due < self.deadline:
            self._node.arm(self, due)

    def _check_answers(self, now: float) -> None:
        """Refuse the requests in flight if no answer has come for long."""
        if self.answered != self._answered_before:
            self._waiting_since, self._answered_before = now, self.answered
        due = self._waiting_since + self._flow.answer_s
        if now < due:
            self._node.arm(self, due)
            return
        if self._observer is not None:
            self._observer.before_replies()
        unknown = Failed(Detach(), Code.OUTCOME_UNKNOWN)
        while self._in_flight:
            early = self._early_replies.pop(self.answered, unknown)
            self.answered += 1
            request = self._in_flight.popleft()
            if isinstance(early, ReadyAnswer):
                self._out.append(early.data)
            else:
                self._out.append(self._protocol.answer(request, early))
        self._in_flight_bytes = 0
        if self._observer is not None:
            self._observer.after_replies(self.answered)
        self._resume()

    def _check_room(self, now: float) -> None:
        """Close if a mailbox has had no room for long: requests that no cell has cannot be refused
        in their turn, and their client gets an end instead of silence."""
        due = self._full_since + 2 * self._flow.answer_s
        if now < due:
            self._node.arm(self, due)
            return
        self._node.counters.overloaded += 1
        self.close()

    def start_drain(self) -> None:
        """Take no more requests; those that streams have are answered."""
        if self._phase is not OPEN:
            return
        self._requests = []
        self._position = 0
        self._undecoded = b""
        self._close_when_answered(b"")
        self._finish_blocked_read()
        self._resume()

    def reauthorize(self) -> None:
        """Check rights again; a client that may use no stream any more is disconnected."""
        was_admitted = self._is_admitted
        self._check_access()
        if was_admitted and not self._is_admitted:
            self.start_drain()

    def close(self) -> None:
        """Write what is ready, and close."""
        if self._phase is CLOSED:
            return
        if self._last_bytes:
            self._out.append(self._last_bytes)
        if self._out:
            self._write_out()
        self._release()
        self._wire.close()

    # Calls of the protocol.

    def may(self, right: Rights, name: bytes) -> bool:
        """Has the client one of these rights in the stream or topic of this name?"""
        if self.is_free_in(name):
            return True
        rights = self._rights.get(name)
        if rights is None:
            if len(self._rights) >= RIGHTS_CACHED_MAX:
                self._rights.clear()
            rights = self._node.authorize_stream(self._principal, name) or Rights.NONE
            self._rights[name] = rights
        return bool(rights & right)

    def is_free_in(self, name: bytes) -> bool:
        """True if `may` need not be asked about this name."""
        return self.has_all_rights and not is_private(name)

    def submit(
        self,
        cell: bytes,
        requests: Sequence[R],
        messages: list[CellMessage],
        *,
        batched: bool = False,
    ) -> None:
        """Give a stream the `messages` for `requests`, one for each, numbered in their order.

        `batched`: merged with those of other connections in this pass of the loop.
        """
        if self._phase is CLOSED:
            return
        # One that waits for a record takes as long as its client likes.
        if self.now >= self._stats.sample_at and self._blocked_read_cell is None:
            self._stats.start_sample(self.now)
            self._sampled, self._sampled_at = self.next_number, self.now
        if not self._in_flight and self._flow.answer_s < inf:
            self._expect_answers()
        self._in_flight += requests
        self.next_number += len(requests)
        size = self._bytes_per_request * len(requests)
        self._in_flight_bytes += size
        node = self._node
        batcher = node.batcher
        if batched:
            batcher.add(cell, self, messages, size, self._wire.soon)
            return
        batcher.submit_now(cell)
        if not node.submit(cell, Batch(self, messages, size), self.now):
            self.must_wait(cell)
        if self._blocked_read_cell is not None:
            self.forget_answer()  # for as long as its client likes, there is no answer

    def submit_run(
        self,
        cell: bytes,
        requests: list[R],
        messages: list[CellMessage],
        size: int,
        *,
        batched: bool = True,
    ) -> None:
        """The same for a read of `size` bytes that was not decoded."""
        count = len(requests)
        self._stats.requests += count
        self._bytes_per_request = size // count
        self.submit(cell, requests, messages, batched=batched)

    def respond(self, request: R, data: bytes) -> None:
        """Answer a request that no stream needs to see, after those before it."""
        if self._phase is CLOSED:
            return
        number = self.next_number
        self.next_number = number + 1
        self._pass_bytes += len(data)
        if self._in_flight:
            self._in_flight_bytes += len(data)
            self._in_flight.append(request)
            self._early_replies[number] = ReadyAnswer(number, data)
        else:
            self.answered = number + 1
            self._out.append(data)
        self._pass_requests += len(data) // ANSWER_BYTES

    def respond_later(self, request: R) -> int:
        """Give a request its number; `send` is called with its ReadyAnswer later."""
        if not self._in_flight and self._flow.answer_s < inf:
            self._expect_answers()
        number = self.next_number
        self.next_number = number + 1
        self._in_flight.append(request)
        return number

    def may_answer(self, size_bytes: int) -> bool:
        """Set memory apart for an answer of so many bytes, of which there is one at a time. False:
        there is none now, and `dispatch` is called again when there is."""
        if self._promised_bytes:
            return True
        if self._waiter is not None:
            return False
        memory, now = self._node.memory, self._node.now()
        if memory.promise(size_bytes):
            self._promised_bytes = size_bytes
            return True

        def granted() -> None:
            if self._phase is not CLOSED:
                memory.promised_bytes += size_bytes
                self._promised_bytes = size_bytes
            self._memory_has_room()

        self._waiter = self._open_account(now).wait(size_bytes, now, granted)
        return False

    def forget_answer(self) -> None:
        """The large answer is made, or it waits for what it is about: no memory is set apart."""
        if self._promised_bytes:
            self._node.memory.keep_promise(self._promised_bytes)
            self._promised_bytes = 0

    def count_large(self, data: bytes) -> bytes:
        """Gives back an answer whose size is not bounded by that of its request."""
        self._out_bytes += len(data)
        self._pass_bytes += len(data)
        return data

    def count_refused(self, refusal: Refusal) -> None:
        """A request is refused."""
        self._node.counters.refused += 1
        self._node.record_refusal(refusal, self.address)

    def count_failed(self) -> None:
        """A stream refuses a request."""
        self._node.counters.refused += 1

    def count_malformed(self) -> None:
        """A request cannot be read."""
        self._node.counters.malformed += 1
        self._node.record_refusal(Refusal.MALFORMED, self.address)

    def read_blocks(self, cell: bytes) -> None:
        """The request that is submitted next waits for a record; none behind it is taken."""
        self._blocked_read_cell = cell

    def read_unblocks(self) -> None:
        """The last request in flight is answered; the client is idle from here."""
        if self._blocked_read_cell is not None:
            self._blocked_read_cell = None
            self.received_at = self._node.now()

    def refuse_rest(self, last_bytes: bytes) -> None:
        """Take no more requests; once all are answered, write these bytes and close."""
        self._undecoded = b""
        self._close_when_answered(last_bytes)
        self._last_bytes = last_bytes  # ahead of errors further behind

    def close_now(self, last_bytes: bytes) -> None:
        """Write these bytes behind the answers so far, and close; answer no more (S3P-44)."""
        self._last_bytes = last_bytes
        self.close()

    # Access.

    def _check_access(self) -> None:
        node, principal = self._node, self._principal
        self._is_admitted = node.may_use_streams(principal)
        self.has_all_rights = node.authorize_stream(principal, b"") == Rights.ALL
        self._rights.clear()

    def _refuse_connection(self, reason: ConnectionRefusal, data: bytes = b"") -> None:
        is_full = reason is ConnectionRefusal.TOO_MANY
        self.count_refused(Refusal.TOO_MANY if is_full else Refusal.NOT_ALLOWED)
        self.close_now(self._protocol.refusal_bytes(reason, data))

    # Flow.

    def _dispatch(self) -> None:
        """Dispatch what waits, as far as may be; then write, and see whether to read on."""
        if self._is_dispatching:
            return
        self._is_dispatching = True
        self._pass_bytes = self._pass_requests = 0
        self._dispatch_decoded()
        while self._undecoded and not self._requests and not self._is_blocked():
            self._decode_more()
            self._dispatch_decoded()
        if self._phase is CLOSED:
            return
        self._is_dispatching = False
        is_done = not (self._requests or self._undecoded or self._in_flight)
        if is_done and self._phase is CLOSING:
            self.close()
            return
        if self._out:
            self._write_out()
        if self._requests or self._undecoded or self._paused or self._wire.congested:
            self._pause_or_resume_reading()

    def _dispatch_decoded(self) -> None:
        while self._position < len(self._requests) and not self._is_blocked():
            position = self._protocol.dispatch(self._requests, self._position)
            if self._phase is CLOSED:
                return
            if position == self._position:
                break
            if self._shared_bucket is not None:
                self._shared_bucket.spend(position - self._position, self.now)
            self._pass_requests += position - self._position
            self._position = position
            if self._out_bytes:
                self._write_out()
        if self._position:
            del self._requests[: self._position]
            self._position = 0

    def _is_blocked(self) -> bool:
        """Must requests wait?"""
        flow = self._flow
        if self._full_since < inf or self._blocked_read_cell is not None:
            return True
        if self._in_flight_bytes > flow.in_flight_bytes_max:
            return True
        if len(self._in_flight) > flow.in_flight_max:
            return True
        if self._pass_bytes > flow.pass_bytes_max or self._pass_requests >= PASS_REQUESTS_MAX:
            # The cost of such requests is not known before: let others run in between.
            self._node.arm(self, self.now)
            return True
        if self._shared_bucket is not None and self._is_too_fast(self._shared_bucket):
            return True
        return self._wire.congested and self._wire.unsent_bytes > flow.unread_bytes_max

    def _is_too_fast(self, bucket: TokenBucket) -> bool:
        """Requests above the rate are not refused: they wait."""
        debt_ms = bucket.debt_ms(self.now)
        if debt_ms:
            self._node.counters.slowed += 1
            self._node.record_refusal(Refusal.TOO_FAST, self.address)
            self._node.arm(self, self.now + debt_ms / 1000)
        return debt_ms > 0

    # Memory: called by the budget (`MemoryHolder`).

    @property
    def held_bytes(self) -> int:
        if self._phase is CLOSED:
            return self._wire.unsent_bytes
        size = max(self._bytes_per_request, REQUEST_BYTES)
        waiting = (len(self._requests) - self._position) * size + len(self._undecoded)
        in_flight = max(self._in_flight_bytes, len(self._in_flight) * REQUEST_BYTES)
        early = sum(
            [len(each.data) for each in self._early_replies.values() if type(each) is ReadyAnswer]
        )
        held = self._decoder.buffered_bytes + self._wire.unsent_bytes
        return held + waiting + early + in_flight

    @property
    def moved_bytes(self) -> int:
        return self._moved_bytes - self._wire.unsent_bytes

    @property
    def waits_for_client(self) -> bool:
        return self._wire.congested or not (self._in_flight or self._waiter)

    def close_for_memory(self) -> None:
        self._decoder.clear()
        self._release()
        self._wire.abort()

    def _check_memory(self) -> None:
        """Measure what the connection holds, and read on only if there is room."""
        self._check_at = self._moved_bytes + CHECK_BYTES
        if self._account is None and self.held_bytes <= SMALL_BYTES:
            return
        now = self._node.now()
        account = self._open_account(now)
        if account.has_room(READ_BYTES, now) or self._waiter is not None:
            return
        if account.held_bytes and self._phase is not CLOSED:
            room, refuse = self._memory_has_room, self._refuse_partial
            self._waiter = account.wait(READ_BYTES, now, room, refuse)
            self._pause_or_resume_reading()

    def _open_account(self, now: float) -> MemoryAccount:
        if self._account is None:
            key = self._node.principal_key(self.address)
            self._account = self._node.memory.open(self, key, now)
        return self._account

    def _memory_has_room(self) -> None:
        self._waiter = None
        if self._phase is not CLOSED:
            self._resume()
            self._pause_or_resume_reading()

    def _refuse_partial(self) -> bool:
        """There was no memory for some seconds to read the rest of a request."""
        # To drop a small part frees nothing.
        if self._phase is not OPEN or self._decoder.buffered_bytes <= SMALL_BYTES:
            return False
        if self._undecoded:
            return False  # the rest is here
        refused = self._decoder.refuse()
        if refused is not None:
            self._requests.append(refused)
        elif self._decoder.error is not None:
            self._close_when_answered(self._protocol.error_bytes())
        else:
            return False
        self.count_failed()
        self._memory_has_room()
        return True

    def _pause_or_resume_reading(self) -> None:
        """Read no further while requests wait, but for a little behind one that waits for a record:
        that is how an end is noticed (S3A-26)."""
        if self._phase is CLOSED:
            return
        if self._waiter is not None:
            is_full = True
        elif not (self._requests or self._undecoded):
            is_full = self._wire.congested and (
                self._wire.unsent_bytes > self._flow.unread_bytes_max
            )
        elif self._blocked_read_cell is not None:
            ahead = self._read_ahead_bytes + len(self._undecoded)
            is_full = ahead > self._flow.read_ahead_bytes_max
        else:
            is_full = True
        if is_full is not self._paused:
            self._paused = is_full
            if is_full:
                self._wire.pause()
            else:
                self._is_throttled = False
                self._wire.resume()
        # A pause for requests that wait may become one for a client that does not read.
        if is_full and not self._is_throttled and self._wire.congested:
            self._is_throttled = True
            if self._observer is not None:
                self._observer.throttled()

    def _mailbox_has_room(self) -> None:
        self._full_since = inf
        if self._phase is not CLOSED:
            self._resume()

    def _resume(self) -> None:
        self.now = self._node.now()
        self._dispatch()

    def _finish_blocked_read(self) -> None:
        """The other end waits no more: as if the time was over (S3A-26). It gets the records that
        there are, also if the store is still looking for them (S3P-40)."""
        cell = self._blocked_read_cell
        if cell is not None:
            self._node.submit(cell, Batch(self, [FinishRead(self.next_number - 1)]), self.now)

    def _write_out(self) -> None:
        out = self._out
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        self._out_bytes = 0
        if data:
            self._wire.write(data)
            self._moved_bytes += len(data)
            if self._moved_bytes >= self._check_at:
                self._check_memory()

    # The end.

    def _close_when_answered(self, last_bytes: bytes) -> None:
        """Take no more bytes; once all requests are answered, write these and close."""
        if self._phase is OPEN:
            self._phase = CLOSING
            self._last_bytes = last_bytes

    def _release(self) -> None:
        """Nothing comes and nothing leaves any more: free what was kept for that."""
        self._phase = CLOSED
        self._out.clear()
        self.forget_answer()
        self._node.disarm(self)
        self.answered = NO_MORE_ANSWERS
        self._requests = []
        self._position = 0
        self._undecoded = b""
        self._in_flight.clear()
        self._early_replies.clear()
        cell, self._blocked_read_cell = self._blocked_read_cell, None
        if cell is not None:
            self._node.detach(cell, self)


def _refused_number(failed: Failed) -> int:
    """The number of the request that was refused; NO_ANSWER: one without an answer."""
    request = failed.request
    if isinstance(request, StreamRequest) and not isinstance(request, CancelRead | FinishRead):
        return request.number
    return NO_ANSWER

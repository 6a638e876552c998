"""A P2P client's connection: bytes in, packets to its channel, replies and pushes out.

It is the channel's port and the wire's session at once, and synchronous: everything that one read
brought becomes one batch for the channel, and everything that the batch caused leaves in one write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from functools import partial
from math import inf
from typing import assert_never

import msgspec

from millpond.actors.errors import Code, RequestError
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    AttemptStarted,
    Batch,
    CellMessage,
    ChannelChanged,
    Credit,
    Failed,
    Get,
    GetAck,
    Hangup,
    JobReply,
    JobRequest,
    List,
    ListAck,
    Msg,
    Nack,
    Port,
    Probe,
    Put,
    PutAck,
    Reply,
    Rights,
    StreamReply,
    StreamRequest,
    Touch,
    Writable,
)
from millpond.transports.errors import FrameTooLarge, MalformedPacket, UpgradeRefused, WireError
from millpond.transports.io.interface import Wire
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.channel_operations import OPERATIONS as CHANNEL_OPERATIONS
from millpond.transports.p2p.framing import LENGTH_BYTES, Framing
from millpond.transports.p2p.handshake import Challenge, Ready, encode_challenge, encode_ready
from millpond.transports.p2p.interface import (
    CARD_OPERATIONS,
    FETCHER_OPERATIONS,
    OWNER_OPERATIONS,
    READER_OPERATIONS,
    SENDER_OPERATIONS,
    P2PNodeServices,
    PeersCallback,
)
from millpond.transports.p2p.jobs.requests import JobRequests
from millpond.transports.p2p.login import Login, LoginOutcome
from millpond.transports.p2p.nacks import (
    HelloCode,
    encode_failed,
    encode_hello_refusal,
    encode_malformed,
    encode_no_memory,
    encode_refusal,
    encode_slow_down,
)
from millpond.transports.p2p.streams.operations import Operation
from millpond.transports.p2p.streams.requests import StreamRequests
from millpond.transports.server.interface import ConnectionSummary
from millpond.transports.server.memory_budget import (
    CHECK_BYTES,
    READ_BYTES,
    SMALL_BYTES,
    MemoryAccount,
    MemoryWaiter,
)
from millpond.transports.server.private_names import is_private
from millpond.transports.server.rate_limit import RateLimit, TokenBucket
from millpond.transports.server.refusals import Refusal
from millpond.transports.server.tracing import ConnectionSpans

NORMAL, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG = 1000, 1002, 1008, 1009
"""WebSocket close codes; plain TCP has none."""

FIRST_PACKET_BYTES_MAX = 2**16
"""Of a connection that is not logged in. A HELLO is far smaller, but a client that sends too long a
one gets an answer."""

LARGE_REPLIES_BYTES_MAX = 4 * 2**20
"""GETs and LISTs of so many bytes are in flight at once: each answer may be a whole packet."""

LARGE_OUT_BYTES = 2**18
"""Answers of streams are written as soon as there are so many bytes of them, and counted: those of
one pass may go to many connections."""

TURN_PACKETS_MAX = 512
"""So many packets of a connection are handled before others run, as a cell has its share too."""

PUT_KEY_AT, PUT_KEY_END = LENGTH_BYTES + 1, LENGTH_BYTES + 5
"""The place of the idempotency key of a PUT that stands behind its length."""

PACKET_BYTES = 256
"""A packet that waits takes about so much more than its bytes."""

LATER_REQUESTS_MAX = 64
"""Requests about peers that a connection may have unanswered."""


class Phase(Enum):
    """The states of a connection, in their order."""

    UPGRADING = auto()
    """The framing is not ready (WebSocket)."""
    AWAITING_HELLO = auto()
    """No packet has come that decides how to log in."""
    AWAITING_AUTH = auto()
    """A HELLO named an identity, and CHALLENGE asks for its proof."""
    REFUSED = auto()
    """The login is refused; the client is told after the delay that is the same for all."""
    OPEN = auto()
    DRAINING = auto()
    """Nothing is pushed; acks still count until the other end closes."""
    CLOSED = auto()


# Reading a member of an enum costs more than a dictionary look-up; these are read for every packet.
UPGRADING, AWAITING_HELLO, AWAITING_AUTH = (
    Phase.UPGRADING,
    Phase.AWAITING_HELLO,
    Phase.AWAITING_AUTH,
)
REFUSED, OPEN, DRAINING, CLOSED = Phase.REFUSED, Phase.OPEN, Phase.DRAINING, Phase.CLOSED
LOGGED_IN = (OPEN, DRAINING)
READING = (AWAITING_HELLO, AWAITING_AUTH, OPEN, DRAINING)
"""The phases in which packets are handled."""


_BROWSER_REFUSALS = {421: Refusal.FOREIGN_HOST, 403: Refusal.FOREIGN_PAGE}
"""Refused upgrades by their statuses (docs/guides/access.md, "Browsers")."""


class P2PConnection(Port):
    """One client, from its first byte to its last.

    A client that may do without HELLO and sends no byte is logged in provisionally, to be pushed
    to; a HELLO that still comes logs it in anew (PA-19).
    """

    __slots__ = (
        "_abort_code",
        "_account",
        "_admission",
        "_channel",
        "_check_at",
        "_encode_msg",
        "_framing",
        "_full_mailboxes",
        "_has_eof",
        "_is_yielding",
        "_jobs",
        "_known_operator",
        "_later_requests",
        "_login",
        "_malformed_at",
        "_may_ack",
        "_moved_bytes",
        "_node",
        "_opened_at",
        "_out",
        "_out_bytes",
        "_owes_ready",
        "_phase",
        "_promised_bytes",
        "_put_refusal",
        "_rate_limit",
        "_reads_in_flight",
        "_refusal_code",
        "_sample",
        "_spans",
        "_stalled_since",
        "_stats",
        "_streams",
        "_unanswered_bytes",
        "_unanswered_puts",
        "_undecoded",
        "_unhandled",
        "_waiter",
        "_wire",
        "deadline",
        "number",
        "received_at",
    )

    def __init__(
        self, number: int, node: P2PNodeServices, framing: Framing, listener: str = ""
    ) -> None:
        """`listener`: see `Login`."""
        self.number = number
        self.received_at = 0.0
        self.deadline = inf
        self._node = node
        self._framing = framing
        self._wire: Wire
        self._phase = UPGRADING
        self._opened_at = 0.0
        self._login: Login | None = Login(node, listener)
        """None once nothing can change the login any more."""
        self._refusal_code = HelloCode.NOT_ALLOWED
        self._owes_ready = False
        self._admission: Admission | None = None
        self._channel: bytes | None = None
        self._put_refusal: Code | None = None
        self._may_ack = False
        self._encode_msg: Callable[[Msg], bytes] = p.encode_msg
        self._rate_limit: RateLimit | None = None
        self._malformed_at: deque[float] | None = None
        self._unhandled: list[bytes] | None = None
        """Packets that were read and wait; then nothing more is read."""
        self._undecoded = b""
        """Bytes behind these packets, and behind what the framing has."""
        self._is_yielding = False
        """The rest of what was read waits for the next turn of the loop: others run first."""
        self._full_mailboxes = 0
        """Mailboxes, and the node's memory, that must have room again before more is read."""
        self._reads_in_flight = 0
        self._unanswered_puts = self._unanswered_bytes = 0
        """PUTs without an answer, and about their bytes: an answer subtracts the mean."""
        self._streams: StreamRequests | None = None
        self._jobs: JobRequests | None = None
        self._later_requests: set[tuple[int, int]] | None = None
        """Requests that are answered in any order, by their packet type and number."""
        self._known_operator: bool | None = None
        """Is the client the operator's? None: not asked yet, as it takes a while."""
        self._has_eof = False
        self._abort_code: int | None = None
        """The close code of a stream that broke; it is sent once all before it is answered."""
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._stalled_since = inf
        self._account: MemoryAccount | None = None
        self._moved_bytes = 0
        """All bytes received and written."""
        self._check_at = CHECK_BYTES
        """The number of moved bytes at which the memory is measured again."""
        self._waiter: MemoryWaiter | None = None
        """Set while nothing is read, pushed or asked of streams, as there is no memory."""
        self._promised_bytes = 0
        """Memory that is set apart for answers of streams."""
        # Plain TCP is ready for packets at once; WebSocket has its own handshake.
        self._stats = node.protocol_stats["ws" if framing.upgrade is None else "p2p"]
        self._sample: LatencySample | None = None
        self._spans: ConnectionSpans | None = None
        """Set from the login on, where this process makes spans."""

    # Calls of the wire: Session.

    def opened(self, wire: Wire) -> None:
        node = self._node
        self._wire = wire
        node.memory.connection_opened()
        self._stats.connections += 1
        self._opened_at = self.received_at = node.now()
        if not node.register(self):
            node.record_refusal(Refusal.TOO_MANY, wire.host)
            self._reject(HelloCode.TOO_MANY_CONNECTIONS)
        elif self._framing.upgrade is not None:
            self._start_login()
        else:
            node.arm(self, self._opened_at + node.settings.handshake_s)

    def received(self, data: bytes) -> None:
        """Handle what one read brought, or a turn's share of it."""
        self.received_at = self._node.now()
        framing, size = self._framing, len(data)
        if size > framing.feed_bytes_max or self._undecoded or self._unhandled is not None:
            is_first = self._unhandled is None and not self._undecoded
            self._undecoded += data
            if is_first:
                self._handle_some([])
        elif not self._received_run(data, size):
            packets = self._decode(data)
            if len(packets) > TURN_PACKETS_MAX:
                self._handle_some(packets)
            else:
                self._handle(packets)
                if self._is_yielding:
                    self._yield()
                elif framing.error is not None or framing.closed or self._login is not None:
                    self._check_stream()
        self._moved_bytes += size
        if self._moved_bytes >= self._check_at:
            self._check_memory()

    def _received_run(self, data: bytes, size: int) -> bool:
        """Handle a read of whole PUTs alone or whole acks alone, as most are: the straight way to
        the channel. False: it is another one, or these packets need a look at each."""
        if (
            self._login is not None
            or self._rate_limit is not None
            or self._streams is not None
            or self._phase not in LOGGED_IN
        ):
            return False
        packet_max, packets = self._framing.plain_packet_max, data
        if not packet_max:
            packets = self._framing.prefixed(data)
            packet_max = len(packets)
        messages, end = p.decode_run(packets, packet_max, TURN_PACKETS_MAX)
        if not messages or end != len(packets):
            return False
        channel, node, stats, now = self._channel, self._node, self._stats, self.received_at
        count = len(messages)
        packets_bytes = end - LENGTH_BYTES * count
        if type(messages[0]) is Put:
            if self._put_refusal is not None:
                return False
            self._unanswered_puts += count
            self._unanswered_bytes += packets_bytes
            if now >= stats.sample_at:
                self._sample = LatencySample(p.PUT, packets[PUT_KEY_AT:PUT_KEY_END], now)
                stats.start_sample(now)
        elif not self._may_ack:
            return False
        assert channel is not None, "a client that is logged in has a channel"
        if self._spans is not None:
            self._spans.accepted(channel, messages)
        stats.bytes_in += size
        stats.requests += count
        if not node.submit(channel, Batch(self, messages, packets_bytes), now):
            self._wait_for_capacity(channel)
        if self._out:
            self.flush()
        if self._wire.congested:
            self._pause_if_blocked()
        return True

    def _decode(self, data: bytes) -> list[bytes]:
        """The packets that `data` completes."""
        framing, stats, now = self._framing, self._stats, self.received_at
        packets = framing.feed(data)
        if framing.has_output:
            self._wire.write(framing.take_output())
        if self._phase is UPGRADING and framing.upgrade is not None:
            self._start_login()
        stats.bytes_in += len(data)
        stats.requests += len(packets)
        if now >= stats.sample_at:
            sample = first_sample(packets, now)
            if sample is not None:
                self._sample = sample
                stats.start_sample(now)
        return packets

    def _handle_some(self, packets: list[bytes]) -> None:
        """Handle a turn's share of the packets, and of those of the bytes that wait."""
        if self._undecoded:
            self._decode_some(packets)
        if len(packets) > TURN_PACKETS_MAX:
            self._unhandled = packets[TURN_PACKETS_MAX:]
            del packets[TURN_PACKETS_MAX:]
        self._is_yielding = self._has_unhandled
        self._handle(packets)
        if self._has_unhandled:
            self._yield()
        else:
            self._check_stream()

    def _check_stream(self) -> None:
        """See what has come behind the last packet: an end, a broken frame, the first packet."""
        framing = self._framing
        if framing.error is not None:
            self._framing_failed(framing.error)
        elif framing.closed:
            self._close()
        elif self._login is not None:
            self._check_first_packet(self._login)

    def _decode_some(self, packets: list[bytes]) -> None:
        """Add the packets of the bytes that wait, until there is a turn's share of them. Frames of
        the framing's own count as packets."""
        framing, data, end = self._framing, self._undecoded, 0
        share = TURN_PACKETS_MAX + framing.other_frames
        while len(packets) + framing.other_frames < share and end < len(data):
            if framing.error is not None or framing.closed:
                end = len(data)
                break
            start, end = end, end + framing.feed_bytes_max
            packets += self._decode(data[start:end])
        self._undecoded = data[end:]

    def _yield(self) -> None:
        """Let others run before the rest of what was read is handled."""
        if self._phase in READING:
            self._is_yielding = True
            self._wire.pause()
            self._node.arm(self, self.received_at)
        else:
            self._drop_unhandled()

    def _drop_unhandled(self) -> None:
        self._unhandled, self._undecoded, self._is_yielding = None, b"", False

    def uncongested(self) -> None:
        self._stalled_since = inf
        self._resume()
        if self._phase is OPEN:
            self._submit([Writable()], 0)

    def eof(self) -> None:
        """No more comes: requests are answered, nothing is pushed any more."""
        if self._phase is OPEN:
            self._phase = DRAINING
        if self._phase is DRAINING:
            self._has_eof = True
            self._close_if_answered()
        elif self._phase is not REFUSED:
            self._close()

    def ended(self) -> None:
        self._phase = CLOSED
        self._node.disarm(self)
        self._leave_channel()
        self._node.unregister(self)
        self._drop_unhandled()
        self._waiter = None
        account, self._account = self._account, None
        if account is not None:
            account.close(self._node.now())
        self._node.memory.connection_ended(self._node.now())

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
        admission = self._admission
        return ConnectionSummary(
            self.number,
            "ws" if self._stats is self._node.protocol_stats["ws"] else "p2p",
            self._wire.peer,
            self._opened_at,
            self._moved_bytes,
            None if admission is None else admission.channel,
            None if admission is None else admission.principal.identity,
        )

    def wake(self, now: float) -> None:
        """Handle a deadline of the connection itself; those of its messages are the channel's."""
        node = self._node
        was_yielding, self._is_yielding = self._is_yielding, False
        match self._phase:
            case Phase.REFUSED:
                self._reject(self._refusal_code)
            case Phase.UPGRADING | Phase.AWAITING_HELLO | Phase.AWAITING_AUTH:
                is_late = now >= self._opened_at + node.settings.handshake_s
                admission = self._admission_by_silence(is_late) if not was_yielding else None
                if was_yielding and not is_late:
                    self._resume()
                    if self._phase in (AWAITING_HELLO, AWAITING_AUTH):
                        node.arm(self, self._opened_at + node.settings.handshake_s)
                elif admission is not None:
                    self._open(admission)  # a HELLO may still come
                elif is_late:
                    node.record_refusal(Refusal.TIMEOUT, self.address)
                    self._abort()
                else:
                    node.arm(self, self._opened_at + node.settings.handshake_s)
            case Phase.OPEN | Phase.DRAINING:
                if self._has_unhandled and not self._pause_if_blocked():
                    self._resume()
                if now >= self._stalled_since + node.settings.stalled_s:
                    node.counters.stalled += 1
                    self._wire.abort()
                elif self._stalled_since < inf:
                    node.arm(self, self._stalled_since + node.settings.stalled_s)
            case Phase.CLOSED:
                pass
            case _:
                assert_never(self._phase)

    def start_drain(self) -> None:
        """Stop pushing; acks count until the other end closes (PA-36)."""
        if self._phase in (DRAINING, CLOSED):
            return
        if self._phase is not UPGRADING:
            self._enqueue(p.GOODBYE)
            self.flush()
        self._login = None
        if self._phase is OPEN:
            self._phase = DRAINING
        else:
            self._close()

    def reauthorize(self) -> None:
        """Check rights again; a client whose rights have changed has to log in again."""
        admission = self._admission
        if admission is None or self._phase not in LOGGED_IN:
            return
        self._known_operator = None
        rights = self._node.authorize(admission.principal, admission.channel)
        if rights != admission.join.rights:
            self.start_drain()
            self._close(POLICY_VIOLATION)

    def close(self) -> None:
        """Close now: the drain timeout of the node is over."""
        self._close()

    # Calls of the channel: Port.

    @property
    def writable(self) -> bool:
        return self._phase is OPEN and not self._wire.congested and self._waiter is None

    def send(self, replies: Sequence[Reply]) -> None:
        if self._phase is CLOSED:
            return  # to encode answers would take memory for nothing
        if self._spans is not None:
            self._spans.sent(self._channel or b"", replies)
        # Receipts and pushes are most replies; requests and the window bound how many there are.
        out = self._out
        answered_puts = p.encode_put_acks(replies, out)
        if answered_puts < len(replies):
            for reply in replies[answered_puts:]:
                if type(reply) is Msg:
                    out.append(self._encode_msg(reply))
                elif type(reply) is PutAck:
                    answered_puts += 1
                    out.append(p.encode(reply))
                else:
                    answered_puts += isinstance(reply, Failed) and isinstance(reply.request, Put)
                    self._send_other(reply)
        unanswered = self._unanswered_puts
        if answered_puts < unanswered:
            self._unanswered_puts = unanswered - answered_puts
            self._unanswered_bytes -= self._unanswered_bytes * answered_puts // unanswered
        else:
            self._unanswered_puts = self._unanswered_bytes = 0

    def _send_other(self, reply: Reply) -> None:
        match reply:
            case StreamReply() | Failed(request=StreamRequest()):
                self._send_of_stream(reply)
                if self._has_eof:
                    self._close_if_answered()
            case JobReply() | Failed(request=JobRequest()):
                answer = None if self._jobs is None else self._jobs.answered(reply)
                if answer is not None:
                    self._enqueue(answer)
                if self._has_eof:
                    self._close_if_answered()
            case Failed():
                if isinstance(reply.request, Get | List):
                    self._reads_in_flight -= 1
                self._send_failure(reply)
            case GetAck() | ListAck():
                self._reads_in_flight -= 1
                self._enqueue(p.encode(reply))
            case Attached():
                self._send_ready(reply)
            case Probe():
                self._enqueue(p.encode(p.Ping()))
            case Hangup():
                self.start_drain()
                self._close()
            case ChannelChanged():
                raise AssertionError("requests about channels have ports of their own")
            case _:
                self._enqueue(p.encode(reply))

    def _send_of_stream(self, reply: StreamReply | Failed) -> None:
        streams = self._streams
        if streams is None:
            return
        for packet in streams.answered(reply):
            self._enqueue(packet)
        self._release_memory(streams.large_bytes)
        if self._out_bytes > LARGE_OUT_BYTES:
            self._write_out()

    def flush(self) -> None:
        """Write what was sent."""
        if not self._out:
            return
        self._write_out()
        if self._unhandled is None and not self._undecoded:
            return
        if not self._is_yielding and not self._pause_if_blocked():
            self._resume()

    def _write_out(self) -> None:
        out = self._out
        data = self._framing.frame(out)
        self._wire.write(data)
        self._moved_bytes += len(data)
        sample = self._sample
        if sample is not None and sample.is_answered_in(out):
            self._sample = None
            self._stats.end_sample(sample.received_at, self._node.now())
        out.clear()
        self._out_bytes = 0
        if self._wire.congested and self._stalled_since == inf:
            self._stalled_since = self._node.now()
            self._node.arm(self, self._stalled_since + self._node.settings.stalled_s)
        if self._moved_bytes >= self._check_at:
            self._check_memory()

    def _enqueue(self, packet: bytes) -> None:
        if self._phase is CLOSED:
            return
        self._out.append(packet)
        self._out_bytes += len(packet)
        if self._out_bytes > self._node.settings.unsent_bytes_max:
            self._node.counters.stalled += 1
            self._phase = CLOSED
            self._wire.abort()

    # Login.

    def _start_login(self) -> None:
        """The framing is ready: packets may come."""
        assert self._login is not None and self._framing.upgrade is not None
        self._phase = AWAITING_HELLO
        settings = self._node.settings
        self._login.start(self._wire, self._framing.upgrade)
        is_bare = self._login.without_hello() is not None
        wait_s = settings.bare_push_after_s if is_bare else settings.handshake_s
        self._node.arm(self, self._opened_at + wait_s)

    def _admission_by_silence(self, is_late: bool) -> Admission | None:
        """The admission of a client that has sent no whole packet; None: it is waited for.

        A part of a packet is no silence: the packet tells what the client is (PA-19). A bare client
        may take longer for its first packet than for a HELLO.
        """
        if self._phase is not AWAITING_HELLO or self._login is None:
            return None
        if self._framing.has_partial:
            packet_type = self._framing.partial_type
            if not is_late or packet_type is None or packet_type in p.HANDSHAKE:
                return None
        return self._login.without_hello()

    def _await_hello(self) -> None:
        """A client that was logged in by its silence begins a HELLO: it has the time for one."""
        self._leave_channel()
        self._phase = AWAITING_HELLO
        self._opened_at = self._node.now()
        self._node.disarm(self)
        self._node.arm(self, self._opened_at + self._node.settings.handshake_s)

    def _handle_before_login(self, login: Login, packet_type: int, packet: p.Packet) -> bool:
        """Handle a packet of the handshake. False: the client is logged in and the packet is a
        request."""
        is_provisional = self._phase in LOGGED_IN
        match packet:
            case p.Handshake(packet_type=p.HELLO) if self._phase is not AWAITING_AUTH:
                if is_provisional:
                    self._await_hello()
                self._continue_login(login.hello(packet.raw))
            case p.Handshake(packet_type=p.AUTH) if self._phase is AWAITING_AUTH:
                self._continue_login(login.auth(packet.raw))
            case p.Close():
                self._close()
            case p.Handshake() | p.Unknown():
                self._node.counters.dropped += 1
            case _ if self._phase is AWAITING_AUTH or packet_type in p.EXTENSIONS:
                self._node.counters.dropped += 1
            case _ if is_provisional:
                self._login = None
                return False
            case _:
                return not self._log_in_without_hello(login, packet_type)
        return True

    def _continue_login(self, outcome: LoginOutcome) -> None:
        node = self._node
        match outcome:
            case Admission():
                if node.count_identity(self, outcome.principal):
                    self._owes_ready = True
                    self._login = None
                    self._open(outcome)
                else:
                    node.record_refusal(Refusal.TOO_MANY, self.address)
                    self._reject(HelloCode.TOO_MANY_CONNECTIONS)
            case Challenge():
                self._phase = AWAITING_AUTH
                node.disarm(self)
                node.arm(self, self._opened_at + node.settings.handshake_s)
                self._enqueue(encode_challenge(outcome))
            case HelloCode():
                self._reject(outcome)
            case Refusal():
                # The same delay and the same bytes, whatever was wrong (PA-39, PS-08).
                node.record_refusal(outcome, self.address)
                self._phase = REFUSED
                self._refusal_code = HelloCode.AUTHENTICATION_FAILED
                node.disarm(self)
                node.arm(self, node.now() + node.settings.refusal_delay_s)
            case _:
                assert_never(outcome)

    def _log_in_without_hello(self, login: Login, packet_type: int) -> bool:
        """The first packet is a request. False: it is refused, since this client needs a HELLO."""
        admission = login.without_hello()
        if admission is None:
            self._enqueue(encode_refusal(packet_type, Code.NOT_ALLOWED))
            self._node.record_refusal(Refusal.NOT_ALLOWED, self.address)
            self._node.counters.refused += 1
            self._abort()
            return False
        self._login = None
        self._open(admission)
        return True

    def _check_first_packet(self, login: Login) -> None:
        """Keep nothing large of a client that is not logged in and needs a HELLO (P2P-18). A HELLO
        that has begun ends a login by silence (PA-19)."""
        framing = self._framing
        if self._phase is OPEN and framing.partial_type == p.HELLO:
            self._await_hello()
        size = framing.pending_frame_bytes
        if size <= FIRST_PACKET_BYTES_MAX or self._phase not in (AWAITING_HELLO, AWAITING_AUTH):
            return
        if self._phase is AWAITING_AUTH or login.without_hello() is None:
            self._framing_failed(FrameTooLarge(size, FIRST_PACKET_BYTES_MAX))

    def _open(self, admission: Admission) -> None:
        """The client is logged in: attach it to its channel."""
        node = self._node
        per_s = node.settings.requests_per_s_max
        own = TokenBucket(per_s, node.now()) if per_s else None
        rate_limit = RateLimit(own, node.shared_bucket(admission.principal))
        self._rate_limit = rate_limit if rate_limit else None
        self._admission = admission
        self._channel = admission.channel
        self._put_refusal = admission.put_refusal()
        self._may_ack = admission.may_ack
        if p.MSGX in admission.extensions:
            self._encode_msg = p.encode_msgx
        self._phase = OPEN
        if node.tracing is not None:
            self._spans = node.tracing.connection()
        node.disarm(self)
        node.handshake_done(self)
        node.attach(admission.channel, self, admission.join, node.now())

    def _send_ready(self, attached: Attached) -> None:
        admission = self._admission
        if not self._owes_ready or admission is None:
            if self._abort_code is not None:
                self._abort(self._abort_code)
            elif self._has_eof:
                self._close()
            return
        self._owes_ready = False
        ready = Ready(
            packet_max=self._node.settings.login.packet_bytes_max,
            keep_alive_ms=admission.keep_alive_ms,
            window=attached.window,
            extensions=admission.extensions,
            mode=attached.mode,
            durability=self._node.durability(admission.channel),
            list_mode=1 if admission.join.cursor_lists else None,
            want_push=admission.join.push,
            ordered=admission.join.ordered,
        )
        self._enqueue(encode_ready(ready))

    # Requests.

    def _handle(self, packets: list[bytes]) -> None:
        """Give the packets to the cells they are for."""
        messages: list[CellMessage] = []
        size_bytes = sum(map(len, packets))
        start = 0
        if (
            packets
            and self._login is None
            and self._rate_limit is None
            and self._phase in LOGGED_IN
        ):
            # Most reads bring PUTs alone or acks alone, which need no look at each packet.
            packet_type = packets[0][0]
            if packet_type == p.PUT and self._put_refusal is None:
                messages += p.decode_puts(packets)
                start = len(messages)
                put_bytes = size_bytes if start == len(packets) else sum(map(len, packets[:start]))
                self._unanswered_puts += start
                self._unanswered_bytes += put_bytes
            elif packet_type == p.MSG_ACK and self._may_ack:
                messages += p.decode_acks(packets)
                start = len(messages)
        if start < len(packets) and not self._handle_each(packets, start, messages, size_bytes):
            return
        if messages or self._streams is not None:
            self._submit(messages, size_bytes)
        if self._out:
            self.flush()
        if self._wire.congested:
            self._pause_if_blocked()

    def _handle_each(
        self, packets: list[bytes], start: int, messages: list[CellMessage], size_bytes: int
    ) -> bool:
        """Handle the packets from `start` on, and append the channel's to `messages`; a slice at a
        time while their answers may be large. False: it has submitted them, and all is done."""
        reply_bytes = 0
        decoders = p.DECODERS
        for position in range(start, len(packets)):
            packet = packets[position]
            try:
                value = decoders[packet[0]](packet)
            except MalformedPacket as error:
                if self._refuse_malformed(error):
                    self._submit(messages, size_bytes)
                    self._abort()
                    return False
                continue
            login = self._login
            if login is not None or self._phase not in LOGGED_IN:
                if login is None or self._phase in (UPGRADING, REFUSED, CLOSED):
                    continue
                is_over = self._handle_before_login(login, packet[0], value)
                if is_over or self._phase not in LOGGED_IN:
                    continue
            if self._rate_limit is not None and self._is_too_fast(self._rate_limit, value):
                if self._rate_limit.refused < self._node.settings.rate_refusals_max:
                    continue
                self._submit(messages, size_bytes)  # what came before it counts
                self._abort()
                return False
            match value:
                case Put() if self._put_refusal is None:
                    messages.append(value)
                    self._unanswered_puts += 1
                    self._unanswered_bytes += len(packet)
                case Ack() | AttemptStarted():
                    if self._may_ack:  # without that extension, every attempt counts as started
                        messages.append(value)
                case Put():
                    self._send_failure(Failed(value, self._put_refusal or Code.NOT_ALLOWED))
                case Get() | List():
                    reply_bytes += self._handle_read(value, messages)
                case p.Close():
                    self._peer_closes(messages, size_bytes)
                    return False
                case _:
                    self._handle_other(value, messages)
            if reply_bytes >= LARGE_REPLIES_BYTES_MAX:
                # The cost of such requests is not known before: let others run in between.
                self._is_yielding = True
                self._unhandled = packets[position + 1 :] + (self._unhandled or [])
                self._submit(messages, size_bytes)
                self.flush()
                return False
        return True

    def _is_too_fast(self, rate_limit: RateLimit, value: p.Packet) -> bool:
        """Refuse a request above the rate (P2P-25)."""
        if not isinstance(value, Put | Get | List | p.Jobs | p.Admin):
            return False
        delay_ms = rate_limit.take(self.received_at)
        if delay_ms:
            self._node.counters.slowed += 1
            self._node.record_refusal(Refusal.TOO_FAST, self.address)
            self._enqueue(encode_slow_down(value, delay_ms))
        return delay_ms > 0

    def _handle_read(self, request: Get | List, messages: list[CellMessage]) -> int:
        """Gives the largest size of the answer in bytes."""
        assert self._admission is not None
        right = Rights.GET if isinstance(request, Get) else Rights.LIST
        refusal = self._admission.read_refusal(right)
        if refusal is None:
            messages.append(request)
            self._reads_in_flight += 1
            return self._admission.packet_bytes_max
        self._send_failure(Failed(request, refusal))
        return 0

    def _handle_other(self, value: p.Packet, messages: list[CellMessage]) -> None:
        admission = self._admission
        assert admission is not None
        extensions = admission.extensions
        match value:
            case p.Ping(timestamp=None):
                self._enqueue(p.encode(p.Pong()))
            case p.Ping(timestamp=int(timestamp)):
                times = (timestamp, int(self.received_at * 1000), int(self._node.now() * 1000))
                self._enqueue(p.encode(p.Pong(times)))
            case Nack() if self._may_ack:
                messages.append(value)
            case Touch() if p.TOUCH in extensions and self._may_ack:
                messages.append(value)
            case Credit() if p.CREDIT in extensions:
                messages.append(value)
            case p.Admin() if p.ADMIN in extensions:
                self._handle_admin(value, admission)
            case p.Peers() if p.PEERS in extensions:
                self._handle_peers(value, admission)
            case p.Jobs() if p.JOBS in extensions:
                if self._jobs is None:
                    self._jobs = JobRequests(
                        admission.join.rights,
                        admission.packet_bytes_max,
                        admission.channel,
                        partial(self._node.authorize, admission.principal),
                    )
                request = self._jobs.take(value)
                if isinstance(request, bytes):
                    self._enqueue(request)
                else:
                    messages.append(request)
            case p.Stream() if p.STREAM in extensions:
                self._handle_stream(value, admission)
            case p.Handshake(packet_type=p.HELLO):
                self._enqueue(encode_hello_refusal(HelloCode.MALFORMED))
            case _:
                self._node.counters.dropped += 1

    def _handle_stream(self, request: p.Stream, admission: Admission) -> None:
        node = self._node
        is_admin = Rights.ADMIN in admission.join.rights
        if not is_admin and not node.may_use_streams(admission.principal):
            self._refuse_operation(p.STREAM, request.request_id, Code.NOT_ALLOWED)
            return
        if self._streams is None:
            rights = (
                self._stream_rights
                if is_admin
                else partial(node.authorize_stream, admission.principal)
            )
            size = admission.packet_bytes_max
            self._streams = StreamRequests(node.now, node.directory, size, rights)
        for packet in self._streams.take(request):
            self._enqueue(packet)

    def _stream_rights(self, name: bytes) -> Rights | None:
        """The rights of a client with `admin`: all, but in private streams."""
        assert self._admission is not None
        if not is_private(name) or self._is_operator():
            return Rights.ALL
        return self._node.authorize_stream(self._admission.principal, name)

    def _is_operator(self) -> bool:
        if self._known_operator is None:
            assert self._admission is not None
            self._known_operator = self._node.is_operator(self._admission.principal)
        return self._known_operator

    def _handle_admin(self, request: p.Admin, admission: Admission) -> None:
        number = request.request_id
        if request.operation in CHANNEL_OPERATIONS:
            self._handle_channels(request, admission)
            return
        if Rights.ADMIN not in admission.join.rights:
            self._refuse_operation(p.ADMIN, number, Code.NOT_ALLOWED)
            return
        try:
            body = self._node.admin(request.operation, request.body, admission)
        except RequestError as error:
            self._refuse_operation(p.ADMIN, number, error.code)
            return
        self._answer_operation(p.ADMIN, p.AdminReply(number, request.operation, body), admission)

    def _handle_channels(self, request: p.Admin, admission: Admission) -> None:
        """Operations of packet 90 on channels by name, which are answered in any order."""
        answer = self._later(request)
        if answer is None:
            return
        try:
            self._node.channels(request.operation, request.body, answer, admission, self)
        except RequestError as error:
            answer(error)

    def _handle_peers(self, request: p.Peers, admission: Admission) -> None:
        """Packet 94, which is answered in any order."""
        number = request.request_id
        client = None
        if _is_for_peers(request.operation, admission):
            client = admission.principal.identity
        if client is None and not (Rights.ADMIN in admission.join.rights and self._is_operator()):
            self._refuse_operation(p.PEERS, number, Code.NOT_ALLOWED)
            return
        later = self._later(request)
        if later is not None:
            self._node.peers(request.operation, request.body, later, client, admission.channel)

    def _later(self, request: p.Peers | p.Admin) -> PeersCallback | None:
        """The function that answers this request, perhaps later; None: it is refused now."""
        kind = p.PEERS if isinstance(request, p.Peers) else p.ADMIN
        in_flight = self._later_requests = self._later_requests or set()
        key = kind, request.request_id
        if key in in_flight:
            self._refuse_operation(*key, Code.MALFORMED)
        elif len(in_flight) >= LATER_REQUESTS_MAX:
            self._refuse_operation(*key, Code.BUFFER_FULL)
        else:
            in_flight.add(key)
            return partial(self._answer_later, kind, request)
        return None

    def _answer_later(
        self, kind: int, request: p.Peers | p.Admin, outcome: bytes | RequestError
    ) -> None:
        in_flight, admission, number = self._later_requests, self._admission, request.request_id
        if admission is None or in_flight is None or (kind, number) not in in_flight:
            return  # the connection was closed meanwhile
        in_flight.discard((kind, number))
        if isinstance(outcome, RequestError):
            self._refuse_operation(kind, number, outcome.code, outcome.delay_ms)
        else:
            reply = p.PeersReply if kind == p.PEERS else p.AdminReply
            self._answer_operation(kind, reply(number, request.operation, outcome), admission)
        self.flush()
        if self._has_eof:
            self._close_if_answered()

    def _answer_operation(
        self, packet_type: int, reply: p.AdminReply | p.PeersReply, admission: Admission
    ) -> None:
        packet = p.encode(reply)
        if len(packet) <= admission.packet_bytes_max:
            self._enqueue(packet)
        else:
            self._refuse_operation(packet_type, reply.request_id, Code.TOO_LARGE_FOR_PEER)

    def _refuse_operation(
        self, packet_type: int, number: int, code: Code, delay_ms: int | None = None
    ) -> None:
        self._enqueue(encode_refusal(packet_type, code, number.to_bytes(4, "big"), delay_ms))

    def _send_failure(self, failed: Failed) -> None:
        match failed.request:
            case Touch():
                # Without a TOUCH it tells a worker that its lease has ended.
                if self._admission is not None and p.TOUCH in self._admission.extensions:
                    self._enqueue(encode_failed(failed))
            case Put() | Get() | List():
                self._enqueue(encode_failed(failed))
            case Attach() if self._owes_ready:
                has_no_disk = failed.code is Code.STORAGE_FAILED
                self._reject(HelloCode.STORAGE_FAILED if has_no_disk else HelloCode.INTERNAL)
            case Attach():
                self._abort()
            case _:
                pass  # the others have no answer, so their failure has none either

    def _refuse_malformed(self, error: MalformedPacket) -> bool:
        """Answer with a NACK. True: there were too many within a minute (PA-23, PS-12)."""
        node, packet_type = self._node, error.packet_type
        node.counters.malformed += 1
        node.record_refusal(Refusal.MALFORMED, self.address)
        if p.is_ack(packet_type):
            return False
        if packet_type in p.EXTENSIONS:
            if self._admission is None or packet_type not in self._admission.extensions:
                return False
        if self._phase is AWAITING_HELLO and self._login is not None:
            if not self._log_in_without_hello(self._login, packet_type):
                return False
        if self._phase not in LOGGED_IN:
            return False
        self._enqueue(encode_malformed(error))
        now = node.now()
        if self._malformed_at is None:
            self._malformed_at = deque(maxlen=node.settings.malformed_max)
        self._malformed_at.append(now)
        return (
            len(self._malformed_at) == node.settings.malformed_max
            and self._malformed_at[0] > now - node.settings.malformed_window_s
        )

    # Backpressure.

    def _submit(self, messages: list[CellMessage], size_bytes: int) -> None:
        node, streams = self._node, self._streams
        if streams is not None and self._may_answer(streams.large_bytes):
            for cell, requests, request_bytes in streams.batches():
                batch = Batch(self, [*requests], request_bytes)
                if self._spans is not None:
                    self._spans.accepted(cell, requests)
                if not node.submit(cell, batch, self.received_at):
                    self._wait_for_capacity(cell)
            self._release_memory(streams.large_bytes)
        channel = self._channel
        if channel is not None and messages:
            if self._spans is not None:
                self._spans.accepted(channel, messages)
            if not node.submit(channel, Batch(self, messages, size_bytes), self.received_at):
                self._wait_for_capacity(channel)

    def _wait_for_capacity(self, cell: bytes) -> None:
        self._full_mailboxes += 1
        self._wire.pause()
        self._node.on_capacity(cell, self._mailbox_has_room)

    def _mailbox_has_room(self) -> None:
        self._full_mailboxes -= 1
        self._resume()

    # Memory: called by the budget (`MemoryHolder`).

    @property
    def held_bytes(self) -> int:
        held = self._framing.buffered_bytes + self._wire.unsent_bytes + self._out_bytes
        held += self._unanswered_bytes + self._unanswered_puts * PACKET_BYTES
        if self._streams is not None:
            held += self._streams.held_bytes
        if self._jobs is not None:
            held += self._jobs.held_bytes
        if self._unhandled is not None:
            held += sum(map(len, self._unhandled)) + len(self._unhandled) * PACKET_BYTES
        return held + len(self._undecoded)

    @property
    def moved_bytes(self) -> int:
        return self._moved_bytes - self._wire.unsent_bytes

    @property
    def waits_for_client(self) -> bool:
        return self._wire.congested or not (self._full_mailboxes or self._unanswered_puts)

    def close_for_memory(self) -> None:
        self._node.counters.stalled += 1
        self._phase = CLOSED
        self._release_memory(0)
        self._framing.clear()
        self._drop_unhandled()
        self._out.clear()
        self._out_bytes = 0
        self._wire.abort()

    def _check_memory(self) -> None:
        """Measure what the connection holds; read and push on only if there is room."""
        self._check_at = self._moved_bytes + CHECK_BYTES
        if self._account is None and (self.held_bytes <= SMALL_BYTES or self._phase is CLOSED):
            return
        now = self._node.now()
        account = self._open_account(now)
        if account.has_room(READ_BYTES, now) or self._waiter is not None:
            return
        if account.held_bytes and self._phase is not CLOSED:
            room, refuse = self._memory_has_room, self._refuse_partial
            self._wait_for_memory(account.wait(READ_BYTES, now, room, refuse))

    def _open_account(self, now: float) -> MemoryAccount:
        if self._account is None:
            identity = None if self._admission is None else self._admission.principal.identity
            key = self._node.principal_key(self.address, identity)
            self._account = self._node.memory.open(self, key, now)
        return self._account

    def _wait_for_memory(self, waiter: MemoryWaiter) -> None:
        self._waiter = waiter
        self._full_mailboxes += 1
        self._wire.pause()

    def _may_answer(self, size_bytes: int) -> bool:
        """Set memory apart for answers of streams, so many bytes with what was set apart before.
        False: there is none now, and `_submit` is called again when there is."""
        more_bytes = size_bytes - self._promised_bytes
        if more_bytes <= 0 or self._phase is CLOSED:
            return True
        if self._waiter is not None:
            return False
        memory, now = self._node.memory, self._node.now()
        if memory.promise(more_bytes):
            self._promised_bytes = size_bytes
            return True

        def granted() -> None:
            if self._phase is not CLOSED:
                memory.promised_bytes += more_bytes
                self._promised_bytes += more_bytes
            self._memory_has_room()

        self._wait_for_memory(self._open_account(now).wait(more_bytes, now, granted))
        return False

    def _release_memory(self, size_bytes: int) -> None:
        """Answers that are not made yet take so many bytes at most."""
        if self._promised_bytes > size_bytes:
            self._node.memory.keep_promise(self._promised_bytes - size_bytes)
            self._promised_bytes = size_bytes

    def _refuse_partial(self) -> bool:
        """There was no memory for some seconds to read the rest of a packet."""
        admission = self._admission
        if admission is None or self._phase not in LOGGED_IN or self._undecoded:
            return False
        # A small packet holds nothing, and may be one that has no refusal: an ack, a GET.
        if self._framing.pending_frame_bytes <= SMALL_BYTES:
            return False
        first = self._framing.skip_packet()
        if not first:
            return False
        is_request = first[0] == p.PUT or first[0] in admission.extensions
        if is_request and not p.is_ack(first[0]):
            self._node.counters.refused += 1
            self._enqueue(encode_no_memory(first))
            self.flush()
        self._memory_has_room()
        return True

    def _memory_has_room(self) -> None:
        self._waiter = None
        self._mailbox_has_room()
        self._submit([Writable()] if self._phase is OPEN else [], 0)

    def _pause_if_blocked(self) -> bool:
        """Read no further while the other end does not read its answers.

        True: that is so, or a mailbox is full.
        """
        if not self._wire.congested:
            return self._full_mailboxes > 0
        is_full = self._wire.unsent_bytes > self._node.settings.unread_bytes_max
        if is_full:
            self._wire.pause()
        return is_full or self._full_mailboxes > 0

    @property
    def _has_unhandled(self) -> bool:
        return self._unhandled is not None or bool(self._undecoded)

    def _resume(self) -> None:
        """Handle what waits, then read on."""
        if self._full_mailboxes or self._is_yielding or self._phase is CLOSED:
            return
        if self._has_unhandled and self._reads_in_flight:
            return  # `flush` calls again with the last of those answers
        self.received_at = self._node.now()
        if self._has_unhandled:
            packets, self._unhandled = self._unhandled or [], None
            self._handle_some(packets)
        if not self._has_unhandled and not self._pause_if_blocked():
            self._wire.resume()
        if self._has_eof:
            self._close_if_answered()

    # The end.

    def _peer_closes(self, messages: list[CellMessage], size_bytes: int) -> None:
        """The other end said goodbye: its requests before that are answered first."""
        self._drop_unhandled()
        if self._phase is OPEN:
            self._phase = DRAINING
        self._submit(messages, size_bytes)
        if self._admission is None:
            self._close()
        else:
            self._has_eof = True
            self._close_if_answered()

    def _close_if_answered(self) -> None:
        """After the other end's last byte: close once everything before it is answered."""
        if self._has_unhandled or self._full_mailboxes:
            return
        if self._later_requests or (self._jobs is not None and not self._jobs.is_idle):
            return  # their answers call again
        if self._streams is not None:
            self._streams.stop_waiting()
            self._submit([], 0)
            if self._streams is not None and not self._streams.is_idle:
                return  # their answers call again
        if self._admission is None:
            return
        # `Attached` is the only answer to this, behind those to all requests; it closes.
        self._submit([self._admission.join], 0)

    def _reject(self, code: HelloCode) -> None:
        """Refuse the login."""
        self._node.counters.refused += 1
        if code is HelloCode.MALFORMED:
            self._node.record_refusal(Refusal.MALFORMED, self.address)
        if self._framing.upgrade is not None:
            self._enqueue(encode_hello_refusal(code))
        self._abort()

    def _abort(self, close_code: int = POLICY_VIOLATION) -> None:
        self._node.counters.aborted += 1
        if self._framing.upgrade is not None:
            self._enqueue(p.ABORT)
        self._close(close_code)

    def _framing_failed(self, error: WireError) -> None:
        """The bytes cannot be read any further (PA-24, PA-34)."""
        if self._abort_code is not None:
            return  # more bytes have come behind the error
        status = error.status if isinstance(error, UpgradeRefused) else 0
        refusal = _BROWSER_REFUSALS.get(status, Refusal.MALFORMED)
        self._node.record_refusal(refusal, self.address)
        match error:
            case UpgradeRefused():
                self._close()
            case FrameTooLarge():
                self._abort_when_answered(TOO_BIG)
            case _:
                self._abort_when_answered(PROTOCOL_ERROR)

    def _abort_when_answered(self, close_code: int) -> None:
        """Abort, but answer all requests before the error first."""
        if self._admission is None or self._phase not in LOGGED_IN:
            self._abort(close_code)
            return
        self._abort_code = close_code
        self._phase = DRAINING
        self._has_eof = True
        self._close_if_answered()

    def _close(self, close_code: int = NORMAL) -> None:
        if self._phase is CLOSED:
            return
        self.flush()
        close_frame = self._framing.close_frame(close_code)
        if close_frame:
            self._wire.write(close_frame)
        self._phase = CLOSED
        self._drop_unhandled()
        self._node.disarm(self)
        self._leave_channel()
        self._wire.close()

    def _leave_channel(self) -> None:
        spans, self._spans = self._spans, None
        if spans is not None:
            spans.ended()
        self._later_requests = self._jobs = None
        self._unanswered_puts = self._unanswered_bytes = 0
        streams, self._streams = self._streams, None
        self._release_memory(0)
        for cell in streams.leave() if streams is not None else ():
            self._node.detach(cell, self)
        channel, self._channel = self._channel, None
        self._admission = None
        self._put_refusal = Code.NOT_ALLOWED
        self._may_ack = False
        if channel is not None:
            self._node.detach(channel, self)


_APPEND = bytes((Operation.APPEND,))
_CORRELATION_BYTES = {p.PUT: 4, p.GET: 8, p.JOBS: 4, p.STREAM: 4}
"""The bytes after the type that come back in the answer, and behind type and code in a NACK."""


class LatencySample(msgspec.Struct, frozen=True, gc=False):
    """A request whose answer is timed. `received_at` is in seconds."""

    packet_type: int
    correlation: bytes
    received_at: float

    def is_answered_in(self, packets: Iterable[bytes]) -> bool:
        """Is one of the packets the answer, or the refusal?"""
        packet_type, correlation = self.packet_type, self.correlation
        for packet in packets:
            if packet[0] == p.NACK:
                if packet[1] == packet_type and packet.startswith(correlation, 3):
                    return True
            # The type of an answer is that of its request plus one.
            elif packet[0] == packet_type + 1 and packet.startswith(correlation, 1):
                return True
        return False


def first_sample(packets: Iterable[bytes], received_at: float) -> LatencySample | None:
    """The first request whose answer can be told from all others; None: there is none."""
    for packet in packets:
        size = _CORRELATION_BYTES.get(packet[0], 0)
        if not 0 < size < len(packet):
            continue
        # Reads of streams may wait for records that are still to come.
        if packet[0] != p.STREAM or packet[5:6] == _APPEND:
            return LatencySample(packet[0], packet[1 : 1 + size], received_at)
    return None


def _is_for_peers(operation: int, admission: Admission) -> bool:
    """True for an operation of packet 94 that a peer may use on this connection."""
    if operation in SENDER_OPERATIONS:
        return admission.put_refusal() is None
    if operation in READER_OPERATIONS or operation in FETCHER_OPERATIONS:
        return admission.read_refusal(Rights.GET) is None
    return operation in OWNER_OPERATIONS or operation in CARD_OPERATIONS

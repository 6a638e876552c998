"""A P2P client's connection: bytes in, packets to its channel, replies and pushes out.

It is the channel's port and the wire's session at once, and synchronous: everything that one read
brought becomes one batch for the channel, and everything that the batch caused leaves in one write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Ack,
    Attach,
    Attached,
    AttemptStarted,
    CellMessage,
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
from millpond.transports.errors import MalformedPacket
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.administration import administered
from millpond.transports.p2p.admission import Admission
from millpond.transports.p2p.dispatch import Asking
from millpond.transports.p2p.framing import Framing
from millpond.transports.p2p.handshake import Ready, encode_ready
from millpond.transports.p2p.interface import P2PNodeServices
from millpond.transports.p2p.lifecycle import (
    CLOSED,
    LEAVING,
    OPEN,
    OPENING,
    PROVING,
    REFUSED,
    TAKING,
    WAITING,
)
from millpond.transports.p2p.nacks import (
    HelloCode,
    encode_failed,
    encode_hello_refusal,
    encode_malformed,
    encode_slow_down,
)
from millpond.transports.server.rate_limit import RateLimit, TokenBucket
from millpond.transports.server.refusals import Refusal

HEAVY_BYTES_MAX = 4 * 2**20
"""GETs and LISTs are under way for so much at once: their answers may be a whole packet each."""


class Connection(Asking):
    """One client. How it comes in is `Arrival`, how it leaves `Visit`, how it waits for cells
    `Asking`."""

    __slots__ = ("_allowance", "_malformed_at")

    def __init__(self, number: int, host: P2PNodeServices, framing: Framing) -> None:
        super().__init__(number, host, framing)
        self._allowance: RateLimit | None = None
        self._malformed_at: deque[float] | None = None

    # What the wire calls.

    def received(self, data: bytes) -> None:
        """Everything that one read brought."""
        self.received_at = heard_at = self._host.now()
        framing = self._framing
        packets = framing.feed(data)
        if framing.has_output:
            self._wire.write(framing.take_output())
        if self._phase is OPENING and framing.upgrade is not None:
            self._await_greeting(framing.upgrade)
        traffic = self._traffic
        traffic.bytes_in += len(data)
        traffic.requests += len(packets)
        if heard_at >= traffic.sample_at:
            self._watch(packets)
        if self._inbox is not None:
            self._inbox += packets
        else:
            self._take(packets, len(data))
        if framing.error is not None:
            self._break_off(framing.error)
        elif framing.closed:
            self._close()
        elif self._phase in (WAITING, PROVING):
            self._check_first()

    def uncongested(self) -> None:
        self._stalled_since = inf
        self._continue()
        if self._phase is OPEN:
            self._submit([Writable()], 0)

    def eof(self) -> None:
        """No more comes: what was asked is answered, nothing is pushed any more."""
        if self._phase is OPEN:
            self._phase = LEAVING
        if self._phase is LEAVING:
            self._has_eof = True
            self._finish()
        elif self._phase is not REFUSED:
            self._close()

    def _enter(self, admission: Admission) -> None:
        host = self._host
        per_s = host.settings.requests_per_s_max
        own = TokenBucket(per_s, host.now()) if per_s else None
        allowance = RateLimit(own, host.shared_bucket(admission.principal))
        self._allowance = allowance if allowance else None
        super()._enter(admission)

    def ended(self) -> None:
        self._phase = CLOSED
        self._host.disarm(self)
        self._leave_channel()
        self._host.unregister(self)

    # What the channel calls: Port.

    @property
    def writable(self) -> bool:
        return self._phase is OPEN and not self._wire.congested

    def send(self, replies: Sequence[Reply]) -> None:
        # Receipts and pushes, the replies of every day, are bounded by requests and by the window.
        for reply in replies:
            if type(reply) is PutAck:
                self._out.append(p.encode_put_ack(reply))
            elif type(reply) is Msg:
                self._out.append(self._encode_msg(reply))
            else:
                self._send_other(reply)

    def _send_other(self, reply: Reply) -> None:
        match reply:
            case StreamReply() | Failed(request=StreamRequest()):
                self._answer_stream(reply)
            case JobReply() | Failed(request=JobRequest()):
                self._answer_jobs(reply)
            case Failed():
                if isinstance(reply.request, Get | List):
                    self._reads_pending -= 1
                self._tell_failure(reply)
            case GetAck() | ListAck():
                self._reads_pending -= 1
                self._add(p.encode(reply))
            case Attached():
                self._welcome(reply)
            case Probe():
                self._add(p.encode(p.Ping()))
            case Hangup():
                self.start_drain()
                self._close()
            case _:
                self._add(p.encode(reply))

    def _welcome(self, joined: Attached) -> None:
        if not self._owes_ready or self._admission is None:
            if self._has_eof:
                self._close()
            return
        self._owes_ready = False
        ready = Ready(
            packet_max=self._host.settings.login.packet_bytes_max,
            keep_alive_ms=self._admission.keep_alive_ms,
            window=joined.window,
            extensions=self._admission.extensions,
            mode=joined.mode,
            durability=self._host.durability(self._admission.channel),
            list_mode=1 if self._admission.join.cursor_lists else None,
            want_push=self._admission.join.push,
            ordered=self._admission.join.ordered,
        )
        self._add(encode_ready(ready))

    def _tell_failure(self, failed: Failed) -> None:
        match failed.request:
            case Put() | Get() | List() | Touch():
                self._add(encode_failed(failed))
            case Attach() if self._owes_ready:
                has_no_disk = failed.code is Code.STORAGE_FAILED
                self._turn_away(HelloCode.STORAGE_FAILED if has_no_disk else HelloCode.INTERNAL)
            case Attach():
                self._abort()
            case _:
                pass  # the others have no answer, so their failure has none either

    # Requests.

    def _take(self, packets: list[bytes], size_bytes: int) -> None:
        """Hand the packets to the channel; a slice at a time while their answers may be large."""
        messages: list[CellMessage] = []
        heavy_bytes = 0
        decoders = p.DECODERS
        for position, packet in enumerate(packets):
            try:
                value = decoders[packet[0]](packet)
            except MalformedPacket as error:
                if self._count_malformed(error):
                    self._submit(messages, size_bytes)
                    self._abort()
                    return
                continue
            if self._phase not in TAKING or self._is_provisional:
                if self._hear_first(packet[0], value) or self._phase not in TAKING:
                    continue
            if self._allowance is not None and self._is_too_fast(value):
                if self._allowance.refused < self._host.settings.rate_refusals_max:
                    continue
                self._submit(messages, size_bytes)  # what came before it counts
                self._abort()
                return
            match value:
                case Put() if self._put_refusal is None:
                    messages.append(value)
                case Ack() | AttemptStarted():
                    if self._may_ack:  # who never agreed on BEGUN has begun all that it holds
                        messages.append(value)
                case Put():
                    self._tell_failure(Failed(value, self._put_refusal or Code.NOT_ALLOWED))
                case Get() | List():
                    heavy_bytes += self._take_read(value, messages)
                case p.Close():
                    if self._phase is OPEN:
                        self._phase = LEAVING  # what came before it counts; nothing is pushed
                    self._submit(messages, size_bytes)
                    self._leave_in_turn()
                    return
                case _:
                    self._take_rare(value, messages)
            if heavy_bytes >= HEAVY_BYTES_MAX:
                self._submit(messages, size_bytes)
                self.flush()
                # What such requests cost is not known before: others get their turn in between.
                self._inbox = packets[position + 1 :]
                self._wire.pause()
                self._host.arm(self, self.received_at)
                return
        if messages or self._desk is not None:
            self._submit(messages, size_bytes)
        if self._out:
            self.flush()
        if self._wire.congested:
            self._must_wait()

    def _is_too_fast(self, value: p.Packet) -> bool:
        """Refuse what is above the rate; who goes on regardless is sent away (P2P-25)."""
        assert self._allowance is not None
        if not isinstance(value, Put | Get | List | p.Jobs):
            return False
        delay_ms = self._allowance.take(self.received_at)
        if delay_ms:
            self._host.counters.slowed += 1
            self._host.record_refusal(Refusal.TOO_FAST, self.address)
            self._add(encode_slow_down(value, delay_ms))
        return delay_ms > 0

    def _take_read(self, request: Get | List, messages: list[CellMessage]) -> int:
        """Gives how large the answer may be, in bytes."""
        assert self._admission is not None
        right = Rights.GET if isinstance(request, Get) else Rights.LIST
        refusal = self._admission.read_refusal(right)
        if refusal is None:
            messages.append(request)
            self._reads_pending += 1
            return self._admission.packet_bytes_max
        self._tell_failure(Failed(request, refusal))
        return 0

    def _take_rare(self, value: p.Packet, messages: list[CellMessage]) -> None:
        assert self._admission is not None
        extensions = self._admission.extensions
        match value:
            case p.Ping():
                self._add(p.encode(self._pong(value)))
            case Nack() if self._may_ack:
                messages.append(value)
            case Touch() if p.TOUCH in extensions and self._may_ack:
                messages.append(value)
            case Credit() if p.CREDIT in extensions:
                messages.append(value)
            case p.Admin() if p.ADMIN in extensions:
                self._add(administered(value, self._admission, self._host))
            case p.Peers() if p.PEERS in extensions:
                self._ask_peers(value)
            case p.Jobs() if p.JOBS in extensions:
                self._ask_jobs(value, messages)
            case p.Stream() if p.STREAM in extensions:
                self._ask_stream(value)
            case p.Handshake(packet_type=p.HELLO):
                self._add(encode_hello_refusal(HelloCode.MALFORMED))
            case _:
                self._host.counters.dropped += 1

    def _speaks(self, extension: int) -> bool:
        return self._admission is not None and extension in self._admission.extensions

    def _count_malformed(self, error: MalformedPacket) -> bool:
        """A NACK for each; True: ten within a minute are enough (PA-23, PS-12)."""
        settings = self._host.settings
        self._host.counters.malformed += 1
        self._host.record_refusal(Refusal.MALFORMED, self.address)
        if p.is_ack(error.packet_type):
            return False
        if error.packet_type in p.EXTENSIONS and not self._speaks(error.packet_type):
            return False
        if self._phase is WAITING and not self._enter_bare(error.packet_type):
            return False
        if self._phase not in TAKING:
            return False
        self._add(encode_malformed(error))
        now = self._host.now()
        if self._malformed_at is None:
            self._malformed_at = deque(maxlen=settings.malformed_max)
        self._malformed_at.append(now)
        return (
            len(self._malformed_at) == settings.malformed_max
            and self._malformed_at[0] > now - settings.malformed_window_s
        )

    def _pong(self, ping: p.Ping) -> p.Pong:
        if ping.timestamp is None:
            return p.Pong()
        now_ms = int(self._host.now() * 1000)
        return p.Pong((ping.timestamp, int(self.received_at * 1000), now_ms))

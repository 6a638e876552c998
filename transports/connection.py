"""A P2P client's connection: bytes in, packets to its channel, replies and pushes out.

It is the channel's port and the wire's session at once, and synchronous: everything that one read
brought becomes one batch for the channel, and everything that the batch caused leaves in one write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from math import inf
from typing import Protocol, assert_never

import msgspec

from actors.errors import Code, RequestError
from actors.messages import (
    Ack,
    Batch,
    Credit,
    Durability,
    Failed,
    Get,
    GetAck,
    Hangup,
    Join,
    Joined,
    List,
    ListAck,
    Mail,
    Msg,
    Nack,
    Port,
    Probe,
    Put,
    PutAck,
    Reply,
    Rights,
    Touch,
    Writable,
)
from transports import packet as p
from transports.errors import (
    FrameTooLarge,
    MalformedHandshake,
    MalformedPacket,
    UpgradeRefused,
    WireError,
)
from transports.framing import Framing, Upgrade
from transports.greeting import (
    Admission,
    GreetingSettings,
    admit_bare,
    admit_hello,
)
from transports.handshake import Ready, decode_hello, encode_ready
from transports.nack import (
    HelloCode,
    encode_failed,
    encode_hello_refusal,
    encode_malformed,
    encode_refusal,
)
from transports.seam import Wire

NORMAL, PROTOCOL_ERROR, POLICY_VIOLATION, TOO_BIG = 1000, 1002, 1008, 1009
"""WebSocket close codes; plain TCP has none."""

HEAVY_BYTES_MAX = 8 * 2**20
"""GETs and LISTs are under way for so much at once: their answers may be a whole packet each."""


class ConnectionSettings(msgspec.Struct, frozen=True):
    """Limits of a connection; docs/limits.md. Times in seconds."""

    greeting: GreetingSettings = GreetingSettings()
    handshake_s: float = 5.0
    bare_push_after_s: float = 0.25
    refusal_delay_s: float = 0.2
    stalled_s: float = 30.0
    unread_bytes_max: int = 4 * 2**20
    unsent_bytes_max: int = 32 * 2**20
    malformed_max: int = 10
    malformed_window_s: float = 60.0


@dataclass(slots=True)
class WireCounters:
    """What came and went over P2P connections since the start."""

    connections: int = 0
    packets_in: int = 0
    bytes_in: int = 0
    malformed: int = 0
    dropped: int = 0
    refused: int = 0
    aborted: int = 0
    stalled: int = 0


class Host(Protocol):
    """What a connection needs of its node."""

    settings: ConnectionSettings
    counters: WireCounters
    durability: Durability

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]: ...
    @property
    def attach(self) -> Callable[[bytes, Port, Join, float], bool]: ...
    @property
    def detach(self) -> Callable[[bytes, Port], None]: ...
    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]: ...
    @property
    def arm(self) -> Callable[[Connection, float], None]:
        """Have `wake` called at a time; an earlier one stands (`actors.timers`)."""

    @property
    def disarm(self) -> Callable[[Connection], None]: ...

    def entered(self, connection: Connection) -> bool:
        """A connection stands. False: there are too many."""

    def left(self, connection: Connection) -> None: ...

    def greeted(self, connection: Connection) -> None:
        """The connection is past its handshake."""

    def authorize(self, token: bytes | None, channel: bytes, address: str) -> Rights | None:
        """See `greeting.Authorize`; `address` is the other end's."""

    @property
    def admin(self) -> Callable[[int, bytes], bytes]:
        """Carry out an administrative operation. Raises RequestError."""


class Phase(Enum):
    OPENING = auto()
    """The framing is not up yet (WebSocket)."""
    WAITING = auto()
    """Nothing that matters was said yet."""
    REFUSED = auto()
    """Refused, and told so after the delay that is the same for all."""
    OPEN = auto()
    LEAVING = auto()
    """We said goodbye; acks still count until the other end closes."""
    CLOSED = auto()


# Reading a member of an enum costs more than a dictionary look-up; these are read for every packet.
OPENING, WAITING, REFUSED = Phase.OPENING, Phase.WAITING, Phase.REFUSED
OPEN, LEAVING, CLOSED = Phase.OPEN, Phase.LEAVING, Phase.CLOSED
TAKING = (OPEN, LEAVING)


class Connection:
    """One client, from its first byte to its last."""

    __slots__ = (
        "_admission",
        "_channel",
        "_encode_msg",
        "_framing",
        "_has_eof",
        "_host",
        "_inbox",
        "_is_provisional",
        "_malformed_at",
        "_may_ack",
        "_opened_at",
        "_out",
        "_out_bytes",
        "_owes_ready",
        "_phase",
        "_put_refusal",
        "_reads_pending",
        "_refusal",
        "_stalled_since",
        "_upgrade",
        "_waits_for_mailbox",
        "_wire",
        "deadline",
        "heard_at",
        "number",
    )

    def __init__(self, number: int, host: Host, framing: Framing) -> None:
        self._host = host
        self._framing = framing
        self._upgrade: Upgrade | None = None
        self._wire: Wire
        self._phase = OPENING
        self._admission: Admission | None = None
        self._channel: bytes | None = None
        self._put_refusal: Code | None = None
        self._may_ack = False
        self._encode_msg: Callable[[Msg], bytes] = p.encode
        self._owes_ready = False
        self._is_provisional = False
        self._has_eof = False
        self._reads_pending = 0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._inbox: list[bytes] | None = None
        self._waits_for_mailbox = False
        self._refusal: HelloCode | None = None
        self._malformed_at: deque[float] | None = None
        self._stalled_since = inf
        self._opened_at = 0.0
        self.number = number
        self.heard_at = 0.0
        self.deadline = inf

    # What the wire calls.

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self._opened_at = self.heard_at = self._host.now()
        self._host.counters.connections += 1
        if not self._host.entered(self):
            self._upgrade = self._framing.upgrade
            self._turn_away(HelloCode.TOO_MANY_CONNECTIONS)
        elif self._framing.upgrade is not None:
            self._await_greeting(self._framing.upgrade)
        else:
            self._host.arm(self, self._opened_at + self._host.settings.handshake_s)

    def received(self, data: bytes) -> None:
        """Everything that one read brought."""
        self.heard_at = self._host.now()
        framing = self._framing
        packets = framing.feed(data)
        if framing.speaks:
            self._wire.write(framing.outgoing())
        if self._phase is OPENING and framing.upgrade is not None:
            self._await_greeting(framing.upgrade)
        counters = self._host.counters
        counters.bytes_in += len(data)
        counters.packets_in += len(packets)
        if self._inbox is not None:
            self._inbox += packets
        else:
            self._take(packets, len(data))
        if framing.error is not None:
            self._break_off(framing.error)
        elif framing.closed:
            self._close()

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

    def ended(self) -> None:
        self._phase = CLOSED
        self._host.disarm(self)
        self._leave_channel()
        self._host.left(self)

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
            case Failed():
                if isinstance(reply.request, Get | List):
                    self._reads_pending -= 1
                self._tell_failure(reply)
            case GetAck() | ListAck():
                self._reads_pending -= 1
                self._add(p.encode(reply))
            case Joined():
                self._welcome(reply)
            case Probe():
                self._add(p.encode(p.Ping()))
            case Hangup():
                self.say_goodbye()
                self._close()
            case _:
                self._add(p.encode(reply))

    def flush(self) -> None:
        out = self._out
        if not out:
            return
        self._wire.write(self._framing.frame(out))
        out.clear()
        self._out_bytes = 0
        if self._wire.congested and self._stalled_since == inf:
            self._stalled_since = self._host.now()
            self._host.arm(self, self._stalled_since + self._host.settings.stalled_s)
        if self._inbox is not None and not self._must_wait():
            self._continue()

    # What the node calls.

    @property
    def peer(self) -> str:
        return self._wire.peer

    @property
    def address(self) -> str:
        """The other end's host, without its port."""
        return self._wire.host

    def say_goodbye(self) -> None:
        """No new pushes; acks count until the other end closes (PA-36)."""
        if self._phase in (LEAVING, CLOSED):
            return
        if self._phase is not OPENING:
            self._add(p.GOODBYE)
            self.flush()
        self._is_provisional = False
        if self._phase is OPEN:
            self._phase = LEAVING
        else:
            self._close()

    def close(self) -> None:
        """The end of the node's patience."""
        self._close()

    def wake(self, now: float) -> None:
        """A deadline of the connection itself passed; those of its messages are the channel's."""
        settings = self._host.settings
        match self._phase:
            case Phase.REFUSED:
                self._turn_away(self._refusal or HelloCode.NOT_ALLOWED)
            case Phase.OPENING | Phase.WAITING:
                if now >= self._opened_at + settings.handshake_s:
                    self._abort()
                elif self._phase is WAITING:
                    self._host.arm(self, self._opened_at + settings.handshake_s)
                    self._enter_provisionally()
            case Phase.OPEN | Phase.LEAVING:
                if now >= self._stalled_since + settings.stalled_s:
                    self._host.counters.stalled += 1
                    self._wire.abort()
                elif self._stalled_since < inf:
                    self._host.arm(self, self._stalled_since + settings.stalled_s)
            case Phase.CLOSED:
                pass
            case _:
                assert_never(self._phase)

    # Requests.

    def _take(self, packets: list[bytes], size_bytes: int) -> None:
        """Hand the packets to the channel; a slice at a time while their answers may be large."""
        messages: list[Mail] = []
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
            match value:
                case Put() if self._put_refusal is None:
                    messages.append(value)
                case Ack():
                    if self._may_ack:
                        messages.append(value)
                case Put():
                    self._tell_failure(Failed(value, self._put_refusal or Code.NOT_ALLOWED))
                case Get() | List():
                    heavy_bytes += self._take_read(value, messages)
                case p.Closing():
                    self._submit(messages, size_bytes)  # what came before it counts
                    self._close()
                    return
                case _:
                    self._take_rare(value, messages)
            if heavy_bytes >= HEAVY_BYTES_MAX:
                self._submit(messages, size_bytes)
                messages, heavy_bytes, size_bytes = [], 0, 0
                if self._must_wait() or self._reads_pending:
                    self._inbox = packets[position + 1 :]
                    self._wire.pause()
                    return
        if messages:
            self._submit(messages, size_bytes)
        if self._out:
            self.flush()
        if self._wire.congested:
            self._must_wait()

    def _take_read(self, request: Get | List, messages: list[Mail]) -> int:
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

    def _take_rare(self, value: p.Packet, messages: list[Mail]) -> None:
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
                self._administer(value)
            case p.Handshake(packet_type=p.HELLO):
                self._add(encode_hello_refusal(HelloCode.MALFORMED))
            case _:
                self._host.counters.dropped += 1

    def _pong(self, ping: p.Ping) -> p.Pong:
        if ping.timestamp is None:
            return p.Pong()
        now_ms = int(self._host.now() * 1000)
        return p.Pong((ping.timestamp, int(self.heard_at * 1000), now_ms))

    def _administer(self, request: p.Admin) -> None:
        assert self._admission is not None
        correlation = request.request_id.to_bytes(4, "big")
        if Rights.ADMIN not in self._admission.join.rights:
            self._add(encode_refusal(p.ADMIN, Code.NOT_ALLOWED, correlation))
            return
        try:
            body = self._host.admin(request.operation, request.body)
        except RequestError as error:
            self._add(encode_refusal(p.ADMIN, error.code, correlation))
        else:
            self._add(p.encode(p.AdminReply(request.request_id, request.operation, body)))

    def _submit(self, messages: list[Mail], size_bytes: int) -> None:
        channel = self._channel
        if channel is None or not messages:
            return
        if not self._host.submit(channel, Batch(self, messages, size_bytes), self.heard_at):
            self._waits_for_mailbox = True
            self._wire.pause()
            self._host.on_capacity(channel, self._mailbox_has_room)

    def _mailbox_has_room(self) -> None:
        self._waits_for_mailbox = False
        self._continue()

    def _must_wait(self) -> bool:
        """Read no further while the other end does not read its answers."""
        if not self._wire.congested:
            return self._waits_for_mailbox
        is_full = self._wire.unsent_bytes > self._host.settings.unread_bytes_max
        if is_full:
            self._wire.pause()
        return is_full or self._waits_for_mailbox

    def _continue(self) -> None:
        if self._waits_for_mailbox or self._phase is CLOSED:
            return
        if self._inbox is not None and self._reads_pending:
            return  # `flush` comes here again with the last of those answers
        self.heard_at = self._host.now()
        packets, self._inbox = self._inbox, None
        if packets:
            self._take(packets, 0)
        if self._inbox is None and not self._must_wait():
            self._wire.resume()
        if self._has_eof:
            self._finish()

    def _finish(self) -> None:
        """After the other end's last byte: close behind the answer to everything before."""
        if self._inbox is None and not self._waits_for_mailbox and self._admission is not None:
            # Answered in turn, and by nothing but `Joined`: its guest is in the channel already.
            self._submit([self._admission.join], 0)

    # The first words.

    def _await_greeting(self, upgrade: Upgrade) -> None:
        self._phase = WAITING
        self._upgrade = upgrade
        settings = self._host.settings
        if admit_bare(upgrade, settings.greeting, self._authorize) is not None:
            self._host.arm(self, self._opened_at + settings.bare_push_after_s)
        else:
            self._host.arm(self, self._opened_at + settings.handshake_s)

    def _authorize(self, token: bytes | None, channel: bytes) -> Rights | None:
        return self._host.authorize(token, channel, self._wire.host)

    def _hear_first(self, packet_type: int, value: p.Packet) -> bool:
        """What a connection says first decides how it is served. True: there is no more to it."""
        if self._phase not in (WAITING, *TAKING):
            return True
        match value:
            case p.Handshake(packet_type=p.HELLO):
                self._greet(value.raw)
            case p.Closing():
                self._close()
            case p.Handshake() | p.Unknown():
                self._host.counters.dropped += 1
            case _ if packet_type in p.EXTENSIONS:
                self._host.counters.dropped += 1
            case _ if self._is_provisional:
                self._is_provisional = False
                return False
            case _:
                return not self._enter_bare(packet_type)
        return True

    def _greet(self, raw: bytes) -> None:
        assert self._upgrade is not None
        if self._is_provisional:
            self._is_provisional = False
            self._leave_channel()
            self._phase = WAITING
        try:
            hello = decode_hello(raw)
        except MalformedHandshake:
            self._turn_away(HelloCode.MALFORMED)
            return
        settings = self._host.settings
        verdict = admit_hello(hello, self._upgrade, settings.greeting, self._authorize)
        if isinstance(verdict, Admission):
            self._owes_ready = True
            self._enter(verdict)
        elif verdict is HelloCode.AUTHENTICATION_FAILED:
            # The same delay and the same bytes, whatever was wrong (PA-39, PS-08).
            self._phase = REFUSED
            self._refusal = verdict
            self._host.disarm(self)
            self._host.arm(self, self._host.now() + settings.refusal_delay_s)
        else:
            self._turn_away(verdict)

    def _enter_bare(self, packet_type: int) -> bool:
        assert self._upgrade is not None
        greeting = self._host.settings.greeting
        admission = admit_bare(self._upgrade, greeting, self._authorize)
        if admission is None:
            self._add(encode_refusal(packet_type, Code.NOT_ALLOWED))
            self._host.counters.refused += 1
            self._abort()
            return False
        self._enter(admission)
        return True

    def _enter_provisionally(self) -> None:
        """Silence is a bare client that waits for pushes, unless a HELLO still comes (PA-19)."""
        assert self._upgrade is not None
        greeting = self._host.settings.greeting
        admission = admit_bare(self._upgrade, greeting, self._authorize)
        if admission is not None:
            self._is_provisional = True
            self._enter(admission)

    def _enter(self, admission: Admission) -> None:
        self._admission = admission
        self._channel = admission.channel
        self._put_refusal = admission.put_refusal()
        self._may_ack = admission.may_ack
        if p.MSGX in admission.extensions:
            self._encode_msg = p.encode_msgx
        self._phase = OPEN
        self._host.disarm(self)
        self._host.greeted(self)
        self._host.attach(admission.channel, self, admission.join, self._host.now())

    def _welcome(self, joined: Joined) -> None:
        if not self._owes_ready or self._admission is None:
            if self._has_eof:
                self._close()
            return
        self._owes_ready = False
        ready = Ready(
            packet_max=self._host.settings.greeting.packet_bytes_max,
            keep_alive_ms=self._admission.keep_alive_ms,
            window=joined.window,
            extensions=self._admission.extensions,
            mode=joined.mode,
            durability=self._host.durability,
            list_mode=1 if self._admission.join.cursor_lists else None,
            want_push=self._admission.join.push,
            ordered=self._admission.join.ordered,
        )
        self._add(encode_ready(ready))

    # The end.

    def _turn_away(self, code: HelloCode) -> None:
        self._host.counters.refused += 1
        if self._upgrade is not None:
            self._add(encode_hello_refusal(code))
        self._abort()

    def _abort(self, close_code: int = POLICY_VIOLATION) -> None:
        self._host.counters.aborted += 1
        if self._upgrade is not None:
            self._add(p.ABORT)
        self._close(close_code)

    def _break_off(self, error: WireError) -> None:
        """The stream cannot be read any further (PA-24, PA-34)."""
        match error:
            case UpgradeRefused():
                self._close()
            case FrameTooLarge():
                self._abort(TOO_BIG)
            case _:
                self._abort(PROTOCOL_ERROR)

    def _close(self, close_code: int = NORMAL) -> None:
        if self._phase is CLOSED:
            return
        self.flush()
        farewell = self._framing.farewell(close_code)
        if farewell:
            self._wire.write(farewell)
        self._phase = CLOSED
        self._host.disarm(self)
        self._leave_channel()
        self._wire.close()

    def _leave_channel(self) -> None:
        channel, self._channel = self._channel, None
        self._admission = None
        self._put_refusal = Code.NOT_ALLOWED
        self._may_ack = False
        if channel is not None:
            self._host.detach(channel, self)

    def _count_malformed(self, error: MalformedPacket) -> bool:
        """A NACK for each; True: ten within a minute are enough (PA-23, PS-12)."""
        settings = self._host.settings
        self._host.counters.malformed += 1
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

    # Small parts.

    def _speaks(self, extension: int) -> bool:
        return self._admission is not None and extension in self._admission.extensions

    def _add(self, packet: bytes) -> None:
        if self._phase is CLOSED:
            return
        self._out.append(packet)
        self._out_bytes += len(packet)
        if self._out_bytes > self._host.settings.unsent_bytes_max:
            self._host.counters.stalled += 1
            self._phase = CLOSED
            self._wire.abort()

    def _tell_failure(self, failed: Failed) -> None:
        match failed.request:
            case Put() | Get() | List() | Touch():
                self._add(encode_failed(failed))
            case Join():
                self._abort()
            case _:
                pass  # the others have no answer, so their failure has none either

"""What a P2P connection says first: nothing, a packet without a HELLO, a HELLO, its proof."""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.transports.errors import FrameTooLarge, MalformedHandshake
from millpond.transports.p2p import packets as p
from millpond.transports.p2p.admission import Admission, admit_bare, admit_hello, requested_channel
from millpond.transports.p2p.challenge import challenge
from millpond.transports.p2p.framing import Upgrade
from millpond.transports.p2p.handshake import Hello, decode_hello, encode_challenge
from millpond.transports.p2p.lifecycle import PROVING, REFUSED, TAKING, WAITING, Visit
from millpond.transports.p2p.nacks import HelloCode, encode_refusal
from millpond.transports.server.interface import Principal
from millpond.transports.server.refusals import Refusal

FIRST_PACKET_BYTES_MAX = 2**16
"""Of a connection that was not let in yet. A HELLO is far smaller, but who says too long a one is
to hear what was wrong with it."""


class Arrival(Visit):
    """A connection from its first packet to its place in a channel, or to its refusal."""

    __slots__ = ()

    def _await_greeting(self, upgrade: Upgrade) -> None:
        self._phase = WAITING
        self._upgrade = upgrade
        settings = self._host.settings
        if self._admit_bare(upgrade) is not None:
            self._host.arm(self, self._opened_at + settings.bare_push_after_s)
        else:
            self._host.arm(self, self._opened_at + settings.handshake_s)

    def _admit_bare(self, upgrade: Upgrade) -> Admission | None:
        greeting = self._host.settings.login
        return admit_bare(upgrade, self._principal(upgrade), greeting, self._host.authorize)

    def _principal(
        self, upgrade: Upgrade, token: bytes | None = None, identity: bytes | None = None
    ) -> Principal:
        listener = "p2p" if upgrade.hello is None else "ws"
        wire = self._wire
        certificate = wire.peer_certificate_hash
        return Principal(token or upgrade.token, identity, wire.host, listener, certificate)

    def _hear_first(self, packet_type: int, value: p.Packet) -> bool:
        """What a connection says first decides how it is served. True: there is no more to it."""
        match value:
            case _ if self._phase is PROVING:
                self._hear_proof(value)
            case _ if self._phase not in (WAITING, *TAKING):
                pass
            case p.Handshake(packet_type=p.HELLO):
                self._greet(value.raw)
            case p.Close():
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

    def _check_first(self) -> None:
        """Nothing large is kept of who was not let in, and may not be without a HELLO (P2P-18)."""
        size = self._framing.pending_frame_bytes
        if size <= FIRST_PACKET_BYTES_MAX:
            return
        assert self._upgrade is not None
        if self._phase is PROVING or self._admit_bare(self._upgrade) is None:
            self._break_off(FrameTooLarge(size, FIRST_PACKET_BYTES_MAX))

    def _greet(self, raw: bytes) -> None:
        assert self._upgrade is not None
        if self._is_provisional:
            self._is_provisional = False
            self._leave_channel()
            self._phase = WAITING
            self._opened_at = self._host.now()  # it may have been silent for long
        try:
            hello = decode_hello(raw)
        except MalformedHandshake:
            self._turn_away(HelloCode.MALFORMED)
            return
        channel = requested_channel(hello, self._upgrade, self._host.settings.login)
        if isinstance(channel, HelloCode):
            self._turn_away(channel)
        elif hello.public_key is None:
            self._admit(hello, channel, None)
        else:
            self._challenge(raw, hello, channel)

    def _challenge(self, raw: bytes, hello: Hello, channel: bytes) -> None:
        host = self._host
        signer = host.signer
        if signer is None:
            self._refuse(Refusal.BAD_PROOF)
        elif not host.may_challenge(self.address):
            host.counters.challenges_refused += 1
            host.record_refusal(Refusal.TOO_FAST, self.address)
            self._turn_away(HelloCode.TOO_MANY_CONNECTIONS)
        else:
            host.counters.challenged += 1
            shown = self._certificate_hash if self._wire.secure else None
            self._proof = challenge(raw, hello, channel, host, signer, shown)
            self._phase = PROVING
            host.disarm(self)
            host.arm(self, self._opened_at + host.settings.handshake_s)
            self._add(encode_challenge(self._proof.challenge))

    def _hear_proof(self, value: p.Packet) -> None:
        """AUTH decides; until it came nothing else is heard (3b)."""
        assert self._proof is not None
        match value:
            case p.Handshake(packet_type=p.AUTH, raw=raw):
                proof, self._proof = self._proof, None
                try:
                    is_proved = proof.is_given(raw, self._host)
                except MalformedHandshake:
                    self._turn_away(HelloCode.MALFORMED)
                    return
                if is_proved:
                    self._host.counters.identified += 1
                    self._admit(proof.hello, proof.channel, proof.hello.public_key)
                else:
                    self._refuse(Refusal.BAD_PROOF)
            case p.Close():
                self._close()
            case _:
                self._host.counters.dropped += 1

    def _admit(self, hello: Hello, channel: bytes, identity: bytes | None) -> None:
        """Let a HELLO in, whose identity, if it has one, was proved."""
        assert self._upgrade is not None
        principal = self._principal(self._upgrade, hello.token, identity)
        host = self._host
        admission = admit_hello(hello, channel, principal, host.settings.login, host.authorize)
        if admission is None:
            self._refuse(Refusal.NOT_ALLOWED)
        elif not host.count_identity(self, principal):
            host.record_refusal(Refusal.TOO_MANY, self.address)
            self._turn_away(HelloCode.TOO_MANY_CONNECTIONS)
        else:
            self._owes_ready = True
            self._enter(admission)

    def _refuse(self, refusal: Refusal) -> None:
        """The same delay and the same bytes, whatever was wrong (PA-39, PS-08)."""
        self._host.record_refusal(refusal, self.address)
        self._phase = REFUSED
        self._refusal = HelloCode.AUTHENTICATION_FAILED
        self._host.disarm(self)
        self._host.arm(self, self._host.now() + self._host.settings.refusal_delay_s)

    def _enter_bare(self, packet_type: int) -> bool:
        assert self._upgrade is not None
        admission = self._admit_bare(self._upgrade)
        if admission is None:
            self._add(encode_refusal(packet_type, Code.NOT_ALLOWED))
            self._host.record_refusal(Refusal.NOT_ALLOWED, self.address)
            self._host.counters.refused += 1
            self._abort()
            return False
        self._enter(admission)
        return True

    def _enter_provisionally(self) -> None:
        """Silence is a bare client that waits for pushes, unless a HELLO still comes (PA-19)."""
        assert self._upgrade is not None
        admission = self._admit_bare(self._upgrade)
        if admission is not None:
            self._is_provisional = True
            self._enter(admission)

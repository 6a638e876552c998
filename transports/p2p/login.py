"""Login on a P2P connection: HELLO, the challenge and its proof, or a start without HELLO.

Sans-I/O: the connection gives packets and acts on the outcome (docs/reference/wire-protocol.md).
"""

from __future__ import annotations

from millpond.transports.errors import MalformedHandshake
from millpond.transports.io.address import port_of
from millpond.transports.io.interface import Wire
from millpond.transports.p2p.admission import (
    Admission,
    admit_bare,
    admit_hello,
    requested_channel,
)
from millpond.transports.p2p.challenge import PendingProof, sign_challenge
from millpond.transports.p2p.framing import Upgrade
from millpond.transports.p2p.handshake import Challenge, Hello, decode_hello
from millpond.transports.p2p.interface import P2PNodeServices
from millpond.transports.p2p.nacks import HelloCode
from millpond.transports.server.interface import DeliveryProof, Principal
from millpond.transports.server.refusals import Refusal

LoginOutcome = Admission | Challenge | HelloCode | Refusal
"""An `Admission` logs the client in; a `Challenge` is to be sent and answered by AUTH; a
`HelloCode` refuses at once; a `Refusal` is answered after the delay that all of them share."""


class Login:
    """The handshake of one connection, until the client is logged in."""

    __slots__ = ("_certificate_hash", "_listener", "_node", "_proof", "_upgrade", "_wire")

    def __init__(self, node: P2PNodeServices, listener: str = "") -> None:
        """`listener` is the protocol that was dialled; "": p2p or ws, whichever it is."""
        self._node = node
        self._listener = listener
        # The certificate that this connection shows: the node may load another one meanwhile.
        self._certificate_hash = node.certificate_hash
        self._proof: PendingProof | None = None
        self._wire: Wire
        self._upgrade: Upgrade

    def start(self, wire: Wire, upgrade: Upgrade) -> None:
        """The framing is ready."""
        self._wire = wire
        self._upgrade = upgrade

    def without_hello(self) -> Admission | None:
        """The admission of a client that sends no HELLO; None: it has to send one."""
        node = self._node
        return admit_bare(self._upgrade, self._principal(), node.settings.login, node.authorize)

    def hello(self, raw: bytes) -> LoginOutcome:
        """Answer a HELLO packet."""
        node = self._node
        try:
            hello = decode_hello(raw)
        except MalformedHandshake:
            return HelloCode.MALFORMED
        channel = requested_channel(hello, self._upgrade, node.settings.login)
        if isinstance(channel, HelloCode):
            return channel
        if hello.public_key is None:
            return self._admit(hello, channel, None)
        if node.signer is None:
            return Refusal.BAD_PROOF
        if not self._wire.secure and not node.may_prove_plainly(self._wire.host):
            # Bytes behind the proof could be changed on the way, and forged answers end in loss.
            node.record_refusal(Refusal.WITHOUT_TLS, self._wire.host)
            return HelloCode.TLS_REQUIRED
        if not node.may_challenge(self._wire.host):
            node.counters.challenges_refused += 1
            node.record_refusal(Refusal.TOO_FAST, self._wire.host)
            return HelloCode.TOO_MANY_CONNECTIONS
        node.counters.challenged += 1
        shown = self._certificate_hash if self._wire.secure else None
        self._proof = sign_challenge(raw, hello, channel, node, node.signer, shown)
        return self._proof.challenge

    def auth(self, raw: bytes) -> LoginOutcome:
        """Answer an AUTH packet, which follows a challenge."""
        proof, self._proof = self._proof, None
        assert proof is not None
        try:
            is_proved = proof.is_proved_by(raw, self._node)
        except MalformedHandshake:
            return HelloCode.MALFORMED
        if not is_proved:
            return Refusal.BAD_PROOF
        self._node.counters.identified += 1
        return self._admit(proof.hello, proof.channel, proof.hello.public_key)

    def _admit(self, hello: Hello, channel: bytes, identity: bytes | None) -> LoginOutcome:
        node = self._node
        principal = self._principal(hello.token, identity, _delivery(hello))
        settings = node.settings.login
        admission = admit_hello(hello, channel, principal, settings, node.authorize)
        return Refusal.NOT_ALLOWED if admission is None else admission

    def _principal(
        self,
        token: bytes | None = None,
        identity: bytes | None = None,
        delivery: DeliveryProof | None = None,
    ) -> Principal:
        upgrade, wire = self._upgrade, self._wire
        listener = self._listener or ("p2p" if upgrade.hello is None else "ws")
        certificate = wire.peer_certificate_hash
        port = port_of(wire.peer)
        return Principal(
            token or upgrade.token, identity, wire.host, listener, certificate, port, delivery
        )


def _delivery(hello: Hello) -> DeliveryProof | None:
    """The proof of a client with an identity that it has a delivery token."""
    if hello.public_key is None or hello.nonce is None or hello.delivery_proof is None:
        return None
    return DeliveryProof(hello.nonce, hello.delivery_proof)

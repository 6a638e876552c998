"""Mutual authentication, the part of the client: HELLO with a key, and AUTH after CHALLENGE.

docs/reference/wire-protocol.md, PS-01; the server's half is `millpond.transports.p2p.challenge`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from millpond.node.client.errors import PeerMismatch, SelfConnection
from millpond.node.environment import current_environment
from millpond.node.peers.delivery_proof import delivery_proof
from millpond.node.peers.errors import AddressBookError
from millpond.node.peers.identity import peer_id, verify
from millpond.transports.errors import MalformedHandshake
from millpond.transports.p2p.handshake import (
    BY_CLIENT,
    BY_SERVER,
    NONCE_BYTES,
    Auth,
    Challenge,
    Hello,
    Signer,
    decode_challenge,
    encode_auth,
    encode_hello,
    transcript,
    without_signature,
)


class Credentials(msgspec.Struct, frozen=True):
    """The identity of the client, and the expected peer.

    `peer` is the expected public key. `on_peer` is called with the key that the node has proved,
    before the client proves its own; it raises an AddressBookError or an OSError (PeerMismatch is
    one) to reject the node. `delivery_key` is that of a mailbox at the expected peer.
    """

    identity: Signer
    peer: bytes | None = None
    on_peer: Callable[[bytes], None] | None = None
    nonce: Callable[[], bytes] = lambda: current_environment().entropy(NONCE_BYTES)
    delivery_key: bytes | None = None


class MutualAuth:
    """The authentication of one connection. `packet` is HELLO; `peer` is the proved key of the
    node."""

    def __init__(
        self, credentials: Credentials, hello: Hello, certificate_hash: bytes | None
    ) -> None:
        """`certificate_hash`: what TLS showed us of the other end. Raises MalformedHandshake."""
        self._credentials = credentials
        public, nonce, key = (
            credentials.identity.public,
            credentials.nonce(),
            credentials.delivery_key,
        )
        self._hello = msgspec.structs.replace(
            hello,
            public_key=public,
            nonce=nonce,
            certificate_hash=certificate_hash,
            delivery_proof=None if key is None else delivery_proof(key, public, nonce),
        )
        self.packet = encode_hello(self._hello)
        self.peer: bytes | None = None

    def answer(self, raw: bytes) -> bytes:
        """The AUTH packet for a CHALLENGE. Raises MalformedHandshake and PeerMismatch."""
        challenge = decode_challenge(raw)
        if not self._hello.version_min <= challenge.version <= self._hello.version_max:
            raise MalformedHandshake(f"version {challenge.version} was not offered")
        signed_by_both = transcript(self.packet, without_signature(raw))
        self._check(challenge, signed_by_both)
        self._accept_peer(challenge.public_key)
        self.peer = challenge.public_key
        signature = self._credentials.identity.sign(BY_CLIENT + signed_by_both)
        return encode_auth(Auth(signature))

    def _check(self, challenge: Challenge, signed_by_both: bytes) -> None:
        public, expected = challenge.public_key, self._credentials.peer
        if public == self._credentials.identity.public:
            raise SelfConnection("the node shows our own key", public)
        if not verify(public, challenge.signature, BY_SERVER + signed_by_both):
            raise PeerMismatch("the node cannot prove the key it shows", public)
        if expected is not None and public != expected:
            raise PeerMismatch(f"the node is {peer_id(public)}, not {peer_id(expected)}", public)
        if challenge.certificate_hash != self._hello.certificate_hash:
            raise PeerMismatch("the certificate is not the node's: somebody is in between", public)

    def _accept_peer(self, public: bytes) -> None:
        if self._credentials.on_peer is None:
            return
        try:
            self._credentials.on_peer(public)
        except PeerMismatch:
            raise
        except (AddressBookError, OSError) as error:
            raise PeerMismatch(str(error), public) from error

"""The challenge to a client that names an identity: CHALLENGE, then AUTH
(docs/reference/wire-protocol.md, PS-01)."""

from __future__ import annotations

from collections import Counter
from math import inf

import msgspec

from millpond.transports.p2p.handshake import (
    BY_CLIENT,
    BY_SERVER,
    VERSION,
    Challenge,
    Hello,
    Signer,
    decode_auth,
    encode_challenge,
    transcript,
)
from millpond.transports.p2p.interface import P2PNodeServices


class PendingProof(msgspec.Struct, frozen=True, gc=False):
    """A HELLO whose sender has yet to prove that it holds the public key in it."""

    hello: Hello
    channel: bytes
    challenge: Challenge
    transcript: bytes

    def is_proved_by(self, auth: bytes, node: P2PNodeServices) -> bool:
        """Does this AUTH prove it? Raises MalformedHandshake.

        A client that shows the node's own key has sent back the node's own signature.

        """
        public_key = self.hello.public_key
        assert public_key is not None
        signature = decode_auth(auth).signature
        return (
            node.verify(public_key, signature, BY_CLIENT + self.transcript)
            and public_key != self.challenge.public_key
            and self.hello.certificate_hash == self.challenge.certificate_hash
        )


def sign_challenge(
    raw: bytes,
    hello: Hello,
    channel: bytes,
    node: P2PNodeServices,
    signer: Signer,
    certificate_hash: bytes | None,
) -> PendingProof:
    """Sign for `hello`, whose packet was `raw`. `certificate_hash`: of our own certificate."""
    unsigned = Challenge(VERSION, signer.public, node.nonce(), b"", certificate_hash)
    signed_by_both = transcript(raw, encode_challenge(unsigned))
    signature = signer.sign(BY_SERVER + signed_by_both)
    signed = msgspec.structs.replace(unsigned, signature=signature)
    return PendingProof(hello, channel, signed, signed_by_both)


class ChallengeRate:
    """The rate limit of challenges, in all and of one address, since signing costs time.

    They are counted in windows of a second, so memory is bounded as well.
    """

    def __init__(self, per_s_max: int, per_address_max: int) -> None:
        self._per_s_max = per_s_max
        self._per_address_max = per_address_max
        self._began_at = -inf
        self._taken = 0
        self._by_address: Counter[str] = Counter()

    def take(self, address: str | None, now: float) -> bool:
        """Is one more within the limit? Address None: only the limit of all counts."""
        if now >= self._began_at + 1:
            self._began_at, self._taken = now, 0
            self._by_address.clear()
        if self._taken >= self._per_s_max:
            return False
        if address is not None:
            if self._by_address[address] >= self._per_address_max:
                return False
            self._by_address[address] += 1
        self._taken += 1
        return True

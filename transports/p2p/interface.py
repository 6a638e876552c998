"""The node, as P2P connections see it, and their limits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from millpond.actors.errors import RequestError
from millpond.actors.messages import Durability, Port
from millpond.transports.p2p.admission import Admission, LoginSettings
from millpond.transports.p2p.handshake import Signer
from millpond.transports.server.interface import NodeServices


class P2PSettings(msgspec.Struct, frozen=True):
    """Limits of a P2P connection; docs/reference/limits.md. Times in seconds.

    `requests_per_s_max` 0 is no limit; `rate_refusals_max` refusals in a row end the connection.
    `handshakes_per_s_max` HELLOs with an identity are answered per second, and of one address
    `handshakes_per_address_max`.
    """

    login: LoginSettings = LoginSettings()
    handshake_s: float = 5.0
    bare_push_after_s: float = 0.25
    refusal_delay_s: float = 0.2
    stalled_s: float = 30.0
    unread_bytes_max: int = 2**20
    unsent_bytes_max: int = 32 * 2**20
    malformed_max: int = 10
    malformed_window_s: float = 60.0
    requests_per_s_max: int = 0
    rate_refusals_max: int = 1000
    handshakes_per_s_max: int = 200
    handshakes_per_address_max: int = 20


PeersCallback = Callable[[bytes | RequestError], None]
"""Takes the body of an answer, or the error; to be called once."""

OWNER_OPERATIONS = frozenset({15, 17})
"""The operations of packet 94 that a client with an identity may use, about its own mailbox."""

READER_OPERATIONS = frozenset({16})
"""Those that a client with an identity may use, about the prekeys that it reads: it is connected to
their channel, with the right to get them."""


SENDER_OPERATIONS = frozenset({55, 56, 59})
"""Those that a client with an identity may use, about files for the owner of the mailbox that it is
connected to, with the right to put messages there."""

FETCHER_OPERATIONS = frozenset({57, 58})
"""Those that a client with an identity may use, about files that it fetches: it may read the
prekeys in the channel that it is connected to."""

CARD_OPERATIONS = frozenset({60})
"""Those that every admitted client with an identity may use: nodes that look for others on the
network ask for cards."""


class AskPeers(Protocol):
    """Carries out an operation with a body, and calls back with its answer.

    `client` is the proved key of the client, for the operations about its own mailbox, about
    prekeys that it may read in `channel`, and about files; the others are for the operator.
    """

    def __call__(
        self,
        operation: int,
        body: bytes,
        answer: PeersCallback,
        /,
        client: bytes | None = None,
        channel: bytes = b"",
    ) -> None: ...


class AskChannels(Protocol):
    """Carries out an operation on a channel by name, for an admitted client at a port, and calls
    back with its answer. Raises RequestError where it is refused at once."""

    def __call__(
        self,
        operation: int,
        body: bytes,
        answer: PeersCallback,
        client: Admission,
        port: Port,
        /,
    ) -> None: ...


class P2PNodeServices(NodeServices, Protocol):
    """The services for P2P besides `NodeServices`: identity, administration, peers."""

    settings: P2PSettings

    signer: Signer | None
    """The identity of the node; without one, clients cannot prove theirs."""

    certificate_hash: bytes | None
    """SHA-256 of the certificate (DER) that TLS listeners show."""

    @property
    def verify(self) -> Callable[[bytes, bytes, bytes], bool]:
        """Is this signature of these bytes by the holder of this public key?"""

    @property
    def nonce(self) -> Callable[[], bytes]:
        """32 unpredictable bytes."""

    def may_prove_plainly(self, address: str) -> bool:
        """May a client at this address prove an identity without TLS?"""

    def may_challenge(self, address: str) -> bool:
        """Is one more HELLO with an identity within the rate?"""

    @property
    def durability(self) -> Callable[[bytes], Durability]:
        """The promise of an acknowledgement in a channel."""

    @property
    def peers(self) -> AskPeers:
        """Carry out an operation of packet 94; the answer may come later."""

    @property
    def channels(self) -> AskChannels:
        """Carry out an operation of packet 90 on a channel by name; the answer may come later."""

    @property
    def admin(self) -> Callable[[int, bytes, Admission], bytes]:
        """Carry out an administrative operation for an admitted client. Raises RequestError."""

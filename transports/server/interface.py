"""What a P2P connection is told by its node, and asks of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from millpond.actors.errors import RequestError
from millpond.actors.messages import Attach, Batch, Durability, Port, Rights
from millpond.transports.p2p.admission import Admission, LoginSettings, Principal
from millpond.transports.server.directory import StreamDirectory
from millpond.transports.server.protocol_stats import ProtocolStats
from millpond.transports.server.rate_limit import TokenBucket
from millpond.transports.server.refusals import Refusal


class ConnectionSettings(msgspec.Struct, frozen=True):
    """Limits of a connection; docs/reference/limits.md. Times in seconds.

    `requests_per_s_max` 0 is no limit; `rate_refusals_max` in a row end the connection.
    `handshakes_per_s_max` HELLOs with an identity are answered in a second, and of one address
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


@dataclass(slots=True)
class ConnectionCounters:
    """What went wrong on connections since the start; `ProtocolStats` counts what came.

    `challenged` clients were asked to prove their identity, `identified` ones did;
    `challenges_refused` came too fast. `reasons` is of everybody who was turned away or refused
    something, by `refusals.Refusal`.
    """

    malformed: int = 0
    dropped: int = 0
    refused: int = 0
    aborted: int = 0
    stalled: int = 0
    slowed: int = 0
    challenged: int = 0
    challenges_refused: int = 0
    identified: int = 0
    reasons: dict[str, int] = field(default_factory=dict)


PeersCallback = Callable[[bytes | RequestError], None]
"""Takes the body of an answer, or why there is none; to be called once."""

AskPeers = Callable[[int, bytes, PeersCallback], None]
"""An operation and its body, and who hears the answer."""


class Signer(Protocol):
    """An identity whose secret we hold."""

    @property
    def public(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""

    def sign(self, data: bytes) -> bytes:
        """The signature of any bytes, 64 bytes."""


class ServerConnection(Protocol):
    """A connection, as its node sees it."""

    deadline: float

    @property
    def peer(self) -> str:
        """Where the other end is, as `host:port`."""

    @property
    def address(self) -> str:
        """The other end's host, without its port."""

    def wake(self, now: float) -> None:
        """The deadline that was armed has passed."""

    def start_drain(self) -> None:
        """No new pushes; acks count until the other end closes (PA-36)."""

    def reauthorize(self) -> None:
        """What it may do has changed, perhaps."""

    def close(self) -> None:
        """The end of the node's patience."""


class Host(Protocol):
    """What a connection needs of its node."""

    settings: ConnectionSettings
    counters: ConnectionCounters
    protocol_stats: dict[str, ProtocolStats]
    """By protocol."""

    signer: Signer | None
    """The node's identity; without one nobody can prove theirs."""

    certificate_hash: bytes | None
    """SHA-256 of the certificate (DER) that TLS listeners show."""

    @property
    def verify(self) -> Callable[[bytes, bytes, bytes], bool]:
        """Is it the holder of this public key whose signature this is of these bytes?"""

    @property
    def nonce(self) -> Callable[[], bytes]:
        """32 bytes that nobody can foretell."""

    def may_challenge(self, address: str) -> bool:
        """Whether a HELLO with an identity is answered, of those that this second brought."""

    @property
    def directory(self) -> StreamDirectory:
        """What there is of streams and topics."""

    @property
    def durability(self) -> Callable[[bytes], Durability]:
        """What an acknowledgement of a channel promises."""

    @property
    def now(self) -> Callable[[], float]: ...
    @property
    def submit(self) -> Callable[[bytes, Batch, float], bool]: ...
    @property
    def attach(self) -> Callable[[bytes, Port, Attach, float], bool]: ...
    @property
    def detach(self) -> Callable[[bytes, Port], None]: ...
    @property
    def on_capacity(self) -> Callable[[bytes, Callable[[], None]], None]: ...
    @property
    def arm(self) -> Callable[[ServerConnection, float], None]:
        """Have `wake` called at a time; an earlier one stands (`actors.runtime.timers`)."""

    @property
    def disarm(self) -> Callable[[ServerConnection], None]: ...

    def register(self, visitor: ServerConnection) -> bool:
        """A connection stands. False: there are too many."""

    def unregister(self, visitor: ServerConnection) -> None: ...

    def handshake_done(self, visitor: ServerConnection) -> None:
        """The connection is past its handshake."""

    def count_identity(self, visitor: ServerConnection, asker: Principal) -> bool:
        """Count the connection for who it proved to be. False: that one has too many."""

    def record_refusal(self, refusal: Refusal, address: str) -> None:
        """Somebody at this address was refused something."""

    def shared_bucket(self, asker: Principal) -> TokenBucket | None:
        """What all connections of the asker may ask for together; None: there is no limit."""

    def authorize(self, asker: Principal, channel: bytes) -> Rights | None:
        """The asker's rights in a channel; None = refused."""

    def may_use_streams(self, asker: Principal) -> bool:
        """Might there be a stream that this client may use?"""

    def authorize_stream(self, asker: Principal, name: bytes) -> Rights | None:
        """The same in a stream or topic; see `StreamHost.authorize_stream`."""

    @property
    def peers(self) -> AskPeers:
        """Carry out an operation of packet 94; the answer may come later."""

    @property
    def admin(self) -> Callable[[int, bytes, Admission], bytes]:
        """Carry out an administrative operation for who was admitted so. Raises RequestError."""

"""Errors of connections and channels; `actors.errors` has those of requests."""

from __future__ import annotations

from millpond.actors.errors import MillpondError
from millpond.transports.p2p.nacks import HelloCode


class ConnectionLost(MillpondError, ConnectionError):
    """The connection is lost for good. Outstanding requests may have been done or not."""


class HandshakeRefused(ConnectionLost):
    """The node refused the handshake; trying again would not help.

    TOO_MANY_CONNECTIONS, STORAGE_FAILED and INTERNAL are the exceptions: they may pass, and the
    client tries again, as it does without a node.
    `code` is the node's reason (docs/reference/wire-protocol.md), `status` the HTTP status on a
    WebSocket; either may be None.
    """

    def __init__(
        self, text: str, code: HelloCode | int | None = None, status: int | None = None
    ) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


def handshake_refused(code: int) -> HandshakeRefused:
    """The error for a HELLO that the node refused with this code."""
    try:
        reason = HelloCode(code)
    except ValueError:
        return HandshakeRefused(f"refused with code {code:#04x}", code)
    text = reason.name.lower().replace("_", " ")
    return HandshakeRefused(f"the node refused the handshake: {text}", reason)


class ModeMismatch(HandshakeRefused):
    """The channel exists in another mode than the requested one (PS-05)."""


class PeerMismatch(HandshakeRefused):
    """The other end has another identity, or cannot prove its own. Nothing was proved to it.

    `public` is the key that it showed, None if it showed none.
    """

    def __init__(self, text: str, public: bytes | None = None) -> None:
        super().__init__(text)
        self.public = public


class SelfConnection(PeerMismatch):
    """The other end shows our own key: it is our own node, or it reflects our packets."""


class NotEncrypted(HandshakeRefused):
    """A connection to another machine without TLS, over which no token and no identity are sent.

    An attacker on the way could read a token, and could change everything that follows the proof of
    an identity. Nothing was sent.
    """


class AskFailed(MillpondError):
    """The listener that was asked answered with an error; the text is its reason."""


class ClientClosed(MillpondError):
    """The client is not open: it was closed on this side, or not opened yet."""


class ClientForked(ClientClosed):
    """The client was opened before a `fork`, by a parent of this process."""


ChannelClosed = ClientClosed
"""The former name of ClientClosed."""

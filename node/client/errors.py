"""What a user of the client catches besides the coded `RequestError`s of `actors.errors`."""

from __future__ import annotations

from millpond.transports.p2p.nacks import HelloCode


class ConnectionLost(ConnectionError):
    """The connection is gone for good; what was outstanding may or may not have happened."""


class HandshakeRefused(ConnectionLost):
    """The node does not let this client in; trying again would not help.

    Except for TOO_MANY_CONNECTIONS, STORAGE_FAILED and INTERNAL, which may pass: these are tried
    again like a node that is not there.
    `code` is the node's reason (wire.md 3c), `status` the HTTP status on a WebSocket; either may be
    None.
    """

    def __init__(
        self, text: str, code: HelloCode | int | None = None, status: int | None = None
    ) -> None:
        super().__init__(text)
        self.code = code
        self.status = status


class ModeMismatch(HandshakeRefused):
    """The channel exists in another mode than the one asked for (PS-05)."""


class PeerMismatch(HandshakeRefused):
    """The other end is not who it has to be, or cannot prove who it is; nothing was proved to it.

    `public` is the key that it showed, None if it showed none.
    """

    def __init__(self, text: str, public: bytes | None = None) -> None:
        super().__init__(text)
        self.public = public


class SelfConnection(PeerMismatch):
    """The other end shows our own key: our own node, or somebody who turns our words against us."""


class ChannelClosed(Exception):
    """The channel was closed on this side."""

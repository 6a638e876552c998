"""The interface of byte streams: a `Wire` carries bytes, a `Session` gives them a meaning.

Both are synchronous, so the same session runs unchanged over asyncio's protocols (`asyncio_wire`),
over any anyio byte stream (`anyio_wire`) and over the simulated network (`memory`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Wire(Protocol):
    """One open connection, as a session sees it. Nothing here blocks or raises after the end."""

    peer: str
    """The address of the other end, as `host:port`; for logs and `info`."""

    host: str
    """The address alone; connection limits count by it."""

    secure: bool
    """Is it TLS?"""

    @property
    def fileno(self) -> int:
        """The descriptor of its socket; -1: it has none."""

    @property
    def peer_certificate_hash(self) -> bytes | None:
        """SHA-256 of the DER of the certificate that the other end showed; None: it has none."""

    @property
    def failure(self) -> OSError | None:
        """The error that ended the connection, if the wire knows it."""

    @property
    def congested(self) -> bool:
        """True while more than the high-water mark waits to be sent."""

    @property
    def unsent_bytes(self) -> int:
        """The bytes that wait to be sent."""

    def write(self, data: bytes) -> None:
        """Queue bytes for sending; ignored once closed."""

    def soon(self, callback: Callable[[], None]) -> None:
        """Call back once all reads of this pass of the loop are handled, before anything is
        written; at once where wires are read one by one."""

    def pause(self) -> None:
        """Read no further until `resume`: TCP carries the backpressure."""

    def resume(self) -> None: ...

    def close(self) -> None:
        """Send what is queued, then linger: half-close, discard at most 64 KiB or 200 ms, close.

        A plain close with unread input would reset the connection and destroy the last reply.
        """

    def abort(self) -> None:
        """Close at once; what is unsent is lost."""


class Session(Protocol):
    """One end's protocol on one connection, called by whatever drives the wire."""

    def opened(self, wire: Wire) -> None:
        """The connection is open. Called once, first."""

    def received(self, data: bytes) -> None:
        """Bytes came, at least one."""

    def uncongested(self) -> None:
        """The outgoing queue fell below its low-water mark."""

    def eof(self) -> None:
        """The other end sends no more; the session closes the wire when it has answered."""

    def ended(self) -> None:
        """The connection is gone. Called once, last, whatever the cause."""


SessionFactory = Callable[[], Session]


class Listener(Protocol):
    """Something that accepts connections."""

    address: str
    """The address it listens on, as `host:port`, with the port the system chose."""

    async def aclose(self) -> None:
        """Stop accepting; open connections stay."""

"""TLS as a layer of its own: a session to the wire below it, a wire to the session above it.

Nothing here waits, so it is the same on every event loop. A handshake that fails ends with the
alert of TLS and an error; a close sends close_notify first.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from hashlib import sha256
from typing import Protocol

from millpond.transports.io.interface import Session, Wire
from millpond.transports.io.tls_hello import HelloLimiter, HelloTooLong

RECORD_BYTES = 2**14
PIECE_BYTES = 2**15
"""OpenSSL is given its input, and gives its output, in pieces of this size: each of its two buffers
keeps the memory of the most that it ever held."""
ANSWER_BYTES_MAX = 2**14
"""Bytes that TLS itself answers (to key updates) before any data has to come in between."""


class HandshakeFailed(ConnectionError):
    """The other end left during the TLS handshake, or let it take too long."""


class KeyUpdateFlood(ConnectionError):
    """The other end keeps asking TLS for new keys, and sends no data."""


class Handshakes(Protocol):
    """Told of the start and the end of handshakes."""

    def handshake_started(self, wire: SecureWire) -> None:
        """The connection is open, the handshake begins."""

    def handshake_ended(self, wire: SecureWire) -> None:
        """The handshake is over: it failed if there is a `wire.failure`. Called once."""


class SecureWire:
    """TLS between a wire and `session`, which is opened when the handshake is done.

    `failure` is the error that ended the connection: an OSError, of TLS mostly.
    `peer_certificate_hash` is the SHA-256 of the DER of the other end's certificate, None if it
    showed none.
    """

    __slots__ = (
        "_answer_bytes",
        "_closing",
        "_handshakes",
        "_has_eof",
        "_hello_limiter",
        "_incoming",
        "_is_handshake_over",
        "_is_open",
        "_outgoing",
        "_session",
        "_tls",
        "_unwritten",
        "_unwritten_bytes",
        "_wire",
        "failure",
        "host",
        "peer",
        "peer_certificate_hash",
    )

    secure = True

    def __init__(
        self,
        session: Session,
        context: ssl.SSLContext,
        handshakes: Handshakes,
        server_hostname: str | None = None,
    ) -> None:
        """Raises ValueError for a `server_hostname` that cannot be one; None makes it a server."""
        self.peer = self.host = ""
        self.failure: OSError | None = None
        self.peer_certificate_hash: bytes | None = None
        self._session = session
        self._handshakes = handshakes
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
        )
        self._hello_limiter = HelloLimiter() if server_hostname is None else None
        """Of a server, until the handshake is over."""
        self._wire: Wire | None = None
        self._unwritten: list[bytes] = []
        self._unwritten_bytes = self._answer_bytes = 0
        self._is_open = self._is_handshake_over = self._has_eof = self._closing = False

    @property
    def congested(self) -> bool:
        return self._wire is not None and self._wire.congested

    @property
    def fileno(self) -> int:
        return -1 if self._wire is None else self._wire.fileno

    @property
    def unsent_bytes(self) -> int:
        below = 0 if self._wire is None else self._wire.unsent_bytes
        return below + self._unwritten_bytes

    def write(self, data: bytes) -> None:
        if self._closing or self._wire is None or not data:
            return
        self._unwritten.append(data)
        self._unwritten_bytes += len(data)
        if self._unwritten_bytes >= PIECE_BYTES:
            self._write_out()
        elif len(self._unwritten) == 1:
            self._wire.soon(self._write_out)

    def soon(self, callback: Callable[[], None]) -> None:
        if self._wire is None:
            callback()
        else:
            self._wire.soon(callback)

    def pause(self) -> None:
        if self._wire is not None:
            self._wire.pause()

    def resume(self) -> None:
        if self._wire is not None:
            self._wire.resume()

    def close(self) -> None:
        if self._closing or self._wire is None:
            return
        self._write_out()
        self._closing = True
        try:
            self._tls.unwrap()
        except ssl.SSLError:
            pass  # close_notify is written, the other end's is not waited for
        self._send()
        self._wire.close()

    def abort(self) -> None:
        self._closing = True
        if self._wire is not None:
            self._wire.abort()

    def opened(self, wire: Wire) -> None:
        self._wire = wire
        self.peer, self.host = wire.peer, wire.host
        self._handshakes.handshake_started(self)
        if self._hello_limiter is None:
            self._continue_handshake()
        # A server waits for the client: OpenSSL makes its buffers (32 KiB) as it begins.

    def received(self, data: bytes) -> None:
        if self._closing:
            return
        if not self._is_open and not self._admit(data):
            return
        if self._is_open:
            self._read(data)
        else:
            self._incoming.write(data)
            self._continue_handshake()

    def uncongested(self) -> None:
        if self._is_open:
            self._session.uncongested()

    def eof(self) -> None:
        """An end without close_notify is an end as well: frames of our protocols show by themselves
        whether they are whole."""
        if not self._is_open:
            self._refuse_handshake(HandshakeFailed("the other end closed during the TLS handshake"))
        elif not self._has_eof:
            self._has_eof = True
            self._session.eof()

    def ended(self) -> None:
        self._closing = True
        self._unwritten.clear()
        self._unwritten_bytes = 0
        if not self._is_handshake_over:
            self._end_handshake(HandshakeFailed("the connection broke during the TLS handshake"))
        session, was_open = self._session, self._is_open
        del self._session  # the two no longer hold each other: no work for the collector
        if was_open:
            session.ended()

    def fail_handshake(self, failure: OSError) -> None:
        """End a handshake that takes too long, or is one too many."""
        self._end_handshake(failure)
        self.abort()

    def _admit(self, data: bytes) -> bool:
        """True unless a part of the handshake is too long to be given to OpenSSL."""
        if self._hello_limiter is not None:
            try:
                self._hello_limiter.check(data)
            except HelloTooLong as exc:
                self.fail_handshake(exc)
                return False
        return True

    def _continue_handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return
        except OSError as exc:
            self._refuse_handshake(exc)
            return
        self._send()
        certificate = self._tls.getpeercert(True)
        if certificate is not None:
            self.peer_certificate_hash = sha256(certificate).digest()
        self._is_open, self._hello_limiter = True, None
        self._end_handshake(None)
        self._session.opened(self)
        if not self._closing:
            self._read(b"")

    def _read(self, data: bytes) -> None:
        """Decrypt what came, up to now and with `data`, and give it to the session."""
        records: list[bytes] = []
        failure: OSError | None = None
        is_end = False
        try:
            is_end = self._decrypt(data[:PIECE_BYTES], records)
            for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
                is_end = is_end or self._decrypt(data[start : start + PIECE_BYTES], records)
        except OSError as exc:
            failure = exc
        data = b"".join(records)
        answer_bytes = self._outgoing.pending
        if answer_bytes:
            self._send()
        if data:
            self._answer_bytes = 0
            self._session.received(data)
        else:
            self._answer_bytes += answer_bytes
            if self._answer_bytes > ANSWER_BYTES_MAX and failure is None:
                failure = KeyUpdateFlood("the other end demands new keys and sends nothing")
        if failure is not None:
            self._fail(failure)
        elif is_end and not (self._has_eof or self._closing):
            self._has_eof = True
            self._session.eof()

    def _decrypt(self, piece: bytes, records: list[bytes]) -> bool:
        """Add what can be read with one more piece to `records`. True: it was the end."""
        incoming = self._incoming
        incoming.write(piece)
        try:
            while incoming.pending:
                record = self._tls.read(RECORD_BYTES)
                records.append(record)
                if not record:
                    return True
        except ssl.SSLWantReadError:
            pass
        return False

    def _write_out(self) -> None:
        """Encrypt what was written, and give it to the wire below."""
        unwritten = self._unwritten
        if not unwritten or self._closing:
            return
        view = memoryview(unwritten[0] if len(unwritten) == 1 else b"".join(unwritten))
        unwritten.clear()
        self._unwritten_bytes = 0
        try:
            while view:
                view = view[self._tls.write(view[:PIECE_BYTES]) :]
                self._send()
        except OSError as exc:
            self._fail(exc)

    def _send(self) -> None:
        encrypted = self._outgoing.read()
        if encrypted and self._wire is not None:
            self._wire.write(encrypted)

    def _refuse_handshake(self, failure: OSError) -> None:
        """End the handshake; its alert is sent."""
        self._end_handshake(failure)
        self._end()

    def _fail(self, failure: OSError) -> None:
        if self.failure is None:
            self.failure = failure.with_traceback(None)
        self._end()

    def _end(self) -> None:
        self._closing = True
        self._send()
        if self._wire is not None:
            self._wire.close()

    def _end_handshake(self, failure: OSError | None) -> None:
        if not self._is_handshake_over:
            self._is_handshake_over = True
            # Its traceback would hold this object, and with it 40 KiB of OpenSSL.
            self.failure = None if failure is None else failure.with_traceback(None)
            self._handshakes.handshake_ended(self)

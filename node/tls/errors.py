"""Messages for failed TLS connections: one line for each cause, the same at either end."""

from __future__ import annotations

import ssl
from typing import NamedTuple

TRUST = "give its certificate or authority with --ca FILE, or its --pin"
NAMES = "connect to what it names, or make one with --host, or give its --pin"
CLOCKS = "or a clock is wrong"

VERIFY_CODES = {
    9: ("the certificate is not valid yet", CLOCKS),
    10: ("the certificate has expired", "make a new one (`millpond keys cert`), " + CLOCKS),
    18: ("nobody but itself vouches for the certificate", TRUST),
    19: ("the certificate's authority is not trusted here", TRUST),
    20: ("the certificate's authority is not known here", TRUST),
    21: ("the certificate's authority is not known here", TRUST),
    26: ("the certificate is not made for this use", "make one with `millpond keys cert`"),
    62: ("the certificate has another name", NAMES),
    64: ("the certificate has another address", NAMES),
}
"""Messages by code of `X509_verify_cert_error_string`."""

PLAIN = ("the other end does not speak TLS here", "use tcp:// or ws://, or another port")
OLD = ("the other end does not speak TLS 1.3", "")
OURS = "our certificate is refused by the other end"
REASONS = {
    "CERTIFICATE_VERIFY_FAILED": ("the certificate cannot be verified", TRUST),
    "HTTP_REQUEST": PLAIN,
    "NO_SHARED_CIPHER": OLD,
    "PACKET_LENGTH_TOO_LONG": PLAIN,
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": ("the other end has no certificate", ""),
    "SSLV3_ALERT_BAD_CERTIFICATE": (OURS, ""),
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (f"{OURS}: it has expired", "make a new one"),
    "SSLV3_ALERT_CERTIFICATE_REVOKED": (f"{OURS}: it is revoked", ""),
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": (OURS, ""),
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": (f"{OURS}: it is not made for this use", ""),
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": ("the other end demands a certificate", "give --cert"),
    "TLSV1_ALERT_PROTOCOL_VERSION": OLD,
    "TLSV1_ALERT_UNKNOWN_CA": (f"{OURS}: its authority is not trusted there", ""),
    "UNEXPECTED_MESSAGE": PLAIN,
    "UNKNOWN_PROTOCOL": PLAIN,
    "UNSUPPORTED_PROTOCOL": OLD,
    "VERSION_TOO_LOW": OLD,
    "WRONG_VERSION_NUMBER": PLAIN,
}
"""Messages by the name of OpenSSL's error."""


class TlsReason(NamedTuple):
    """The cause of a failure, and advice for the user of a client, which may be empty."""

    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text}; {self.advice}" if self.advice else self.text


class PinMismatch(ssl.SSLCertVerificationError):
    """The other end shows another certificate than the pinned one."""


def reason_of(error: OSError) -> TlsReason:
    """The reason of a failed TLS connection."""
    match error:
        case PinMismatch():
            return TlsReason(str(error), "has the node a new one? Compare with `doctor tls` there")
        case ssl.SSLCertVerificationError():
            unknown = ("the certificate is refused", TRUST)
            text, advice = VERIFY_CODES.get(error.verify_code, unknown)
            return TlsReason(f"{text} ({error.verify_message.rstrip('.')})", advice)
        case ssl.SSLEOFError():
            return TlsReason("the other end closed during the TLS handshake", "")
        case ssl.SSLError(reason=str(name)):
            return TlsReason(*REASONS.get(name, (name.lower().replace("_", " "), "")))
        case _:
            return TlsReason(error.strerror or str(error), "")

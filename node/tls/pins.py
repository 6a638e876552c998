"""Pins: hashes of certificates and of their keys, in the form that people copy.

    sha256:HEX       SHA-256 of a certificate (DER)
    key-sha256:HEX   SHA-256 of the public key in it (DER of SubjectPublicKeyInfo, as in RFC 7469)

A certificate expires and is renewed, its key stays: a pin of the key outlives both.
"""

from __future__ import annotations

import re

KEY_PREFIX = "key-sha256:"
_PREFIX = "sha256:"
_DIGITS = re.compile(r"[0-9a-f]{64}")


def pin_of(certificate_hash: bytes) -> str:
    """The pin of a certificate."""
    return f"{_PREFIX}{certificate_hash.hex()}"


def key_pin_of(key_hash: bytes) -> str:
    """The pin of a key."""
    return f"{KEY_PREFIX}{key_hash.hex()}"


def parse_pin(text: str) -> bytes:
    """The hash in the pin of a certificate; colons between bytes are fine. Raises ValueError."""
    return _parsed(text, _PREFIX)


def parse_key_pin(text: str) -> bytes:
    """The hash in the pin of a key. Raises ValueError."""
    if not is_key_pin(text):
        raise ValueError(f"{text!r} is not {KEY_PREFIX} and 64 hexadecimal digits")
    return _parsed(text, KEY_PREFIX)


def is_key_pin(text: str) -> bool:
    """True for the pin of a key, right or wrong."""
    return text.strip().lower().startswith(KEY_PREFIX)


def _parsed(text: str, prefix: str) -> bytes:
    digits = text.strip().lower().removeprefix(prefix).replace(":", "")
    if not _DIGITS.fullmatch(digits):
        raise ValueError(f"{text!r} is not {prefix} and 64 hexadecimal digits")
    return bytes.fromhex(digits)

"""What people compare to know that they have the right key: hexadecimal, or words to read out.

Both show the beginning of SHA-256 of the public key: 128 bits of it, or 80.
"""

from __future__ import annotations

from hashlib import sha256

from millpond.node.peers.fingerprint_words import WORDS

HEX_BYTES = 16
WORD_COUNT = 10


def fingerprint(public: bytes) -> str:
    """32 hexadecimal digits in groups of four, as `a1b2 c3d4 ...`."""
    digits = sha256(public).digest()[:HEX_BYTES].hex()
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def safety_words(public: bytes) -> str:
    """10 words, one for each byte, with a space between."""
    return " ".join(WORDS[byte] for byte in sha256(public).digest()[:WORD_COUNT])

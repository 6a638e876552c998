"""The safety number of two keys: 60 digits that two people compare to know that nobody sits
between them.

Each key gives 30 digits; those of the lower key, in the order of bytes, come first:

state[0]  "millpond safety number v1\\0" | key
state[n]  SHA-512(state[n - 1] | key), for n = 1 ... 5200
digits    for each of the first six groups of five bytes of state[5200]: the group as a big-endian
          number modulo 100,000, with five digits

Each half depends on its own key alone. So an interceptor has to find a key for each half that is
given, 2^99 times 5200 hashes, and gains nothing from choosing two keys at once: a hash of both keys
could be searched for a collision, which is fast where people compare the first digits only.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha512

ROUNDS = 5200
DIGITS = 60
GROUP_DIGITS = 5
_GROUP_BYTES = 5
_GROUPS_OF_KEY = 6
_LABEL = b"millpond safety number v1\0"


class BadSafetyNumber(ValueError):
    """Text that is no safety number: another number of digits, or other characters."""


def safety_number(one: bytes, other: bytes) -> str:
    """The number of two public keys, in any order: twelve groups of five digits, spaces between.

    It takes 10 ms for keys that were not seen lately.
    """
    return " ".join(group for key in sorted((one, other)) for group in _half(key))


def parse_safety_number(text: str) -> str:
    """The number in what a person typed or pasted, as `safety_number` writes it.

    White space and hyphens are ignored. Raises BadSafetyNumber.
    """
    digits = "".join(text.split()).replace("-", "")
    if len(digits) != DIGITS or not (digits.isascii() and digits.isdigit()):
        raise BadSafetyNumber(f"a safety number has {DIGITS} digits")
    return " ".join(
        digits[start : start + GROUP_DIGITS] for start in range(0, DIGITS, GROUP_DIGITS)
    )


@lru_cache(maxsize=256)
def _half(key: bytes) -> tuple[str, ...]:
    state = _LABEL + key
    for _ in range(ROUNDS):
        state = sha512(state + key).digest()
    starts = range(0, _GROUPS_OF_KEY * _GROUP_BYTES, _GROUP_BYTES)
    numbers = (int.from_bytes(state[start : start + _GROUP_BYTES]) for start in starts)
    return tuple(f"{number % 100_000:05}" for number in numbers)

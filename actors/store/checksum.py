"""CRC-32 as docs/reference/on-disk-format.md has it, from the fastest source there is.

Every byte that is written to the disk or read from it passes through here. zlib-ng uses the
processor's rewrite-less multiplication, which makes it some forty times as fast as the zlib that
Python comes with; where there is no build of it, that one gives the same numbers.
"""

from __future__ import annotations

from functools import lru_cache

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no build for this platform
    from zlib import crc32

__all__ = ["crc32", "crc_start"]

_POLYNOMIAL = 0xEDB88320
_ONE, _BYTE = 1 << 31, 1 << 23
"""1 and x^8, in the bit order of the CRC: the highest bit is that of x^0."""
_ORDER = 2**32 - 1
"""x to this power is 1: the polynomial is primitive."""


def crc_start(difference: int, size: int) -> int:
    """The start of a CRC of `size` bytes, from its difference (xor) to the CRC of the same bytes
    from 0. A start adds itself times x^(8 * size), whatever the bytes are."""
    return _multiply(difference, _inverse_shift(size))


@lru_cache(4096)
def _inverse_shift(size: int) -> int:
    """x^(-8 * size)."""
    power, base, exponent = _ONE, _BYTE, _ORDER - size % _ORDER
    while exponent:
        if exponent & 1:
            power = _multiply(power, base)
        base, exponent = _multiply(base, base), exponent >> 1
    return power


def _multiply(one: int, other: int) -> int:
    """The product modulo the polynomial of the CRC."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product

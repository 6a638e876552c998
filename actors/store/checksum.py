"""CRC-32 as docs/reference/on-disk-format.md has it, from the fastest source there is.

Every byte that is written to the disk or read from it passes through here. zlib-ng uses the
processor's rewrite-less multiplication, which makes it some forty times as fast as the zlib that
Python comes with; where there is no build of it, that one gives the same numbers.
"""

from __future__ import annotations

try:
    from zlib_ng.zlib_ng import crc32
except ImportError:  # no build for this platform
    from zlib import crc32

__all__ = ["crc32"]

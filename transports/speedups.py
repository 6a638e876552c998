"""The native codecs of `millpond._speedups`, where a C compiler was there when Millpond was
installed (docs/internals/native-codecs.md).

A codec that has a native twin chooses one of the two by `is_native`.
"""

from __future__ import annotations

import os

__all__ = ["REVISION", "is_native", "native", "unused_because"]

REVISION = 12
"""Of the sources that this version goes with: an older build that was left is not used."""

unused_because: str | None = None
"""The reason why Python's codecs run; None: the native ones do."""

try:
    import millpond._speedups as native
except ImportError:
    native = None  # type: ignore[assignment]  # a module, or nothing
    unused_because = "not built: the installation found no C compiler, or no headers of Python"
else:
    if os.environ.get("MILLPOND_PURE", "0") not in ("", "0"):
        unused_because = "MILLPOND_PURE is set"
    elif native.REVISION != REVISION:
        unused_because = "the build is of another version: install Millpond again"

is_native = unused_because is None

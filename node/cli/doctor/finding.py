"""The finding of a check."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """A finding: `level` is ok, warn or fail; `text` says what to do about warnings and
    failures."""

    check: str
    level: str
    text: str

"""What a check of `doctor` found."""

from __future__ import annotations

from typing import NamedTuple


class Finding(NamedTuple):
    """`level` is ok, warn or fail; `text` says what to do about what is not ok."""

    check: str
    level: str
    text: str

"""The damage of a simulated world's disk: what was done to it, and what may be refused for it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class DamageLog:
    """Everything that was damaged so far.

    `names` are those whose own files were. `is_of_files`: nothing else was, so nothing else may be
    refused. `has_diverted`: a write of this boot was lost or went elsewhere.
    """

    places: list[str] = field(default_factory=list)
    names: set[bytes] = field(default_factory=set)
    is_of_files: bool = True
    has_diverted: bool = False

"""What a test said about links: each thing on an account of its own, also for links to come."""

from __future__ import annotations

Link = frozenset[str]
"""The two names that a link is between."""


def links_meant(a: str | None, b: str | None) -> frozenset[str]:
    """What a test means: a link, all links of a name, or all there are. What is meant covers the
    links between whose names it is. ValueError for a second name without a first."""
    if a is None and b is not None:
        raise ValueError("a second name without a first")
    return frozenset(name for name in (a, b) if name is not None)


class LinkFaults:
    """Only what was told is ended: to heal a name leaves partitions between two as they are."""

    def __init__(self) -> None:
        self._partitions: dict[frozenset[str], None] = {}
        self._latencies: dict[frozenset[str], float] = {}
        self._refusals: set[tuple[str, str | None]] = set()

    def part(self, names: frozenset[str]) -> None:
        self._partitions[names] = None

    def heal(self, names: frozenset[str]) -> None:
        self._partitions.pop(names, None)

    def is_parted(self, link: Link) -> bool:
        return any(names <= link for names in self._partitions)

    def delay(self, names: frozenset[str], seconds: float) -> None:
        """What was said of some of these links before is no longer true."""
        kept = {told: s for told, s in self._latencies.items() if not names <= told}
        self._latencies = {**kept, names: seconds}

    def latency_s(self, link: Link) -> float:
        """What was said last of it."""
        told = [seconds for names, seconds in self._latencies.items() if names <= link]
        return told[-1] if told else 0.0

    def refuse(self, host: str, source: str | None, *, on: bool) -> None:
        if on:
            self._refusals.add((host, source))
        else:
            self._refusals.discard((host, source))

    def is_refused(self, host: str, source: str) -> bool:
        return not self._refusals.isdisjoint({(host, None), (host, source)})

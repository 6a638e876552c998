"""A client that lost its connection dials again, with a growing, bounded delay."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import notes as n
from tests.sim.nodes.history import History

FIRST_S, LONGEST_S, DOUBLINGS_MAX = 0.1, 30.0, 32


def check(history: History) -> Iterator[str]:
    """docs/guides/troubleshooting.md: growing pauses, from a tenth of a second up to 30 s."""
    for note in history.notes:
        if isinstance(note, n.Retrying):
            most_s = min(LONGEST_S, FIRST_S * 2.0 ** min(note.failures, DOUBLINGS_MAX))
            if note.delay_s > most_s:
                text = f"dials again after {note.delay_s:.3f} s, and not within {most_s:g} s"
                yield f"{note.at:.3f} {note.who}: {text}"

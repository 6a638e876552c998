"""A client that lost its connection dials again, with a growing, bounded delay."""

from __future__ import annotations

from collections.abc import Iterator

from tests.sim.nodes import client_events as ce
from tests.sim.nodes.history import History

FIRST_S, LONGEST_S, DOUBLINGS_MAX = 0.1, 30.0, 32


def check(history: History) -> Iterator[str]:
    """docs/guides/troubleshooting.md: growing pauses, from a tenth of a second up to 30 s."""
    for event in history.client_events:
        if isinstance(event, ce.Retrying):
            most_s = min(LONGEST_S, FIRST_S * 2.0 ** min(event.failures, DOUBLINGS_MAX))
            if event.delay_s > most_s:
                text = f"dials again after {event.delay_s:.3f} s, and not within {most_s:g} s"
                yield f"{event.at:.3f} {event.who}: {text}"

"""The end of each life of the node, its place and time: drawn from the seed of a run."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from random import Random
from typing import NamedTuple


class Phase(Enum):
    """The moment of the death in a call. `DURING`: another thread kills it while the call runs."""

    BEFORE = "before"
    MIDDLE = "middle"
    DURING = "during"
    AFTER = "after"


class Death(NamedTuple):
    """Die in the so manieth call of this kind since the process began, of those below `place`.

    `place` is a part of the data folder: `journal`, `partitions`, `catalogue`, or `any`.
    """

    kind: str
    place: str
    number: int
    phase: Phase

    @staticmethod
    def parse(text: str) -> Death:
        """Read what `str` gives. Raises ValueError."""
        kind, place, number, phase = text.split(":")
        return Death(kind, place, int(number), Phase(phase))

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}:{self.number}:{self.phase.value}"


class End(NamedTuple):
    """The end of a life: after `live_s` from outside, or before by its own `death`."""

    live_s: float
    death: Death | None


INSIDE = (
    ("write", "journal", 240, (Phase.MIDDLE, Phase.AFTER)),
    ("sync", "journal", 240, (Phase.BEFORE, Phase.DURING, Phase.AFTER)),
    ("create", "journal", 5, (Phase.BEFORE, Phase.MIDDLE, Phase.AFTER)),
    ("commit", "partitions", 12, (Phase.BEFORE, Phase.DURING, Phase.AFTER)),
    ("sync_folder", "journal", 5, (Phase.BEFORE, Phase.AFTER)),
    ("executemany", "partitions", 12, (Phase.MIDDLE,)),
    ("unlink", "journal", 4, (Phase.BEFORE, Phase.AFTER)),
    ("install", "partitions", 1, (Phase.BEFORE, Phase.MIDDLE, Phase.AFTER)),
    ("write", "journal", 20, (Phase.MIDDLE, Phase.AFTER)),
    ("commit", "catalogue", 8, (Phase.BEFORE, Phase.DURING, Phase.AFTER)),
)
"""Kinds of calls, where, the highest number that a short life reaches for sure, and the phases."""

OUTSIDE_EVERY = 3
"""One end in so many comes from outside, at a random time."""
DEATH_WAIT_S = 2.0
"""A planned death that has not come by then is replaced by one from outside."""
LIVE_S = (0.05, 1.2)


def ends(seed: int, kills: int) -> Iterator[End]:
    """The ends of `kills` lives; every kind has its turn before one has it again."""
    rng = Random(seed)
    kinds: list[tuple[str, str, int, tuple[Phase, ...]]] = []
    for kill in range(kills):
        if kill % OUTSIDE_EVERY == OUTSIDE_EVERY - 1:
            yield End(rng.uniform(*LIVE_S), None)
            continue
        if not kinds:
            kinds = list(INSIDE)
            rng.shuffle(kinds)
        kind, place, number_max, phases = kinds.pop()
        yield End(DEATH_WAIT_S, Death(kind, place, rng.randint(1, number_max), rng.choice(phases)))


def power_cuts(seed: int, count: int) -> Iterator[End]:
    """So many ends from outside, at random times."""
    rng = Random(seed)
    for _ in range(count):
        yield End(rng.uniform(*LIVE_S), None)

"""Blocks of seeds: worlds that are played one after the other. A world that fails tells its
seed."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.sim.scenario import scratch

BLOCK = 20
CHOSEN = os.environ.get("MILLPOND_SEEDS")

T = TypeVar("T")


def blocks(usual: int, full: int, one_in: int = 1, size: int = BLOCK) -> list[Any]:
    """Seeds in blocks of this size, as parameters of a test: the `usual` first ones are played in
    every run, and `full` ones by `scripts/test full`. MILLPOND_SEEDS is another number, of any run:
    a test whose seeds take long plays `one_in` so many of them."""
    count = int(CHOSEN) // one_in if CHOSEN else full
    firsts = range(0, count, size)
    return [
        pytest.param(
            range(first, min(first + size, count)),
            marks=() if CHOSEN or first < usual else pytest.mark.full,
            id=f"{first}",
        )
        for first in firsts
    ]


def play(live: Callable[[int, Path], T], seeds: Iterable[int]) -> list[T]:
    """The results of the worlds, seed by seed. Nothing is logged meanwhile."""
    logging.disable(logging.CRITICAL)
    try:
        return [_play_one(live, seed) for seed in seeds]
    finally:
        logging.disable(logging.NOTSET)


def _play_one(live: Callable[[int, Path], T], seed: int) -> T:
    with scratch() as folder:
        try:
            return live(seed, Path(folder))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise

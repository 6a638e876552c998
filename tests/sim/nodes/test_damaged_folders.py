"""Nodes on damaged folders, by seed: each cell refuses in its protocol's form, or is right."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sim.nodes.damaged_folders import live
from tests.sim.scenario import scratch

SEEDS = int(os.environ.get("MILLPOND_SEEDS", "60"))
BLOCK = 20


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_a_damaged_cell_refuses_or_is_right(first: int) -> None:
    for seed in range(first, min(first + BLOCK, SEEDS)):
        with scratch() as folder:
            try:
                live(seed, Path(folder))
            except BaseException as error:
                error.add_note(f"seed {seed}")
                raise


def test_the_seeds_do_what_they_are_for() -> None:
    worlds = []
    for seed in range(20):
        with scratch() as folder:
            worlds.append(live(seed, Path(folder)))
    assert sum(bool(each.damages) for each in worlds) > len(worlds) // 3
    assert any(each.refused for each in worlds)
    assert any(each.damages and len(each.refused) < 6 for each in worlds)

"""A seed is a history: the same trace, byte for byte, here and in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from tests.sim.nodes.runner import simulate

ROOT = Path(__file__).parents[3]
SAYS = """
from hashlib import sha256
from tests.sim.nodes.runner import simulate
print(sha256("\\n".join(simulate({seed}, trace=True).trace).encode()).hexdigest())
"""


def here(seed: int) -> str:
    return sha256("\n".join(simulate(seed, trace=True).trace).encode()).hexdigest()


def elsewhere(seed: int, hash_seed: str) -> str:
    """In a process of its own, where sets have another order."""
    done = subprocess.run(
        [sys.executable, "-c", SAYS.format(seed=seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "seed", [0, 6, *(pytest.param(seed, marks=pytest.mark.full) for seed in (4, 40))]
)
def test_a_seed_is_a_history(seed: int) -> None:
    told = here(seed)
    assert told == here(seed) == elsewhere(seed, "1") == elsewhere(seed, "2") != here(seed + 1)

"""The same seed gives the same trace, byte for byte: here, again, and in other processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import anyio
import pytest

from millpond.testing import virtual
from tests.node.testing.story import JOBS, MESSAGES, trace_of

ROOT = Path(__file__).parents[3]
SEED = 7


@pytest.fixture(scope="module")
def trace() -> str:
    return told_here(SEED)


def told_here(seed: int) -> str:
    library, options = virtual("asyncio")
    return anyio.run(trace_of, seed, backend=library, backend_options=options)


def told_elsewhere(seed: int, hash_seed: int) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.testing.story", str(seed)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


def differing(one: str, other: str) -> tuple[int, str, str] | None:
    """The first line that differs; better to read than two traces."""
    pairs = zip(one.splitlines(), other.splitlines(), strict=False)
    found = ((n, a, b) for n, (a, b) in enumerate(pairs, 1) if a != b)
    return next(found, None)


def test_the_story_has_something_of_everything(trace: str) -> None:
    """Events that do not happen in the story cannot differ."""
    whats = Counter(line.split(": ")[-1].split()[0] for line in trace.splitlines())
    assert whats["dials"] > 20 and whats["opened"] > 20 and whats["ended"] > 20
    assert trace.count(" did ") == JOBS and trace.count("bob reads") == MESSAGES
    assert (
        "WARNING millpond.node.jobs" in trace and "worker-2 <" in trace and "bob < alice" in trace
    )


def test_again_in_this_process(trace: str) -> None:
    again = told_here(SEED)
    assert differing(trace, again) is None
    assert trace == again


@pytest.mark.parametrize("hash_seed", [1, 4242])
def test_in_another_process(trace: str, hash_seed: int) -> None:
    elsewhere = told_elsewhere(SEED, hash_seed)
    assert differing(trace, elsewhere) is None
    assert trace == elsewhere


def test_another_seed_is_another_story(trace: str) -> None:
    assert told_here(SEED + 1) != trace

"""The six trips complete, and pass code of every package."""

from __future__ import annotations

import subprocess
import sys


def test_the_trips_complete() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.trip", "--rounds", "3"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:]]
    assert len(rows) == 6
    for _, calls, functions, files in rows:
        assert 10 <= int(files) <= int(functions) <= int(calls) <= 1000

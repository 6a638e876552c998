"""The ids of collected tests, which the table of `shown.toml` is compared with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_collected: set[str] = set()
"""The ids of all tests, in a run of all."""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        _collected.update(each.nodeid for each in items)


@pytest.fixture(scope="session")
def find_tests() -> Callable[[Iterable[str]], set[str]]:
    """Gives the ids of all tests in files. A run of some tests collects these files for it."""
    return _find_tests


def _find_tests(files: Iterable[str]) -> set[str]:
    if _collected:
        return _collected
    words = ["-m", "pytest", "--collect-only", "-q", *sorted(files)]
    run = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    return {line for line in run.stdout.splitlines() if "::" in line}

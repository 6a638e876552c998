"""Published packages of npm, installed once for all runs."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.suites.caches import HERE, kept, run_or_skip

FILES = ("package.json", "package-lock.json")


def installed(name: str, scripts: Sequence[str]) -> Path:
    """A folder with the packages that `name` asks for, and these files of it. Skips the test where
    that cannot be."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no node and npm here: TypeScript clients are not run")
    words = (npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
    folder = kept(name, FILES, lambda folder: run_or_skip(words, folder))
    for each in scripts:
        shutil.copy(HERE / name / each, folder)
    return folder

"""The folder of caches: packages and programs that suites need, installed once for all runs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INSTALL_S = 600.0


def cache() -> Path:
    """The folder that all suites share."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "millpond-tests"


def kept(name: str, files: Sequence[str], install: Callable[[Path], object]) -> Path:
    """A folder with these files of `tests/suites/<name>`, in which `install` has run once; another
    one where the files are others."""
    source = HERE / name
    digest = hashlib.sha256(b"".join((source / each).read_bytes() for each in files)).hexdigest()
    folder = cache() / f"{name}-{digest[:16]}"
    if not (folder / ".installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for each in files:
            shutil.copy(source / each, folder)
        install(folder)
        (folder / ".installed").touch()
    return folder


def run_or_skip(
    words: Sequence[str | Path],
    folder: Path,
    *,
    limit_s: float = INSTALL_S,
    env: Mapping[str, str] | None = None,
) -> str:
    """The output of an installer. Skips the test where it fails, as without a network."""
    done = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, timeout=limit_s, check=False
    )
    if done.returncode:
        pytest.skip(f"{words[0]} fails in {folder.name}: {done.stderr.decode()[-200:]}")
    return done.stdout.decode()

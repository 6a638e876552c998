"""Published packages of npm, installed once for all runs, in the folder of caches."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("package.json", "package-lock.json")
INSTALL_S = 180.0


def installed(name: str, scripts: Sequence[str]) -> Path:
    """A folder with the packages that `name` asks for, and these files of it. Skips the test where
    that cannot be."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("no node and npm here: TypeScript clients are not run")
    source = HERE / name
    kept = hashlib.sha256(b"".join((source / each).read_bytes() for each in FILES)).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "millpond-tests" / f"{name}-{kept[:16]}"
    if not (folder / ".installed").exists():
        folder.mkdir(parents=True, exist_ok=True)
        for each in FILES:
            shutil.copy(source / each, folder)
        words = (npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent")
        done = subprocess.run(
            words, cwd=folder, capture_output=True, timeout=INSTALL_S, check=False
        )
        if done.returncode:
            pytest.skip(f"npm could not install {name}: {done.stderr.decode()[-200:]}")
        (folder / ".installed").touch()
    for each in scripts:
        shutil.copy(source / each, folder)
    return folder

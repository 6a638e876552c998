"""scripts/demo-jobs does what it says, and fails if something is not as it has to be."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "demo_jobs.py"
LIMIT_S = 120.0


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_jobs", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.readme
def test_the_demonstration_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--jobs", "100"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: every job was done")
    assert done.stdout.count("kill -9") == 2


def test_it_fails_if_a_command_does(demo: ModuleType, tmp_path: Path) -> None:
    office = demo.Office(tmp_path)
    with pytest.raises(demo.Failed, match="no node at"):
        office.do("jobs", "counts", "mail")


def test_it_fails_if_nothing_comes_of_it(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "PATIENCE_S", 0.0)
    monkeypatch.setattr(demo, "LOOK_S", 0.0)
    with pytest.raises(demo.Failed, match="never"):
        demo.until("never", lambda: False)

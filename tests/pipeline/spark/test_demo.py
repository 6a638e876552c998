"""The demonstration runs: a job that is killed with -9, and a table that is right all the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.pipeline.pipeline_nodes import ROOT


def test_the_table_is_right_after_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "scripts.demo_pipeline", "--events", "12000"]
    keep = ["--keep", str(tmp_path / "demo")]
    done = subprocess.run([*command, *keep], cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: ")

"""scripts/demo-jobs: it succeeds, and fails if a step does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scripts import demo_jobs as demo
from scripts import demo_processes

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 900.0
"""A bound against a hang; a loaded machine takes less."""


@pytest.mark.readme
def test_the_demonstration_succeeds() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.demo_jobs", "--jobs", "100"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("ok: every job was done")
    assert done.stdout.count("kill -9") == 2
    assert "the flow has its result: 15" in done.stdout
    assert "all calls are made" in done.stdout


def test_it_fails_if_calls_are_too_fast(tmp_path: Path) -> None:
    processes = demo.JobProcesses(tmp_path)
    since = time.monotonic()
    lines = [f"{number} {since + 4.0}\n" for number in range(demo.CALLS)]
    (tmp_path / "called").write_text("".join(lines))
    with pytest.raises(demo_processes.Failed, match=r"made in 4\.0 s"):
        demo.check_calls(processes, since)
    demo.check_calls(processes, since - 1.5)


def test_it_fails_if_a_command_fails(tmp_path: Path) -> None:
    processes = demo.JobProcesses(tmp_path)
    with pytest.raises(demo_processes.Failed, match="no node at"):
        processes.run("jobs", "counts", "mail")


def test_it_fails_if_a_step_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_processes, "TIMEOUT_S", 0.0)
    monkeypatch.setattr(demo_processes, "POLL_S", 0.0)
    with pytest.raises(demo_processes.Failed, match="never"):
        demo_processes.wait_until("never", lambda: False)

"""Processes of the demonstrations: none is left behind, whatever fails."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import demo_processes
from scripts.demo_processes import NODE, Failed, Processes

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(flush=True)
time.sleep(600)
"""
FAILING = "print(flush=True); raise SystemExit(3)"


def started(processes: Processes, name: str, program: str) -> subprocess.Popen[bytes]:
    process = processes.start(name, program)
    assert process.stdout is not None and process.stdout.readline()
    return process


def test_the_node_ends_also_when_others_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo_processes, "MILLPOND", (demo_processes.sys.executable, "-c"))
    monkeypatch.setattr(demo_processes, "COMMAND_S", 1.0)
    processes = Processes(tmp_path)
    all_of_them = [
        started(processes, NODE, STUBBORN),
        started(processes, "a", FAILING),
        started(processes, "b", STUBBORN),
    ]
    all_of_them[1].wait()
    with pytest.raises(Failed, match="a ended with 3"):
        processes.close()
    assert all(each.returncode is not None for each in all_of_them)
    left = started(processes, "a", STUBBORN)
    with pytest.raises(KeyError, match="what the demonstration found"):
        try:
            raise KeyError("what the demonstration found")
        finally:
            processes.close()
    assert left.returncode is not None

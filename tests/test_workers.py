"""`tests.workers`: what pytest tells of tests that other processes ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 300.0

FIXTURE = """
import os, time, warnings
import pytest

@pytest.fixture(scope="session", autouse=True)
def session(tmp_path_factory):
    yield
    open("ended", "a").write(f"{os.getpid()}\\n")
"""
FAILING = (
    FIXTURE
    + """
def test_fails(tmp_path):
    print("said before")
    os.write(1, b"written before")
    assert tmp_path.name == "another"

def test_warns():
    warnings.warn("take care")

@pytest.mark.skip(reason="not today")
def test_is_skipped():
    pass
"""
)
DYING = (
    FIXTURE
    + """
def test_dies():
    os._exit(7)

def test_after_it():
    pass
"""
)
PASSING = (
    FIXTURE
    + """
@pytest.mark.parametrize("number", range(5))
def test_passes(number):
    pass
"""
)
WAITING = (
    FIXTURE
    + """
def test_waits_long():
    open("waits", "w").close()
    time.sleep(600)
"""
)


def words(*options: str) -> list[str]:
    given = ("-p", "tests.workers", "-p", "no:cacheprovider", "-p", "no:hypothesispytest")
    return [sys.executable, "-m", "pytest", *given, "-ra", *options]


def environment() -> dict[str, str]:
    plain = {name: x for name, x in os.environ.items() if not name.startswith("PYTEST")}
    return plain | {"PYTHONPATH": str(ROOT)}


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*options),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_reports_of_all_workers_are_told(tmp_path: Path) -> None:
    for name, text in (("failing", FAILING), ("dying", DYING), ("passing", PASSING)):
        (tmp_path / f"test_{name}.py").write_text(text)
    told = run(tmp_path, "--workers=3")
    assert told.returncode == 1, told.stdout + told.stderr
    assert "2 failed, 6 passed, 1 skipped, 1 warning" in told.stdout, told.stdout
    assert "FAILED test_failing.py::test_fails - AssertionError" in told.stdout
    assert "said before" in told.stdout and "written before" in told.stdout
    assert "UserWarning: take care" in told.stdout
    assert "not today" in told.stdout
    assert "FAILED test_dying.py::test_dies - The worker ended with exit code 7" in told.stdout
    # The one that died tore nothing down.
    assert len(set((tmp_path / "ended").read_text().split())) == 2


def test_tests_that_belong_together_run_in_one_process(tmp_path: Path) -> None:
    marked = "import os, pytest\n@pytest.mark.together('one')\n"
    for name in ("first", "second", "third"):
        told = f"def test_{name}():\n    open('pids', 'a').write(f'{{os.getpid()}}\\n')\n"
        (tmp_path / f"test_{name}.py").write_text(marked + told)
    (tmp_path / "test_passing.py").write_text(PASSING)
    told = run(tmp_path, "--workers=4", "-o", "markers=together")
    assert "8 passed" in told.stdout, told.stdout
    assert len(set((tmp_path / "pids").read_text().split())) == 1


@pytest.mark.parametrize("stop", ["interrupt", "first failure"])
def test_workers_end_with_the_run(tmp_path: Path, stop: str) -> None:
    """Session fixtures are torn down, and the test that ran is named."""
    (tmp_path / "test_waiting.py").write_text(WAITING)
    (tmp_path / "test_slowly.py").write_text(
        "import os, time\n"
        "def test_fails():\n"
        "    ends = time.monotonic() + 300\n"
        "    while not os.path.exists('waits') and time.monotonic() < ends:\n"
        "        time.sleep(0.01)\n"
        f"    assert {stop == 'interrupt'}\n"
    )
    with subprocess.Popen(
        words("--workers=2", "-x", "-v"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            if stop == "interrupt":
                ends = monotonic() + LIMIT_S
                while not (tmp_path / "waits").exists() and monotonic() < ends:
                    sleep(0.01)
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == (2 if stop == "interrupt" else 1), out + err
    assert "interrupted in test_waiting.py::test_waits_long" in err
    assert len((tmp_path / "ended").read_text().split()) == 1

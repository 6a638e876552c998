"""The run of mutants: in a copy of the tree each mistake is made, and its test has to fail."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from shutil import copy
from time import perf_counter

from tests.mutants.mutant import Mutant
from tests.mutants.of_clients import CLIENT_MUTANTS
from tests.mutants.of_encryption import ENCRYPTION_MUTANTS
from tests.mutants.of_groups import GROUP_MUTANTS
from tests.mutants.of_peers import PEER_MUTANTS
from tests.mutants.of_queues import QUEUE_MUTANTS
from tests.mutants.of_stores import STORE_MUTANTS
from tests.mutants.of_streams import STREAM_MUTANTS
from tests.mutants.of_subscriptions import SUBSCRIPTION_MUTANTS
from tests.sim.nodes.mutate import ROOT, apply, copied
from tests.sim.nodes.table import aligned

MUTANTS = (
    *STREAM_MUTANTS,
    *CLIENT_MUTANTS,
    *STORE_MUTANTS,
    *PEER_MUTANTS,
    *SUBSCRIPTION_MUTANTS,
    *ENCRYPTION_MUTANTS,
    *QUEUE_MUTANTS,
    *GROUP_MUTANTS,
)
FOLDERS = ("millpond", "actors", "transports", "node", "pipeline", "tests")
FILES = ("pyproject.toml",)
TEST_S_MAX = 300.0
"""A test that lasts longer did not fail: it hangs."""
FAILED = re.compile(r"^FAILED (\S+)", re.MULTILINE)
_mtimes = count(1)


@dataclass(frozen=True)
class Outcome:
    """The result of one mutant: its test failed, which is what it is for, or the reason why not."""

    mutant: Mutant
    reason: str
    seconds: float

    @property
    def is_caught(self) -> bool:
        return not self.reason


def tree(folder: Path) -> Path:
    """A copy of the product and all its tests, in which mistakes are made."""
    copied(folder, FOLDERS)
    for name in FILES:
        copy(ROOT / name, folder / name)
    return folder


def failing_anyway(tests: Sequence[str], root: Path) -> list[str]:
    """The tests that fail without any mistake. They would catch everything."""
    code, said = _pytest(root, *tests, seconds_max=TEST_S_MAX * 4)
    if code not in (0, 1):
        raise RuntimeError(f"the tests do not run: {said[-2000:]}")
    return FAILED.findall(said)


def catch(mutant: Mutant, root: Path) -> Outcome:
    """Run the test of a mutant with its mistake."""
    began = perf_counter()
    with mutated(mutant, root):
        code, said = _pytest(root, "-x", mutant.test, seconds_max=TEST_S_MAX)
    failed = [each for each in FAILED.findall(said) if each.startswith(mutant.test.split("[")[0])]
    reason = "" if code == 1 and failed else f"code {code}: {_last_line(said)}"
    return Outcome(mutant, reason, perf_counter() - began)


@contextmanager
def mutated(mutant: Mutant, root: Path) -> Iterator[None]:
    """A tree with the mistake, for a block."""
    path = root / mutant.file
    text = path.read_text("utf-8")
    try:
        apply(mutant, root)
        _touch(path)
        yield
    finally:
        path.write_text(text, "utf-8")
        _touch(path)


def _touch(path: Path) -> None:
    # Compiled modules are told apart by whole seconds and by size.
    os.utime(path, (next(_mtimes),) * 2)


def _pytest(root: Path, *arguments: str, seconds_max: float) -> tuple[int, str]:
    environment = os.environ | {"PYTHONPATH": str(root), "PYTHONPYCACHEPREFIX": str(root / ".pyc")}
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not full"]
    command += ["-p", "no:randomly", "-W", "ignore"]
    try:
        done = subprocess.run(
            [*command, "--tb=no", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "it hangs"
    return done.returncode, done.stdout + done.stderr


def _last_line(said: str) -> str:
    return said.strip().rpartition("\n")[2][:80]


def table(outcomes: Sequence[Outcome]) -> str:
    """One row for each mutant."""
    rows: list[tuple[str, ...]] = [("class", "mutant", "caught by", "s")]
    for each in outcomes:
        mutant = each.mutant
        by = mutant.test.rpartition("/")[2] if each.is_caught else f"NOBODY ({each.reason})"
        rows.append((mutant.fault.name.lower(), mutant.name, by, f"{each.seconds:.0f}"))
    return aligned(rows)

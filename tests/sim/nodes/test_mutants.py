"""Mutants: each has its text once in the product, and a copy runs its own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.nodes.mutants import MUTANTS, Mutant
from tests.sim.nodes.mutants_of_flows import FLOW_MUTANTS
from tests.sim.nodes.mutants_of_tees import TEE_MUTANTS
from tests.sim.nodes.mutate import ROOT, copied


@pytest.mark.parametrize(
    "mutant", [*MUTANTS, *TEE_MUTANTS, *FLOW_MUTANTS], ids=lambda mutant: mutant.name
)
def test_the_text_of_a_mutant_is_in_its_file_once(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text("utf-8").count(mutant.text) == 1


def test_a_copy_runs_its_own_code(tmp_path: Path) -> None:
    root = copied(tmp_path)
    program = "import millpond.actors.channels.tee as tee; print(tee.__file__)"
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert Path(done.stdout.strip()).resolve() == root / "actors/channels/tee.py"

"""Mutant hunt: seeds on copies of the product with a mistake in them, until one fails."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Protocol

from tests.sim.nodes.flow_plans import FLOWS_FROM
from tests.sim.nodes.mutants import MUTANTS, Mutant
from tests.sim.nodes.mutants_of_flows import FLOW_MUTANTS
from tests.sim.nodes.mutants_of_tees import TEE_MUTANTS
from tests.sim.nodes.table import aligned
from tests.sim.nodes.tee_plans import FROM

ROOT = Path(__file__).parents[3]
FOLDERS = ("millpond", "actors", "transports", "node", "tests/sim/nodes")
"""The folders of a copy; `millpond` is made of links to the next three."""
FOUND = re.compile(r"^seed (\d+): (\w+): (.*)$", re.MULTILINE)
FIRST = {"tees": FROM, "flows": FLOWS_FROM}
"""The first seed of worlds for these mutants."""
SHARE = 0.9


class Mistake(Protocol):
    """A text that is once in a file, and what it is instead."""

    @property
    def name(self) -> str: ...
    @property
    def file(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def instead(self) -> str: ...


@dataclass(frozen=True)
class Find:
    """`seed` None: it was not found."""

    mutant: Mutant
    seed: int | None
    checker: str
    text: str
    seconds: float


def hunt(names: Sequence[str], seeds: int, processes: int) -> int:
    """Hunt mutants and print what became of them; 0 when nine in ten were found."""
    everything = (*MUTANTS, *TEE_MUTANTS, *FLOW_MUTANTS)
    wanted = [each for each in everything if not names or {each.name, each.area} & {*names}]
    finds = []
    with ThreadPoolExecutor(processes) as pool:
        for hunted in as_completed([pool.submit(look_for, each, seeds) for each in wanted]):
            find = hunted.result()
            finds.append(find)
            at = "not found" if find.seed is None else f"seed {find.seed}, {find.checker}"
            print(f"{find.mutant.area}/{find.mutant.name}: {at} ({find.seconds:.0f} s)", flush=True)
    print(_table(finds))
    found = sum(find.seed is not None for find in finds)
    print(f"\n{found} of {len(finds)} within {seeds} seeds")
    return 0 if found >= SHARE * len(finds) else 1


def look_for(mutant: Mutant, seeds: int) -> Find:
    """Simulate seeds on a copy until one fails that passes on the product as it is."""
    began = perf_counter()
    with TemporaryDirectory(prefix="millpond-mutant-") as folder:
        root = copied(Path(folder))
        apply(mutant, root)
        start = FIRST.get(mutant.area, 0)
        end = start + seeds
        while start < end:
            said = _simulate(root, "--first", "--from", str(start), "--seeds", str(end - start))
            match = FOUND.search(said)
            if match is None:
                break
            seed = int(match[1])
            if not fails_anyway(seed):
                return Find(mutant, seed, match[2], match[3], perf_counter() - began)
            start = seed + 1
    return Find(mutant, None, "", "", perf_counter() - began)


@cache
def fails_anyway(seed: int) -> bool:
    """Does the product without a mistake fail this seed? Then it says nothing of a mutant."""
    return FOUND.search(_simulate(ROOT, "--seed", str(seed))) is not None


def _simulate(root: Path, *options: str) -> str:
    """The output of a simulation of a tree. Raises RuntimeError if it does not run."""
    command = [sys.executable, "-m", "tests.sim.nodes", "--processes", "1", *options]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode > 1 or "Traceback" in done.stderr:
        raise RuntimeError(f"{root} does not run: {done.stderr[-500:]}")
    return done.stdout


def copied(folder: Path, folders: Sequence[str] = FOLDERS) -> Path:
    """A copy of the product and the simulation: the checkout is never changed."""
    ignored = shutil.ignore_patterns("__pycache__")
    for name in folders:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignored)
    return folder


def apply(mutant: Mistake, root: Path) -> None:
    """Make the mistake. ValueError when its text is not there exactly once."""
    path = root / mutant.file
    text = path.read_text("utf-8")
    if text.count(mutant.text) != 1:
        raise ValueError(
            f"{mutant.name}: its text is {text.count(mutant.text)} times in {mutant.file}"
        )
    path.write_text(text.replace(mutant.text, mutant.instead), "utf-8")


def _table(finds: Sequence[Find]) -> str:
    rows: list[tuple[str, ...]] = [("area", "mutant", "seed", "checker", "s")]
    for find in finds:
        seed = "-" if find.seed is None else str(find.seed)
        name = find.mutant.name
        rows.append((find.mutant.area, name, seed, find.checker or "-", f"{find.seconds:.0f}"))
    return aligned(rows)

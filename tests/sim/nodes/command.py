"""scripts/simulate: simulates seeds in several processes and prints one table."""

from __future__ import annotations

import logging
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from multiprocessing import get_context

from tests.sim.nodes.drawing import draw
from tests.sim.nodes.mutate import hunt
from tests.sim.nodes.runner import Outcome, plan_text, simulate
from tests.sim.nodes.table import Table

BATCH = 8


def main() -> int:
    """The exit code: 1 when a seed failed, or a mutant was not found."""
    logging.getLogger().addHandler(logging.NullHandler())
    arguments = _arguments()
    if arguments.mutants is not None:
        return hunt(arguments.mutants, arguments.seeds or 500, arguments.processes)
    if arguments.seed is not None:
        return _show(arguments.seed, arguments.trace)
    table = Table()
    seeds = range(arguments.start, arguments.start + (arguments.seeds or 200))
    for outcome in _played(seeds, arguments.processes):
        table.add(outcome)
        _tell(outcome)
        if arguments.first and outcome.findings:
            return 1
    print(table.text())
    return 1 if table.all.findings else 0


def _arguments() -> Namespace:
    parser = ArgumentParser("simulate", description=__doc__)
    parser.add_argument("--seeds", type=int, metavar="N", help="how many (200)")
    parser.add_argument("--from", type=int, default=0, metavar="K", dest="start", help="the first")
    parser.add_argument("--seed", type=int, metavar="S", help="only this one")
    parser.add_argument("--trace", action="store_true", help="with --seed: all that was seen")
    parser.add_argument("--first", action="store_true", help="stop at the first that fails")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="hunt these mutants, or all")
    return parser.parse_args()


def _played(seeds: range, processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from map(simulate, seeds)
        return
    with get_context("spawn").Pool(processes, _quiet) as pool:
        yield from pool.imap(simulate, seeds, BATCH)


def _quiet() -> None:
    logging.getLogger().addHandler(logging.NullHandler())


def _show(seed: int, trace: bool) -> int:
    outcome = simulate(seed, trace=trace)
    for line in outcome.trace:
        print(line)
    print(plan_text(draw(seed)))
    _tell(outcome)
    return 1 if outcome.findings else 0


def _tell(outcome: Outcome) -> None:
    for checker, text in outcome.findings:
        print(f"seed {outcome.seed}: {checker}: {text}")
    if outcome.findings:
        print(f"    scripts/simulate --seed {outcome.seed} --trace", flush=True)

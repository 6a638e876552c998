"""Mistakes of the classes of faults that were found, each caught by the test that is named.

python -m tests.mutants             all of them, and a table
python -m tests.mutants CLASS...    those of some classes, or of these names
python -m tests.mutants --list      their classes and names
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.run import MUTANTS, catch, failing_anyway, table, tree


def main(words: list[str]) -> int:
    """The exit code: 1 if a mutant was not caught, or a test fails without one; 2 for a word that
    is no class and no name, before anything is run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description="Make each mistake, and run its test."
    )
    parser.add_argument(
        "names", metavar="CLASS", nargs="*", help="a class of mutants, or the name of one"
    )
    parser.add_argument("--list", action="store_true", help="print the classes and names alone")
    args = parser.parse_args(words)
    known = {each.name for each in MUTANTS} | {each.fault.name.lower() for each in MUTANTS}
    if unknown := [name for name in args.names if name not in known]:
        parser.error(f"no class and no mutant has one of these names: {', '.join(unknown)}")
    names = {*args.names} or known
    wanted = [each for each in MUTANTS if {each.name, each.fault.name.lower()} & names]
    if args.list:
        for mutant in wanted:
            print(f"{mutant.fault.name.lower()}/{mutant.name}")
        return 0
    with TemporaryDirectory(prefix="millpond-mutants-") as folder:
        root = tree(Path(folder))
        for test in failing_anyway(sorted({each.test for each in wanted}), root):
            print(f"fails without a mistake: {test}")
            return 1
        outcomes = []
        for mutant in wanted:
            outcomes.append(catch(mutant, root))
            found = "caught" if outcomes[-1].is_caught else outcomes[-1].reason
            print(f"{mutant.fault.name.lower()}/{mutant.name}: {found}", flush=True)
    print(table(outcomes))
    caught = sum(each.is_caught for each in outcomes)
    print(f"\n{caught} of {len(outcomes)} are caught")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Mistakes of the classes of faults that were found, each caught by the test that is named.

python -m tests.mutants             all of them, and a table
python -m tests.mutants CLASS...    those of some classes, or of these names
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.mutants.run import MUTANTS, catch, failing_anyway, table, tree


def main(names: list[str]) -> int:
    """The exit code: 1 if a mutant was not caught, or a test fails without one."""
    wanted = [
        each for each in MUTANTS if not names or {each.name, each.fault.name.lower()} & {*names}
    ]
    if not wanted:
        print(f"no class and no mutant has one of these names: {', '.join(names)}")
        return 2
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

"""Mistakes in the replica, each found by the worlds of two machines (replica_worlds.py).

Mistakes that a second check makes harmless are not among them: a standby that takes the object of
another process for its own, or makes none, is refused when its node claims.

python -m tests.sim.nodes.replica_mutants --seeds 30 [NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.sim.nodes.mutate import apply, copied

FOLDERS = ("millpond", "actors", "transports", "node", "tests")
LIMIT_S = 600.0


class ReplicaMutant(NamedTuple):
    """`text` is once in `file`, and `instead` is the mistake."""

    name: str
    file: str
    text: str
    instead: str


REPLICA_MUTANTS: tuple[ReplicaMutant, ...] = (
    ReplicaMutant(
        "acknowledged on the disk",
        "actors/store/durable.py",
        "        return group.replicated\n",
        "        return group.commit\n",
    ),
    ReplicaMutant(
        "refused is acknowledged",
        "actors/store/durable.py",
        "        for _, commit in refused:\n            commit.finish(Fault.NOT_STORED)",
        "        for _, commit in refused:\n            commit.finish(None)",
    ),
    ReplicaMutant(
        "acknowledged without a snapshot",
        "node/replica/shipping.py",
        "        if self._claim is None or self._restorable_history != self.position.history:",
        "        if self._claim is None:",
    ),
    ReplicaMutant(
        "an object of another owner is taken for its own",
        "node/replica/shipping.py",
        "            if there != attempt.header:",
        "            if there.number != attempt.header.number:",
    ),
    ReplicaMutant(
        "the attempt counts as made",
        "node/replica/shipping.py",
        "        oldest = self._attempt or (self._waiting[0] if self._waiting else None)\n"
        "        return self._taken_lsn if oldest is None else oldest.after_lsn",
        "        oldest = self._waiting[0] if self._waiting else None\n"
        "        return self._taken_lsn if oldest is None else oldest.after_lsn",
    ),
    ReplicaMutant(
        "an owner that was outrun claims again",
        "node/replica/shipping.py",
        "        if last.run in (self._claimant.run, position.run, *position.runs):",
        "        if position.run or position.mark:",
    ),
    ReplicaMutant(
        "blobs of a kept snapshot are removed",
        "node/replica/snapshots.py",
        "        if each.name not in named and each.made_at <= wall - blob_grace_s",
        "        if each.name not in named or each.made_at <= wall - 10.0",
    ),
    ReplicaMutant(
        "the journal behind a kept snapshot is removed",
        "node/replica/snapshots.py",
        "    end = journal_name(max(0, min(each.number for each in kept) - 1))",
        "    end = journal_name(max(0, max(each.number for each in kept) + 3))",
    ),
)


def found(mutant: ReplicaMutant, seeds: int) -> str:
    """The world that fails with the mistake; empty: none does."""
    with TemporaryDirectory(prefix="millpond-mutant-") as folder:
        root = copied(Path(folder), FOLDERS)
        apply(mutant, root)
        command = [sys.executable, "-m", "tests.sim.nodes.replica_worlds", "--seeds", str(seeds)]
        done = subprocess.run(
            command, cwd=root, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return f"{lines[-1]}: {lines[-2]}" if len(lines) > 1 else done.stderr


def main() -> int:
    """Hunt, and print each mutant; 1 if one was not found."""
    parser = argparse.ArgumentParser(description="Mistakes in the replica.")
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    wanted = [each for each in REPLICA_MUTANTS if not args.names or each.name in args.names]
    missed = 0
    for mutant in wanted:
        text = found(mutant, args.seeds)
        missed += not text
        print(f"{mutant.name}: {text[:120] or 'NOT FOUND'}", flush=True)
    print(f"{len(wanted) - missed} of {len(wanted)} within {args.seeds} seeds")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

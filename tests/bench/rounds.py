"""The stores alone, without sockets: 100 channels with one message each, a round at a time.

    python -m tests.bench.rounds [--disk DIR] [--seconds S]

A round puts one message into each channel and waits until all are on the disk. Ours is the node's
durable store; the peers are one SQLite database with a transaction a round, and a database for
each channel with a transaction of its own. Prints messages a second, and the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import uvloop

from millpond.actors.messages import Durability
from millpond.actors.store.changes import StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.filesystem import OsDisk
from millpond.actors.store.settings import StoreSettings
from millpond.node.bench.own_node import file_system
from millpond.node.cli.commands.serve import tune_memory
from millpond.node.data_folder import LoopRuntime
from tests.bench.sqlite_peer import INSERT, SCHEMA

FLOOR, GOAL = 2.0, 5.0
"""Of the ratio to one SQLite database."""
CHANNELS, DATA, TTL_S = 100, b"x" * 100, 3600
NAMES = [b"channel/%d" % number for number in range(CHANNELS)]


def per_second(put_round: Callable[[int], None], seconds: float) -> float:
    """Messages a second; the argument of a round is the first of its ids."""
    began, rounds = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began) < seconds:
        rounds += 1
        put_round(rounds * CHANNELS)
    return rounds * CHANNELS / took_s


async def ours(folder: Path, seconds: float) -> float:
    """The store of a node, with its thread for the journal."""
    loop = asyncio.get_running_loop()
    store = DurableStore(
        folder,
        OsDisk(),
        StoreSettings(),
        LoopRuntime(time.time, Random()),
        lambda _: Durability.DISK,
    )
    store.open()
    began, rounds = time.perf_counter(), 0
    while (took_s := time.perf_counter() - began) < seconds:
        rounds += 1
        all_kept, expires_at = loop.create_future(), time.time() + TTL_S
        for number, name in enumerate(NAMES, rounds * CHANNELS):
            commit = store.write(name, [StoredMessage(number, number, TTL_S, expires_at, DATA)])
        assert commit is not None
        commit.when_done(all_kept.set_result)  # all of a pass of the loop are of one group
        assert await all_kept is None
    store.close()
    return rounds * CHANNELS / took_s


def one_database(folder: Path, seconds: float) -> float:
    """One table keyed by channel and id, one transaction a round."""
    database = sqlite3.connect(folder / "all.sqlite3", isolation_level=None)
    database.executescript(SCHEMA)

    def put_round(first: int) -> None:
        rows = [(name, number, number, TTL_S, DATA) for number, name in enumerate(NAMES, first)]
        database.execute("BEGIN")
        database.executemany(INSERT, rows)
        database.execute("COMMIT")

    rate = per_second(put_round, seconds)
    database.close()
    return rate


def database_each(folder: Path, seconds: float) -> float:
    """A database for each channel, which syncs for itself."""
    databases = []
    for number in range(CHANNELS):
        databases.append(sqlite3.connect(folder / f"{number}.sqlite3", isolation_level=None))
        databases[-1].executescript(SCHEMA)

    def put_round(first: int) -> None:
        for number, (name, database) in enumerate(zip(NAMES, databases, strict=True), first):
            database.execute(INSERT, (name, number, number, TTL_S, DATA))

    rate = per_second(put_round, seconds)
    for database in databases:
        database.close()
    return rate


def main(argv: list[str]) -> int:
    """Print a line for each; 1 if the floor is missed."""
    parser = argparse.ArgumentParser(prog="tests.bench.rounds", description=__doc__)
    parser.add_argument("--disk", type=Path, default=Path("/var/tmp"), metavar="DIR")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rounds-", dir=options.disk) as folder:
        data = Path(folder)
        tune_memory()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            node = runner.run(ours(data / "node", options.seconds))
        one = one_database(data, options.seconds)
        each = database_each(data, options.seconds)
    print(f"100 channels x 1 message, data on {file_system(options.disk)}, messages/s")
    print(f"durable store of the node    {node:>10,.0f}")
    verdict = "goal reached" if node >= GOAL * one else "floor holds"
    verdict = verdict if node >= FLOOR * one else "floor missed"
    print(f"one SQLite database          {one:>10,.0f}   ratio {node / one:.2f} ({verdict})")
    print(f"a SQLite database for each   {each:>10,.0f}   ratio {node / each:.2f}")
    return 0 if node >= FLOOR * one else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

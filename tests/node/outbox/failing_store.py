"""A `peers.db` that SQLite cannot write, of a node that runs or is started meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path

from millpond.node.peers.peer_store import FILE_NAME

TABLES = (
    *("peers", "unfinished", "outbox", "seen_v1", "requests", "refused", "delivery_keys"),
    *("one_time_prekeys", "given_prekeys"),
)


@contextmanager
def failing(folder: Path) -> Iterator[None]:
    """Let every change of `peers.db` in a data folder fail for a block."""
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as db:
        changes = list(product(TABLES, ("INSERT", "UPDATE", "DELETE")))
        for table, change in changes:
            fault = "BEGIN SELECT RAISE(ABORT, 'disk I/O error'); END"
            db.execute(f"CREATE TRIGGER {table}_{change} BEFORE {change} ON {table} {fault}")
        yield
        for table, change in changes:
            db.execute(f"DROP TRIGGER {table}_{change}")

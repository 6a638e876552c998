"""The moment of a snapshot of a running store, waited for."""

from __future__ import annotations

import anyio

from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Fault
from millpond.actors.store.snapshot import SnapshotLost, StoreSnapshot

SNAPSHOT_S_MAX = 30.0


async def take_snapshot(store: DurableStore) -> StoreSnapshot:
    """A snapshot of this moment or a later one; `store.end_snapshot` has to follow in any case. One
    at a time. Raises SnapshotLost."""
    found: list[StoreSnapshot | Fault] = []
    is_done = anyio.Event()

    def done(result: StoreSnapshot | Fault) -> None:
        found.append(result)
        is_done.set()

    store.begin_snapshot(done)
    with anyio.move_on_after(SNAPSHOT_S_MAX):
        await is_done.wait()
    if not found:
        raise SnapshotLost("the disk of the node did not answer in time")
    (snapshot,) = found
    if isinstance(snapshot, Fault):
        reason = store.health.reason or "see its log"
        raise SnapshotLost(f"the disk of the node cannot be read or written: {reason}")
    return snapshot

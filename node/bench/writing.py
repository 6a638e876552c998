"""Writers that each wait for the disk before they go on: what a store's groups are made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial

from millpond.actors.store.changes import Change, MessageRemoved, StoredMessage
from millpond.actors.store.durable import DurableStore
from millpond.actors.store.interface import Fault as StoreFault
from millpond.node.bench.course import StoreRun
from millpond.node.bench.payload import Payload
from millpond.node.bench.verify import Fault

TTL_S = 3600


def channel_name(number: int) -> bytes:
    """The name of a channel of the benchmark."""
    return b"bench/%d" % number


class WriterLoad:
    """Channels that each put one message at a time, and let go of the one before."""

    def __init__(
        self,
        store: DurableStore,
        row: StoreRun,
        writers: int,
        time: Callable[[], float],
        soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._store = store
        self._row = row
        self._time = time
        self._soon = soon
        self._contents = [Payload(number, row.size) for number in range(writers)]
        self._counts = [0] * writers
        self._ids = [0] * writers
        self._last_id = 0
        self._ready = list(range(writers))
        self._is_over = False
        self._quiet = asyncio.Event()

    def start(self) -> None:
        """Put the first message of each; the next follows when it is kept."""
        self._put_ready()

    async def stop(self) -> None:
        """Put no more, and wait for those under way."""
        self._is_over = True
        self._look()
        await self._quiet.wait()

    def kept(self) -> Iterator[tuple[bytes, Payload, int]]:
        """What each channel has to hold: the last message."""
        for number, content in enumerate(self._contents):
            yield channel_name(number), content, self._counts[number] - 1

    def _put_ready(self) -> None:
        if self._is_over:
            return
        ready, self._ready = self._ready, []
        began, expires_at = self._row.now(), self._time() + TTL_S
        for number in ready:
            sequence, old = self._counts[number], self._ids[number]
            self._counts[number] += 1
            self._last_id += 1
            data = self._contents[number].make(sequence)
            changes: list[Change] = [
                StoredMessage(self._last_id, sequence, TTL_S, expires_at, data)
            ]
            if old:
                changes.insert(0, MessageRemoved(old, sequence - 1, None, self._row.size))
            self._ids[number] = self._last_id
            commit = self._store.write(channel_name(number), changes)
            assert commit is not None
            commit.when_done(partial(self._kept, number, began))

    def _kept(self, number: int, began: float, fault: StoreFault | None) -> None:
        if fault is not None:
            self._row.faults.note(Fault.REFUSED, f"the store did not keep a message: {fault.name}")
            self._is_over = True
        self._row.add(began)
        self._ready.append(number)
        if self._is_over:
            self._look()
        elif len(self._ready) == 1:
            self._soon(self._put_ready)

    def _look(self) -> None:
        if len(self._ready) == len(self._contents):
            self._quiet.set()

"""`millpond import --data`: messages into the folder of a stopped node, as they were."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator

import msgspec

from millpond.actors.ids import EPOCH_MS
from millpond.actors.store.changes import AttemptsSet, Change, ModeSet, Snapshot, StoredMessage
from millpond.actors.store.message_attributes import DueAt, UniqueKey
from millpond.node.cli.commands.import_ import Summary, packet_key
from millpond.node.cli.exit_codes import Failure
from millpond.node.cli.jsonl import MessageLine
from millpond.node.data_folder import OfflineStore

BATCH_BYTES = 256 * 1024
ID_BITS_BELOW_MS, AHEAD_S = 22, 5.0
"""A node gives out no ids further ahead of its clock than this (PA-31)."""


async def store_all(
    messages: AsyncIterator[tuple[int, MessageLine]], summary: Summary, store: OfflineStore
) -> None:
    """Keep every message as it was. Raises Failure when one cannot be kept."""
    batch: _Batch | None = None
    async for number, line in messages:
        if batch is None or batch.name != line.channel:
            if batch is not None:
                batch.write()
            batch = _Batch(line.channel, store, summary)
        batch.add(number, line)
    if batch is not None:
        batch.write()


class _Batch:
    """Messages of one channel that are written together."""

    def __init__(self, name: bytes, store: OfflineStore, summary: Summary) -> None:
        kept = store.load(name)
        if not isinstance(kept, Snapshot):
            raise Failure(f"channel {os.fsdecode(name)!r} is damaged or cannot be read")
        self.name = name
        self._store = store
        self._summary = summary
        self._ids = {row.id for row in kept.rows}
        self._names = set() if kept.attributes is None else set(kept.attributes.names.values())
        self._changes: list[Change] = []
        self._count = 0
        self._bytes = 0

    def add(self, number: int, line: MessageLine) -> None:
        """Take one, unless it is there or has expired."""
        row, now = line.row, time.time()
        if (row.id >> ID_BITS_BELOW_MS) + EPOCH_MS > (now + AHEAD_S) * 1000:
            raise Failure(f"line {number}: the id is ahead of this machine's clock")
        if row.id in self._ids or line.unique in self._names:
            self._summary.already_there += 1
        elif row.expires_at <= now:
            self._summary.expired += 1
        else:
            if not self._ids and line.mode is not None:
                self._changes.append(ModeSet(line.mode))
            self._ids.add(row.id)
            self._changes.append(_ours(row))
            if line.due > now:
                self._changes.append(DueAt(row.id, line.due))
            if line.unique:
                self._names.add(line.unique)
                self._changes.append(UniqueKey(row.id, line.unique))
            if line.attempts:
                self._changes.append(AttemptsSet(row.id, line.attempts))
            self._count += 1
            self._bytes += len(row.data)
            if self._bytes >= BATCH_BYTES:
                self.write()

    def write(self) -> None:
        """Have them kept."""
        if self._changes and self._store.write(self.name, self._changes) is not None:
            raise Failure(f"not kept: {self._store.reason}; import it again when that is mended")
        self._summary.imported += self._count
        self._changes, self._count, self._bytes = [], 0, 0


def _ours(row: StoredMessage) -> StoredMessage:
    """The number of a sender in its key means nothing in another folder, or somebody else."""
    return row if row.origin else msgspec.structs.replace(row, key=packet_key(row.key))

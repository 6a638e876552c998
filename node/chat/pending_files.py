"""Pending files: those of one direction of a conversation whose transfer has not ended.

Sans-I/O, as `conversation`: it changes only with stored records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from millpond.node.chat.records import VERSION, Kind, Record, Transfer
from millpond.node.peers.file_format import File

PENDING_MAX = 256
"""The most files of one direction whose transfer goes on; further ones of a peer are refused."""
ENDED_MAX = 1000
"""The most ended transfers that are remembered."""


class PendingFile(msgspec.Struct):
    """A file whose transfer has not ended, brought by the message `uuid`, record `sequence`, at
    `at` (ms). `is_stored`: it is complete at a relay of the recipient."""

    uuid: str
    file: File
    sequence: int
    at: int
    is_stored: bool = False


class PendingFiles:
    """The pending files of one direction. `kind`: of the records with their new states."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._files: OrderedDict[str, PendingFile] = OrderedDict()
        self._roots: dict[str, str] = {}
        self._ended: OrderedDict[str, tuple[Transfer, str]] = OrderedDict()
        self._dropped: list[str] = []

    @property
    def files(self) -> Sequence[PendingFile]:
        """The pending files, the oldest first."""
        return list(self._files.values())

    def find(self, uuid: str) -> PendingFile | None:
        """The pending file of a message."""
        return self._files.get(uuid)

    def by_root(self, root: str) -> PendingFile | None:
        """The pending file with a root."""
        return self._files.get(self._roots.get(root, ""))

    def ended(self, root: str) -> tuple[Transfer, str] | None:
        """The final state of the file with a root, and the reason."""
        return self._ended.get(root)

    def take_dropped(self) -> list[str]:
        """The messages that were deleted since the last call: their files go."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def record_of(self, uuid: str, transfer: Transfer, now_ms: int, reason: str = "") -> Record:
        """The record of a new state."""
        return Record(
            v=VERSION, kind=self._kind, at=now_ms, uuid=uuid, text=reason, transfer=transfer
        )

    def add(self, sequence: int, record: Record) -> None:
        """A message was stored."""
        file = record.file
        if file is None or record.uuid in self._files:
            return
        self._files[record.uuid] = PendingFile(record.uuid, file, sequence, record.at)
        self._roots[file.root] = record.uuid

    def change(self, record: Record) -> None:
        """A new state was stored."""
        pending = self._files.get(record.uuid)
        if pending is None or record.transfer is None:
            return
        if record.transfer is Transfer.STORED:
            pending.is_stored = True
            return
        self._end(pending, record.transfer, record.text)

    def drop(self, uuid: str) -> None:
        """The message was deleted."""
        self._dropped.append(uuid)
        pending = self._files.get(uuid)
        if pending is not None:
            self._end(pending, Transfer.EXPIRED, "its message was deleted")

    def _end(self, pending: PendingFile, transfer: Transfer, reason: str) -> None:
        root = pending.file.root
        del self._files[pending.uuid]
        self._roots.pop(root, None)
        self._ended[root] = transfer, reason
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

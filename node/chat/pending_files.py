"""Pending files: those of one direction of a conversation whose transfer has not ended.

A file has the uuid of its message for a name; one that another member of a group has sent has the
peer id of that member before it, as members choose the uuids of their messages.

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
    `at` (ms). `is_stored`: it is complete at a relay of the recipient.

    In a group `by` is the peer id of its author, if that is another member. `members`: the peer ids
    of those to whom it goes; `ended`: of those that have it, or do not take it, with that state.
    """

    uuid: str
    file: File
    sequence: int
    at: int
    is_stored: bool = False
    by: str = ""
    members: frozenset[str] = frozenset()
    ended: dict[str, Transfer] = msgspec.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file."""
        return file_name(self.by, self.uuid)


def file_name(by: str, uuid: str) -> str:
    """The name of the file of a message."""
    return f"{by}!{uuid}" if by else uuid


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

    def find(self, name: str) -> PendingFile | None:
        """The pending file with a name."""
        return self._files.get(name)

    def by_root(self, root: str) -> PendingFile | None:
        """The pending file with a root."""
        return self._files.get(self._roots.get(root, ""))

    def ended(self, root: str) -> tuple[Transfer, str] | None:
        """The final state of the file with a root, and the reason."""
        return self._ended.get(root)

    def take_dropped(self) -> list[str]:
        """The files whose messages were deleted since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def record_of(
        self,
        pending: PendingFile,
        transfer: Transfer,
        now_ms: int,
        reason: str = "",
        members: tuple[str, ...] = (),
    ) -> Record:
        """The record of a new state, for some `members` or for all."""
        return Record(
            v=VERSION,
            kind=self._kind,
            at=now_ms,
            uuid=pending.uuid,
            by=pending.by,
            text=reason,
            transfer=transfer,
            members=members,
        )

    def add(self, sequence: int, record: Record) -> None:
        """A message was stored."""
        file, name = record.file, file_name(record.by, record.uuid)
        if file is None or name in self._files:
            return
        self._files[name] = PendingFile(
            record.uuid,
            file,
            sequence,
            record.at,
            by=record.by,
            members=frozenset(record.members),
        )
        self._roots[file.root] = name

    def change(self, record: Record) -> None:
        """A new state was stored."""
        pending = self._files.get(file_name(record.by, record.uuid))
        if pending is None or record.transfer is None:
            return
        if record.members:
            pending.ended |= dict.fromkeys(record.members, record.transfer)
            return
        if record.transfer is Transfer.STORED:
            pending.is_stored = True
            return
        self._end(pending, record.transfer, record.text)

    def drop(self, name: str) -> None:
        """The message of a file was deleted."""
        self._dropped.append(name)
        pending = self._files.get(name)
        if pending is not None:
            self._end(pending, Transfer.EXPIRED, "its message was deleted")

    def _end(self, pending: PendingFile, transfer: Transfer, reason: str) -> None:
        root = pending.file.root
        del self._files[pending.name]
        self._roots.pop(root, None)
        self._ended[root] = transfer, reason
        if len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)

"""Shared files: those of a group that this node gives to other members, if it has them.

Sans-I/O, as `conversation`: it changes only with stored records.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from millpond.node.chat.pending_files import file_name
from millpond.node.chat.records import Kind, Record
from millpond.node.peers.file_format import File
from millpond.node.peers.identity import KEY_BYTES

SHARED_MAX = 1000
"""The most files of a group that members get here; older ones are given no more."""


class SharedFile(msgspec.Struct, frozen=True):
    """A file of the message `name`. `kind`: of that message. `targets`: the keys of members to whom
    this node passes the message on."""

    name: str
    kind: Kind
    file: File
    by: str
    at: int
    targets: frozenset[bytes]


class SharedFiles:
    """The shared files of one group."""

    def __init__(self) -> None:
        self._files: OrderedDict[str, SharedFile] = OrderedDict()

    def add(self, record: Record) -> None:
        """A message with a file was stored."""
        if record.file is None:
            return
        keys = record.targets
        targets = frozenset(keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES))
        name = file_name(record.by, record.uuid)
        self._files[name] = SharedFile(
            name, record.kind, record.file, record.by, record.at, targets
        )
        if len(self._files) > SHARED_MAX:
            self._files.popitem(last=False)

    def drop(self, name: str) -> None:
        """The message was deleted."""
        self._files.pop(name, None)

    def by_root(self, root: str) -> Sequence[SharedFile]:
        """The files with a root: several messages may bring the same."""
        return [each for each in self._files.values() if each.file.root == root]

    @property
    def passed_on(self) -> Sequence[SharedFile]:
        """The files of messages that this node passes on, the oldest first."""
        return [each for each in self._files.values() if each.targets]

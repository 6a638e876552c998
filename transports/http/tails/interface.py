"""The replica of the node, as requests of direct readers see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec


class ReplicaSnapshot(msgspec.Struct, frozen=True):
    """The newest snapshot that the present records go on from: the address of the replica, and the
    name of the manifest (empty: there is none yet)."""

    url: str
    manifest: str


class ReplicaFiles(Protocol):
    """The replica of the node."""

    @property
    def replica_snapshot(self) -> Callable[[], ReplicaSnapshot | None]:
        """None: the node has no replica."""

    @property
    def partition_path(self) -> Callable[[bytes], str]:
        """The path of a cell's file, as a manifest has it."""

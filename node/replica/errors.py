"""Errors of a replica, by who is at fault."""

from __future__ import annotations

from millpond.actors.errors import MillpondError


class ReplicaError(MillpondError):
    """A replica cannot be used; the text says why."""


class BadAddress(ReplicaError):
    """An address that names no object store, or one for which a package is missing."""


class ObjectStoreAway(ReplicaError):
    """The object store does not answer, or fails: the same request may do later."""


class ObjectStoreRefuses(ReplicaError):
    """The object store refuses: credentials, rights, or a bucket that is not there."""


class NoObject(ReplicaError):
    """An object that is not there."""


class ObjectExists(ReplicaError):
    """An object that was to be made is there already."""


class BadReplica(ReplicaError):
    """The objects below the prefix are damaged, of a later version, or no replica at all."""


class OtherReplica(ReplicaError):
    """The prefix belongs to another node."""


class WrongKeysPassphrase(ReplicaError):
    """The keys in the replica are sealed under another passphrase."""


class Superseded(ReplicaError):
    """Another process, of a later epoch, took over: this node must not ship, and serves no
    more."""

    def __init__(self, text: str, epoch: int) -> None:
        super().__init__(text)
        self.epoch = epoch

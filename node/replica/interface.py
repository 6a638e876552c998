"""The settings and the state of a replica, for the rest of the node."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ReplicaSettings(msgspec.Struct, frozen=True):
    """The address of the replica, and its limits: bytes that may wait for it; a snapshot after so
    many bytes of journal or so many seconds; seconds that old snapshots and journal objects are
    kept; seconds that an acknowledgement of `replicated` waits. `public_url` is that of the HTTP
    listener, to which standbys send its clients. `keys`: the file with the passphrase under which
    the keys of the node are shipped; empty: they are not. `cold_cache_bytes_max`: the cache of cold
    objects."""

    url: str
    lag_bytes_max: int
    snapshot_bytes: int
    snapshot_every_s: float
    keep_s: float
    ack_s: float
    public_url: str = ""
    keys: str = ""
    cold_cache_bytes_max: int = 64 * 2**20


class ColdInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Cold streams: counts since the start, and sizes now. `bytes` are in the replica alone, of the
    streams that were looked at. Of `hits` and `misses` reads found their object in the cache, and
    not. `errors` are fetches that failed; `error` tells of the last one or of an upload, while that
    lasts. `damaged` are objects that are not what was written, or not there."""

    bytes: int
    objects: int
    moved_bytes: int
    fetches: int
    fetched_bytes: int
    hits: int
    misses: int
    errors: int
    cache_bytes: int
    error: str
    damaged: tuple[str, ...]


class ReplicaInfo(msgspec.Struct, frozen=True):
    """The replica of a node now. `lsn` is the last record that was shipped; `lag_bytes` wait, the
    oldest for `lag_s` seconds; `objects` and `bytes` were made since the start; `breaks` counts new
    histories. `is_refusing`: what has to be replicated is refused. `error` says why the object
    store is away. `snapshot_at` is 0 without a snapshot, `keys_at` without
    keys of the node, and `cold` None without a cold stream."""

    url: str
    state: str
    error: str
    epoch: int
    number: int
    lsn: int
    lag_bytes: int
    lag_s: float
    objects: int
    bytes: int
    breaks: int
    snapshots: int
    snapshot_at: float
    is_refusing: bool = False
    keys_at: float = 0.0
    cold: ColdInfo | None = None

    @property
    def is_away(self) -> bool:
        """True: the object store does not answer, or refuses."""
        return bool(self.error)


class SnapshotRow(msgspec.Struct, frozen=True):
    """A snapshot in the replica, of the moment `at`; `bytes` of files, some of which others have as
    well."""

    at: float
    lsn: int
    bytes: int
    messages: int
    streams: int


class StandbyRow(msgspec.Struct, frozen=True):
    """A standby that told of itself `seen_s` seconds ago, by the id of its run (hexadecimal); it
    takes over after `takeover_s`."""

    id: str
    takeover_s: float
    seen_s: float


class ReplicaRequest(msgspec.Struct):
    """The replica now."""


class ReplicaReply(msgspec.Struct, frozen=True):
    """The replica of a node; `info` is None without one. The node owns it on `host` since
    `owner_since` (0: not yet), and ships keys if `has_keys`. `snapshots`: the newest first, of
    `snapshot_count`; moments are kept for `keep_s`. No object store is asked."""

    info: ReplicaInfo | None
    host: str = ""
    public_url: str = ""
    owner_since: float = 0.0
    has_keys: bool = False
    keep_s: float = 0.0
    snapshot_count: int = 0
    snapshots: tuple[SnapshotRow, ...] = ()
    standbys: tuple[StandbyRow, ...] = ()


class SnapshotState(StrEnum):
    """The states of a snapshot that was asked for."""

    WAITING = "waiting"
    COPYING = "copying"
    MADE = "made"
    FAILED = "failed"


class SnapshotRequest(msgspec.Struct):
    """`number` 0: a snapshot that begins after this request; else the state of that one."""

    number: int = 0


class SnapshotReply(msgspec.Struct):
    """The snapshot of a request, by the number to ask with again. `error` tells why it failed, or
    what it waits for. `name` and `made_at` are those of one that is made, or of a later one;
    `bytes` were uploaded for it."""

    state: str
    number: int = 0
    error: str = ""
    url: str = ""
    name: str = ""
    made_at: float = 0.0
    bytes: int = 0

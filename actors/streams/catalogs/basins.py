"""The catalog of basins, and what it tells the rest of the node in memory.

A basin is a namespace of streams that only S2 sees; the node's own streams are one that always
exists. Each other basin has an entry. A basin that is deleted has a second entry until the last of
its streams is gone, so that a stop in between changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import inf
from weakref import WeakValueDictionary

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import CellMessage, Port, Reply, StreamFailed
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.catalogs.catalog import DELETE_RETRY_S, entries_of
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.messages import (
    BasinStreamDeleted,
    ConfigureBasin,
    CreateBasin,
    Delete,
    DeleteBasin,
    Done,
)
from millpond.actors.streams.names import BASINS, basin_cell

BASINS_MAX = 10_000
DELETES_AT_ONCE = 200
"""Streams of a deleted basin that are told at a time; each that is deleted makes way for another,
so that very many give way to other work."""
METADATA_BYTES_MAX = 65_536

_BASIN = b"basin\0"
_REMOVED = b"removed\0"


class Basin(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The entry of a basin, as MessagePack. `metadata` is S2's own, and means nothing here;
    `removed_ms` is 0 where the basin was not deleted, or the time is unknown."""

    created_ms: int
    metadata: bytes = b""
    removed_ms: int = 0


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Basin)


class BasinDirectory(Directory):
    """The names of the streams of another basin than the node's own."""

    __slots__ = ("__weakref__", "_basin", "is_open")

    def __init__(self, basin: bytes) -> None:
        super().__init__()
        self._basin = basin
        self.is_open = False
        """False: the basin does not exist, or is being deleted."""

    def cell_of(self, name: bytes) -> bytes:
        return basin_cell(self._basin, name)

    def is_being_deleted(self, name: bytes) -> bool:
        return not self.is_open

    def deletion_notice(self, name: bytes) -> tuple[bytes, CellMessage]:
        return BASINS, BasinStreamDeleted(0, self._basin, name)


class BasinDirectories:
    """The basins and the directories of their streams. Only the catalog changes the basins."""

    def __init__(self, own: bytes, own_streams: Directory, now_ms: int) -> None:
        self.own = own
        """The name of the basin of the node's own streams."""
        self._own_streams = own_streams
        self._started = Basin(now_ms)
        self._streams: dict[bytes, BasinDirectory] = {}
        self._left: WeakValueDictionary[bytes, BasinDirectory] = WeakValueDictionary()
        """The directories of deleted basins, while a stream of them is still in memory."""
        self._basins: dict[bytes, Basin] = {}
        self._removed: dict[bytes, Basin] = {}

    def sync(self, basins: dict[bytes, Basin], removed: dict[bytes, Basin]) -> None:
        """Follow the catalog: the basins that exist, and those being deleted."""
        self._basins, self._removed = basins, removed
        for name in (*basins, *removed):
            self.sync_basin(name)

    def sync_basin(self, name: bytes) -> None:
        """A basin was created, or is being deleted."""
        if name != self.own:
            self.other_streams(name).is_open = name in self._basins

    def find(self, name: bytes) -> Basin | None:
        """The entry of a basin; None: it does not exist, or is being deleted."""
        return self._basins.get(name) or (self._started if name == self.own else None)

    def is_removed(self, name: bytes) -> bool:
        """True: the basin is being deleted, and streams of it may still exist."""
        return name in self._removed

    def all(self) -> Iterator[tuple[bytes, Basin, bool]]:
        """All basins by name, each with whether it is being deleted."""
        rows = [(name, basin, False) for name, basin in self._basins.items()]
        rows += [(name, basin, True) for name, basin in self._removed.items()]
        if self.own not in self._basins:
            rows.append((self.own, self._started, False))
        return iter(sorted(rows))

    def check_complete(self) -> None:
        """Before basins or their streams are listed. Raises StorageFailed if some are lost."""
        self._own_streams.check_complete()

    def streams(self, basin: bytes) -> Directory:
        """The directory of a basin's streams."""
        if basin == self.own:
            return self._own_streams
        return self._streams.get(basin) or BasinDirectory(basin)

    def other_streams(self, basin: bytes) -> BasinDirectory:
        """The same for a basin other than the node's own."""
        found = self._streams.get(basin)
        if found is None:
            found = self._left.pop(basin, None) or BasinDirectory(basin)
            self._streams[basin] = found
        return found

    def forget(self, basin: bytes) -> None:
        """Forget a basin: all of its streams are deleted."""
        found = self._streams.pop(basin, None)
        if found is not None:
            self._left[basin] = found


class BasinCatalog:
    """The entries of the catalog."""

    __slots__ = ("_basins", "_directories", "_removed", "_untold", "deadline")

    def __init__(self, snapshot: LogSnapshot, directories: BasinDirectories) -> None:
        self._directories = directories
        self._basins = entries_of(snapshot, _BASIN, _DECODER.decode)
        self._removed = entries_of(snapshot, _REMOVED, _DECODER.decode)
        self._untold: dict[bytes, deque[bytes]] = {}
        """Of deleted basins, the streams that were not told yet."""
        directories.sync(self._basins, self._removed)
        self.deadline = -inf if self._removed else inf

    @property
    def is_empty(self) -> bool:
        return not self._basins and not self._removed

    def answer(
        self, port: Port | None, message: CellMessage, now: float, effects: Effects
    ) -> Reply | None:
        match message:
            case CreateBasin():
                return self._create(message, int(now * 1000), effects)
            case ConfigureBasin():
                return self._configure(message, effects)
            case DeleteBasin():
                return self._delete(message, now, effects)
            case BasinStreamDeleted(basin=basin):
                self._tell(basin, 1, effects)
                self._forget(basin, effects)
                return None
            case _:
                raise AssertionError(f"{type(message).__name__} is not for this catalog")

    def wake(self, now: float, effects: Effects) -> None:
        """Delete the streams of deleted basins once more."""
        for basin in list(self._removed):
            self._delete_streams(basin, effects)
        self.deadline = now + DELETE_RETRY_S if self._removed else inf

    def _create(self, request: CreateBasin, now_ms: int, effects: Effects) -> Reply:
        name = request.basin
        if name in self._removed or self._directories.find(name) is not None:
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        if len(self._basins) + len(self._removed) >= BASINS_MAX:
            return StreamFailed(request.number, Code.BUFFER_FULL)
        self._set(name, Basin(now_ms, request.metadata), effects)
        return Done(request.number)

    def _configure(self, request: ConfigureBasin, effects: Effects) -> Reply:
        before = self._directories.find(request.basin)
        if before is None:
            return StreamFailed(request.number, Code.UNKNOWN_STREAM)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        self._set(request.basin, Basin(before.created_ms, request.metadata), effects)
        return Done(request.number)

    def _set(self, name: bytes, basin: Basin, effects: Effects) -> None:
        self._basins[name] = basin
        self._directories.sync_basin(name)
        effects.changes.append(MetadataSet(_BASIN + name, _ENCODER.encode(basin)))

    def _delete(self, request: DeleteBasin, now: float, effects: Effects) -> Reply:
        name = request.basin
        basin = None if name == self._directories.own else self._basins.pop(name, None)
        if basin is None:
            return StreamFailed(request.number, Code.UNKNOWN_STREAM)
        basin = msgspec.structs.replace(basin, removed_ms=int(now * 1000))
        self._removed[name] = basin
        effects.changes.append(MetadataSet(_BASIN + name, None))
        effects.changes.append(MetadataSet(_REMOVED + name, _ENCODER.encode(basin)))
        self._directories.sync_basin(name)
        self._delete_streams(name, effects)
        self.deadline = min(self.deadline, now + DELETE_RETRY_S)
        return Done(request.number)

    def _delete_streams(self, basin: bytes, effects: Effects) -> None:
        """Delete the streams that a basin still has; without any it is forgotten."""
        self._untold[basin] = deque(self._directories.streams(basin).streams)
        self._tell(basin, DELETES_AT_ONCE, effects)
        self._forget(basin, effects)

    def _tell(self, basin: bytes, count: int, effects: Effects) -> None:
        """Tell the next streams of a deleted basin."""
        untold = self._untold.get(basin, ())
        names = [untold.popleft() for _ in range(min(count, len(untold)))] if untold else []
        effects.posts += tuple((basin_cell(basin, name), Delete(0)) for name in names)

    def _forget(self, basin: bytes, effects: Effects) -> None:
        if basin in self._removed and not self._directories.streams(basin).streams:
            del self._removed[basin]
            self._untold.pop(basin, None)
            self._directories.forget(basin)
            effects.changes.append(MetadataSet(_REMOVED + basin, None))

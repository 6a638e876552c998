"""The behaviour of the catalogue of basins, and what it tells the rest of the node in memory.

A basin is a namespace of streams that only S2 sees; the node's own streams are one that is always
there. Each other basin has a note. A basin that is removed stays in a second note until the last of
its streams is gone, so that a stop in between changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import inf
from weakref import WeakValueDictionary

import msgspec

from millpond.actors.errors import Code
from millpond.actors.messages import (
    Batch,
    CellMessage,
    Detach,
    Drain,
    Port,
    Reply,
    StreamFailed,
    StreamRequest,
)
from millpond.actors.runtime.cell import Effects
from millpond.actors.store.changes import LogSnapshot, MetadataSet
from millpond.actors.streams.directory import Directory
from millpond.actors.streams.messages import (
    BasinStreamDeleted,
    CancelRead,
    ConfigureBasin,
    CreateBasin,
    Delete,
    DeleteBasin,
    Done,
)
from millpond.actors.streams.names import BASINS, basin_cell

BASINS_MAX = 10_000
METADATA_BYTES_MAX = 65_536
VACATE_RETRY_S = 30.0

_BASIN = b"basin\0"
_REMOVED = b"removed\0"


class Basin(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The note of a basin, as MessagePack: when it was made, S2's own words about it, and when it
    was removed (0: it was not, or nobody noted when)."""

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
        """False: the basin is not there, or is to go with all that is in it."""

    def cell_of(self, name: bytes) -> bytes:
        return basin_cell(self._basin, name)

    def is_being_deleted(self, name: bytes) -> bool:
        return not self.is_open

    def deletion_notice(self, name: bytes) -> tuple[bytes, CellMessage]:
        return BASINS, BasinStreamDeleted(0, self._basin, name)


class BasinDirectories:
    """Which basins there are. Nothing is decided by it; the catalogue decides."""

    def __init__(self, own: bytes, own_streams: Directory, now_ms: int) -> None:
        self.own = own
        """The name of the basin of the node's own streams."""
        self._own_streams = own_streams
        self._started = Basin(now_ms)
        self._streams: dict[bytes, BasinDirectory] = {}
        self._left: WeakValueDictionary[bytes, BasinDirectory] = WeakValueDictionary()
        """Those of basins that are gone, as long as a stream that was there is still in memory."""
        self._basins: dict[bytes, Basin] = {}
        self._removed: dict[bytes, Basin] = {}

    def sync(self, basins: dict[bytes, Basin], removed: dict[bytes, Basin]) -> None:
        """The catalogue says which there are, and which go."""
        self._basins, self._removed = basins, removed
        for name in (*basins, *removed):
            self.note(name)

    def note(self, name: bytes) -> None:
        """A basin is made, or is to go."""
        if name != self.own:
            self.other_streams(name).is_open = name in self._basins

    def find(self, name: bytes) -> Basin | None:
        """What is noted of a basin; None: there is none, or it is to go."""
        return self._basins.get(name) or (self._started if name == self.own else None)

    def is_removed(self, name: bytes) -> bool:
        """Is it to go, with streams that may still be there?"""
        return name in self._removed

    def all(self) -> Iterator[tuple[bytes, Basin, bool]]:
        """Every basin by name, and whether it is to go."""
        rows = [(name, basin, False) for name, basin in self._basins.items()]
        rows += [(name, basin, True) for name, basin in self._removed.items()]
        if self.own not in self._basins:
            rows.append((self.own, self._started, False))
        return iter(sorted(rows))

    def streams(self, basin: bytes) -> Directory:
        """The names of a basin's streams."""
        if basin == self.own:
            return self._own_streams
        return self._streams.get(basin) or BasinDirectory(basin)

    def other_streams(self, basin: bytes) -> BasinDirectory:
        """The same, of another basin than the node's own."""
        found = self._streams.get(basin)
        if found is None:
            found = self._left.pop(basin, None) or BasinDirectory(basin)
            self._streams[basin] = found
        return found

    def forget(self, basin: bytes) -> None:
        """A basin is gone, with all that was in it."""
        found = self._streams.pop(basin, None)
        if found is not None:
            self._left[basin] = found


class BasinCatalog:
    """The catalogue."""

    __slots__ = ("_basins", "_book", "_removed", "deadline")

    def __init__(self, outline: LogSnapshot, book: BasinDirectories) -> None:
        self._book = book
        self._basins = _basins(outline, _BASIN)
        self._removed = _basins(outline, _REMOVED)
        book.sync(self._basins, self._removed)
        self.deadline = -inf if self._removed else inf

    @property
    def is_empty(self) -> bool:
        return not self._basins and not self._removed

    @property
    def is_settled(self) -> bool:
        return True

    @property
    def unanswered(self) -> Iterable[tuple[Port, StreamRequest]]:
        return ()

    def handle(self, batch: Batch, now: float) -> Effects:
        effects = Effects()
        for message in batch.messages:
            reply = self._answer(message, now, effects)
            if reply is not None and batch.port is not None:
                effects.answers.append(reply)
        return effects

    def wake(self, now: float) -> Effects:
        """Tell streams that are to go, once more."""
        effects = Effects()
        for basin in list(self._removed):
            self._vacate(basin, effects)
        self.deadline = now + VACATE_RETRY_S if self._removed else inf
        return effects

    def _answer(self, message: CellMessage, now: float, effects: Effects) -> Reply | None:
        match message:
            case CreateBasin():
                return self._create(message, int(now * 1000), effects)
            case ConfigureBasin():
                return self._configure(message, effects)
            case DeleteBasin():
                return self._delete(message, now, effects)
            case BasinStreamDeleted(basin=basin):
                self._forget(basin, effects)
                return None
            case Drain() | Detach() | CancelRead():
                return None
            case _:
                raise AssertionError(f"{type(message).__name__} is not for the catalogue")

    def _create(self, request: CreateBasin, now_ms: int, effects: Effects) -> Reply:
        name = request.basin
        if name in self._removed or self._book.find(name) is not None:
            return StreamFailed(request.number, Code.STREAM_EXISTS)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        if len(self._basins) + len(self._removed) >= BASINS_MAX:
            return StreamFailed(request.number, Code.BUFFER_FULL)
        self._keep(name, Basin(now_ms, request.metadata), effects)
        return Done(request.number)

    def _configure(self, request: ConfigureBasin, effects: Effects) -> Reply:
        before = self._book.find(request.basin)
        if before is None:
            return StreamFailed(request.number, Code.UNKNOWN_STREAM)
        if len(request.metadata) > METADATA_BYTES_MAX:
            return StreamFailed(request.number, Code.DATA_TOO_LARGE)
        self._keep(request.basin, Basin(before.created_ms, request.metadata), effects)
        return Done(request.number)

    def _keep(self, name: bytes, basin: Basin, effects: Effects) -> None:
        self._basins[name] = basin
        self._book.note(name)
        effects.changes.append(MetadataSet(_BASIN + name, _ENCODER.encode(basin)))

    def _delete(self, request: DeleteBasin, now: float, effects: Effects) -> Reply:
        name = request.basin
        basin = None if name == self._book.own else self._basins.pop(name, None)
        if basin is None:
            return StreamFailed(request.number, Code.UNKNOWN_STREAM)
        basin = msgspec.structs.replace(basin, removed_ms=int(now * 1000))
        self._removed[name] = basin
        effects.changes.append(MetadataSet(_BASIN + name, None))
        effects.changes.append(MetadataSet(_REMOVED + name, _ENCODER.encode(basin)))
        self._book.note(name)
        self._vacate(name, effects)
        self.deadline = min(self.deadline, now + VACATE_RETRY_S)
        return Done(request.number)

    def _vacate(self, basin: bytes, effects: Effects) -> None:
        """Tell what is left of a basin to go; nothing left: it is gone."""
        names = self._book.streams(basin).streams
        effects.posts += tuple((basin_cell(basin, name), Delete(0)) for name in names)
        if not names:
            self._forget(basin, effects)

    def _forget(self, basin: bytes, effects: Effects) -> None:
        if basin in self._removed and not self._book.streams(basin).streams:
            del self._removed[basin]
            self._book.forget(basin)
            effects.changes.append(MetadataSet(_REMOVED + basin, None))


def _basins(outline: LogSnapshot, prefix: bytes) -> dict[bytes, Basin]:
    return {
        name[len(prefix) :]: _DECODER.decode(value)
        for name, value in outline.metadata.items()
        if name.startswith(prefix)
    }

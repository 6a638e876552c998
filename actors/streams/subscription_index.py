"""The index of subscriptions: the cells that are told when a stream grows.

It is in memory, and subscriptions keep it up to date, also when they are built anew. A stream looks
only at `version`, and asks again after it has changed: without subscriptions an append costs one
comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from millpond.actors.messages import CellMessage
from millpond.actors.streams.glob import Glob
from millpond.actors.streams.growth_notices import GrowthNotices


class SubscriptionIndex:
    """The subscriptions of a node, by the streams that they follow."""

    __slots__ = (
        *("_by_first", "_by_path", "_globs", "_open", "_paths", "_wake_streams", "_wakes"),
        *("cells", "notices", "version"),
    )

    def __init__(self, post: Callable[[bytes, CellMessage], None] | None = None) -> None:
        """`post` sends a message to the cell of a subscription, which nobody waits for; None: there
        are none."""
        self.notices = GrowthNotices(post or _unheard)
        self.version = 0
        """Grows with every change."""
        self.cells: set[bytes] = set()
        """The cells of all subscriptions, also of those that were not used since the start."""
        self._globs: dict[bytes, Glob] = {}
        self._by_first: dict[bytes, dict[bytes, Glob]] = {}
        """Globs by the first segment of the names that match."""
        self._open: dict[bytes, Glob] = {}
        """Globs that begin with a wildcard."""
        self._paths: dict[bytes, set[bytes]] = {}
        self._by_path: dict[bytes, set[bytes]] = {}
        self._wakes: dict[bytes, bytes] = {}
        self._wake_streams: Counter[bytes] = Counter()

    def add(self, cell: bytes, glob: Glob | None, wake_stream: bytes | None) -> None:
        """A subscription exists; `wake_stream` is the one that it appends its events to."""
        self.remove(cell)
        self.version += 1
        self.cells.add(cell)
        if glob is not None:
            self._globs[cell] = glob
            globs = self._open if glob.first is None else self._by_first.setdefault(glob.first, {})
            globs[cell] = glob
        if wake_stream is not None:
            self._wakes[cell] = wake_stream
            self._wake_streams[wake_stream] += 1

    def remove(self, cell: bytes) -> None:
        """A subscription is deleted."""
        self.notices.forget(cell)
        if cell not in self.cells:
            return
        self.version += 1
        self.cells.discard(cell)
        for path in tuple(self._paths.get(cell, ())):
            self.unlink(cell, path)
        glob = self._globs.pop(cell, None)
        if glob is not None and glob.first is None:
            del self._open[cell]
        elif glob is not None and glob.first is not None:
            globs = self._by_first[glob.first]
            del globs[cell]
            if not globs:
                del self._by_first[glob.first]
        wake_stream = self._wakes.pop(cell, None)
        if wake_stream is not None:
            self._wake_streams[wake_stream] -= 1
            if not self._wake_streams[wake_stream]:
                del self._wake_streams[wake_stream]

    def link(self, cell: bytes, path: bytes) -> None:
        """A subscription names this stream."""
        self.version += 1
        self._paths.setdefault(cell, set()).add(path)
        self._by_path.setdefault(path, set()).add(cell)

    def unlink(self, cell: bytes, path: bytes) -> None:
        """A subscription names this stream no longer."""
        paths = self._paths.get(cell)
        if paths is None or path not in paths:
            return
        self.version += 1
        paths.discard(path)
        if not paths:
            del self._paths[cell]
        cells = self._by_path[path]
        cells.discard(cell)
        if not cells:
            del self._by_path[path]

    def cells_of(self, path: bytes) -> tuple[bytes, ...]:
        """The subscriptions that are told of this stream."""
        found = set(self._by_path.get(path, ()))
        for globs in (self._by_first.get(path.partition(b"/")[0], {}), self._open):
            found.update(cell for cell, glob in globs.items() if glob.matches(path))
        return tuple(sorted(found))

    def is_wake_stream(self, path: bytes) -> bool:
        """True: a subscription appends its events to this stream."""
        return path in self._wake_streams


def _unheard(cell: bytes, message: CellMessage) -> None:
    """Nothing follows these streams."""


NO_SUBSCRIPTIONS = SubscriptionIndex()
"""Of streams that are no subscription's: those of other basins, and parts of batches."""

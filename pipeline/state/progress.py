"""The progress of a query: its position from the checkpoint, and the rest from the nodes.

Spark's own progress comes a batch late, and not at all for the first one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import source_options
from millpond.pipeline.spark.discovery import Discovery
from millpond.pipeline.spark.offsets import Offsets, from_nested, lag
from millpond.pipeline.state.files import Files

TIMEOUT_MS = 2000
"""The display of progress does not wait for an unreachable node."""


class QueryProgress:
    """The progress of one query. Not thread-safe."""

    def __init__(self, source: Mapping[str, str]) -> None:
        self._options = source_options(source, is_streaming=True)
        self._checkpoint: Files | None = None
        nodes = replace(self._options.nodes, timeout_ms=TIMEOUT_MS)
        self._discovery = Discovery(nodes, self._options.subscription)
        self._begin: Offsets = {}
        self._tails: Offsets = {}

    def check(self) -> None:
        """Check that all streams exist. Raises PipelineError."""
        with closing(Discovery(self._options.nodes, self._options.subscription)) as discovery:
            discovery.check_complete()

    def begin(self, checkpoint: Files) -> None:
        """Note where the query begins. Raises PipelineError."""
        self._checkpoint = checkpoint
        with closing(Discovery(self._options.nodes, self._options.subscription)) as discovery:
            last = self.last()
            at_start = self._at(last)
            self._begin = at_start if last >= 0 else discovery.at_bound(self._options.start)
            self._tails = discovery.tails()

    def close(self) -> None:
        """Close all connections."""
        self._discovery.close()

    def last(self) -> int:
        """The last batch that has begun; -1 before the first."""
        names = [] if self._checkpoint is None else self._checkpoint.names("offsets")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def records(self, batch: int) -> int:
        """The records of a batch, also those that are no rows."""
        return lag(self._at(batch - 1) or self._begin, self._at(batch))

    def done(self, batch: int) -> int:
        """The records from the start of this run to the end of a batch."""
        return lag(self._begin, self._at(batch) or self._begin)

    def left(self, batch: int) -> int:
        """The records after a batch, by the last answers of the nodes."""
        try:
            self._tails = self._discovery.tails()
        except PipelineError:
            pass
        return lag(self._at(batch) or self._begin, self._tails)

    def _at(self, batch: int) -> Offsets:
        """The end of a batch; empty if the checkpoint does not have it."""
        try:
            text = self._checkpoint and self._checkpoint.read("offsets", str(batch))
            return from_nested(json.loads((text or "").splitlines()[2]))
        except (OSError, ValueError, IndexError, PipelineError):
            return {}

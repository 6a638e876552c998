"""How far a query got, and how much is left: its checkpoint says the one, the nodes the other.

Nothing here asks Spark, whose own progress comes a batch late and not at all for the first.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from millpond.pipeline.errors import PipelineError
from millpond.pipeline.options import source_options
from millpond.pipeline.spark.discovery import Discovery
from millpond.pipeline.spark.offsets import Offsets, flat, lag

ASK_MS = 2000
"""Who only looks does not wait for a node that is away."""


class QueryProgress:
    """Of one query. Not for several threads at once."""

    def __init__(self, source: Mapping[str, str], checkpoint: Path) -> None:
        self._options = source_options(source, is_streaming=True)
        self._folder = checkpoint / "offsets"
        nodes = replace(self._options.nodes, timeout_ms=ASK_MS)
        self._discovery = Discovery(nodes, self._options.subscription)
        self._begin: Offsets = {}
        self._tails: Offsets = {}

    def begin(self) -> None:
        """See that all streams are there, and remember where the query begins. Raises
        PipelineError."""
        discovery = Discovery(self._options.nodes, self._options.subscription)
        try:
            discovery.check_complete()
            last = self.last()
            at_start = self._at(last)
            self._begin = at_start if last >= 0 else discovery.at_edge(self._options.start)
            self._tails = discovery.tails()
        finally:
            discovery.close()

    def close(self) -> None:
        """Let go of all connections."""
        self._discovery.close()

    def last(self) -> int:
        """The last batch that was begun; -1: none was."""
        if not self._folder.is_dir():
            return -1
        names = (each.name for each in self._folder.iterdir())
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def records(self, batch: int) -> int:
        """How many records a batch has, with those that are no rows."""
        return lag(self._at(batch - 1) or self._begin, self._at(batch))

    def done(self, batch: int) -> int:
        """How many there were from the beginning of this run to behind a batch."""
        return lag(self._begin, self._at(batch) or self._begin)

    def left(self, batch: int) -> int:
        """How many there are behind a batch, by what the nodes tell now, or told last."""
        try:
            self._tails = self._discovery.tails()
        except PipelineError:
            pass
        return lag(self._at(batch) or self._begin, self._tails)

    def _at(self, batch: int) -> Offsets:
        """Where a batch ends; empty where the checkpoint does not have it."""
        try:
            lines = (self._folder / str(batch)).read_text("utf-8").splitlines()
            return flat(json.loads(lines[2]))
        except (OSError, ValueError, IndexError, PipelineError):
            return {}

"""The progress of a job: a bar on a terminal, otherwise a line for each batch."""

from __future__ import annotations

import json
import sys
from typing import Any, Protocol

from millpond.pipeline.state.report import Sample


class Progress(Protocol):
    """A display of batches; a live one also shows how many records are left."""

    is_live: bool

    def batch(self, sample: Sample) -> None:
        """Show a finished batch."""

    def left(self, done: int, left: int) -> None:
        """Show how many records this run has read, and how many are left."""

    def close(self) -> None:
        """End the display."""


class Lines:
    """A line on stderr for each batch."""

    is_live = False

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    def batch(self, sample: Sample) -> None:
        text = (
            json.dumps({"event": "batch", **vars(sample)}) if self._as_json else batch_line(sample)
        )
        print(text, file=sys.stderr, flush=True)

    def left(self, done: int, left: int) -> None:
        """Lines do not show this."""

    def close(self) -> None:
        """Lines stay."""


class Bar:
    """A bar that grows with the records read."""

    is_live = True

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns: list[Any] = [
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]} left"),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
        ]
        self._bars = Bars(*columns, console=Console(stderr=True))
        self._task = self._bars.add_task("starting", total=None, left="?", rate="")
        self._bars.start()

    def batch(self, sample: Sample) -> None:
        rate = f"{sample.per_s:,.0f} records/s"
        if sample.rejected:
            rate += f", {sample.rejected} rejected"
        self._bars.update(self._task, description=f"batch {sample.batch}", rate=rate)

    def left(self, done: int, left: int) -> None:
        self._bars.update(self._task, completed=done, total=done + left, left=f"{left:,}")

    def close(self) -> None:
        self._bars.stop()


def batch_line(sample: Sample) -> str:
    """A batch as a line of text."""
    return (
        f"batch {sample.batch}: {sample.records} records in {sample.seconds:.1f} s, "
        f"{sample.rejected} rejected, {sample.lag} left"
    )


def progress(*, as_json: bool) -> Progress:
    """A bar on a terminal, lines elsewhere."""
    return Bar() if sys.stderr.isatty() and not as_json else Lines(as_json=as_json)

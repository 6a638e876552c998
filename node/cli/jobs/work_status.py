"""The status of a worker on stderr: a ready line, and on a terminal a line of progress."""

from __future__ import annotations

import sys
import time

import anyio

from millpond.node.cli.output import write_async
from millpond.node.cli.progress import CLEAR
from millpond.node.jobs.worker.worker import Worker

EVERY_S = 0.5


class WorkStatus:
    """The status line of a worker, on stderr because handlers print to stdout."""

    def __init__(self, *, is_wanted: bool, number: int = 0) -> None:
        """`number`: that of the process among several, which the ready line tells."""
        self._is_wanted = is_wanted
        self._number = f" {number}" if number else ""
        self._worker: Worker | None = None
        self._began_at = time.monotonic()
        self._recent: list[tuple[float, int]] = []
        self._count = 0

    async def ready(self, worker: Worker) -> None:
        """Say that the worker is connected; it works meanwhile, also where nobody reads that."""
        self._worker = worker
        queues = ", ".join(worker.queues)
        await write_async(
            f"millpond work{self._number}: ready, queues: {queues}\n".encode(), sys.stderr
        )

    def ended(self) -> None:
        """Count an ended attempt."""
        self._count += 1

    async def run(self) -> None:
        """Rewrite the line, for ever."""
        while self._is_wanted:
            await anyio.sleep(EVERY_S)
            print(f"{CLEAR}{self.line()}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Print the final line."""
        if self._is_wanted:
            print(f"{CLEAR}{self.line()}", file=sys.stderr, flush=True)

    def line(self) -> str:
        """The line, such as `2 running, 17 done, 1 failed, 3.5/s`."""
        worker = self._worker
        if worker is None:
            return ""
        stats = worker.stats
        now = time.monotonic()
        self._recent = [(at, count) for at, count in self._recent if now - at < 10][-20:]
        at, count = self._recent[0] if self._recent else (self._began_at, 0)
        rate = (self._count - count) / max(now - at, EVERY_S)
        self._recent.append((now, self._count))
        words = [f"{stats.running} running", f"{stats.done} done", f"{stats.failed} failed"]
        if stats.rejected:
            words.append(f"{stats.rejected} dead")
        if stats.lost or stats.cancelled:
            words.append(f"{stats.lost + stats.cancelled} lost")
        words.append(f"{rate:.1f}/s")
        if worker.oldest_s:
            words.append(f"oldest {worker.oldest_s:.0f} s")
        return ", ".join(words)

"""Idempotent writers: each batch is appended once, however often it is sent.

Records and how far their writer got are changes of one commit, so neither is ever there without
the other.
"""

from __future__ import annotations

from millpond.actors.errors import Code
from millpond.actors.messages import Reply, StreamFailed
from millpond.actors.store.changes import Change
from millpond.actors.streams.append import StreamAppender
from millpond.actors.streams.bounds import StreamBounds
from millpond.actors.streams.messages import Append, GetWriter, WriterAppend, WriterStatus
from millpond.actors.streams.metadata import StreamMetadata, WriterState

WRITERS_MAX = 10_000
UNNAMED_MAX = 1000
"""The most writers whose names were made for one batch: the oldest are forgotten beyond."""
WRITER_BYTES_MAX = 64
PLAN_BYTES_MAX = 2**20
UNNAMED_MS, ONCE_MS, IDLE_MS = 600_000, 86_400_000, 30 * 86_400_000
"""The times for which writers are remembered after their last batch: unnamed ones, so long as
clients repeat a request; writers of one batch; and any other. The last two are remembered for
longer while there is space."""


class IdempotentWriters:
    """The idempotent writers of one stream."""

    __slots__ = ("_appender", "_bounds", "_metadata")

    def __init__(
        self, appender: StreamAppender, metadata: StreamMetadata, bounds: StreamBounds
    ) -> None:
        self._appender = appender
        self._bounds = bounds
        self._metadata = metadata

    def status(self, request: GetWriter | WriterAppend) -> WriterStatus:
        """The progress of a writer."""
        found = self._metadata.writers.get(request.writer)
        if found is None:
            return WriterStatus(request.number, -1, 0, b"", True)
        return WriterStatus(request.number, found.batch, found.rows, found.plan, found.is_done)

    def append(self, request: WriterAppend, now_ms: int, changes: list[Change]) -> Reply:
        """Append a slice of a batch if it is the next one; the reply is the writer's progress."""
        writer, before = request.writer, self._metadata.writers.get(request.writer)
        if not _is_next(request, before):
            return self.status(request)
        if not 0 < len(writer) <= WRITER_BYTES_MAX or len(request.plan) > PLAN_BYTES_MAX:
            return self._bounds.failure(request.number, Code.MALFORMED)
        if before is None and not self._fits_another(now_ms, changes, unnamed=request.unnamed):
            return self._bounds.failure(request.number, Code.GROUPS_FULL)
        if request.bodies:
            append = Append(request.number, request.bodies, None, request.headers)
            reply = self._appender.append(append)
            if isinstance(reply, StreamFailed):
                return reply
            self._appender.flush(changes)
        state = WriterState(
            request.batch,
            request.at + len(request.bodies),
            b"" if request.is_last else request.plan,
            request.is_last,
            now_ms,
            request.once,
            request.unnamed,
        )
        changes.append(self._metadata.set_writer(writer, state))
        return self.status(request)

    def _fits_another(self, now_ms: int, changes: list[Change], *, unnamed: bool) -> bool:
        """True: one more writer fits. Writers that are not needed any more are forgotten."""
        writers = self._metadata.writers
        if unnamed:
            found = sorted((each.ms, name) for name, each in writers.items() if each.unnamed)
            beyond = len(found) - UNNAMED_MAX
            over = [
                name
                for at, (ms, name) in enumerate(found)
                if (at <= beyond or ms < now_ms - UNNAMED_MS) and writers[name].is_done
            ]
            changes += map(self._metadata.forget_writer, over)
        if len(writers) >= WRITERS_MAX:
            over = [name for name, each in writers.items() if _is_over(each, now_ms)]
            changes += map(self._metadata.forget_writer, over)
        return len(writers) < WRITERS_MAX


def _is_over(state: WriterState, now_ms: int) -> bool:
    """Whether a writer may be forgotten where there is no space."""
    kept_ms = UNNAMED_MS if state.unnamed else ONCE_MS if state.once else IDLE_MS
    return state.is_done and state.ms < now_ms - kept_ms


def _is_next(request: WriterAppend, before: WriterState | None) -> bool:
    if before is not None and not before.is_done:
        is_same = request.batch == before.batch and request.plan == before.plan
        return is_same and request.at == before.rows
    return request.at == 0 and (before is None or request.batch > before.batch)
